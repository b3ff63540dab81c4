// GLM-4.7 to GLM-5.2: <tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value></tool_call>, without line breaks.
#include "text/parsers/calls/glm_arguments.h"

namespace carpool {
namespace {

bool suits(std::string_view chat_template) { return chat_template.find("<arg_key>") != std::string_view::npos; }

std::string forced(std::string_view function) { return "<tool_call>" + std::string(function); }

}  // namespace

const CallFormat kCallsGlm47 = {
    "glm47",
    "<tool_call>",
    "</tool_call>",
    {false, "<arg_value>", "</arg_value>"},
    {},
    kGlmTags,
    false,
    read_glm_call,
    forced,
    {"</tool_call>", "<tool_call>", "", "<arg_key>", "</arg_key><arg_value>", "</arg_value>"},
    suits};

}  // namespace carpool
