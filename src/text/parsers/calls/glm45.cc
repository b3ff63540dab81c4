// GLM-4.5 and GLM-4.6: the format of glm47 with line breaks behind the name and between keys and values. Each reads the
// other's.
#include "text/parsers/calls/glm_arguments.h"

namespace carpool {
namespace {

bool suits(std::string_view chat_template) { return chat_template.find("}\n<arg_key>") != std::string_view::npos; }

std::string forced(std::string_view function) {
  return function.empty() ? "<tool_call>" : "<tool_call>" + std::string(function) + "\n";
}

}  // namespace

const CallFormat kCallsGlm45 = {
    "glm45",
    "<tool_call>",
    "</tool_call>",
    {false, "<arg_value>", "</arg_value>"},
    {},
    kGlmTags,
    false,
    read_glm_call,
    forced,
    {"</tool_call>", "\n<tool_call>", "", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"},
    suits};

}  // namespace carpool
