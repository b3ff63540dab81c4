// Qwen3-Coder: <tool_call> <function=NAME> <parameter=K> V </parameter> </function> </tool_call>, each on lines of its
// own. What surrounds the function is sometimes forgotten, so the function is the block.
#include "text/parsers/calls/xml_call.h"

namespace carpool {
namespace {

constexpr std::string_view kAround[] = {"<tool_call>", "</tool_call>"};
constexpr XmlTags kTags = {">", "<parameter=", "</parameter>", true};

ParsedBlock read(std::string_view body, const std::vector<ToolFunction>& functions) {
  return read_xml_call(body, functions, kTags);
}

std::string forced(std::string_view function) {
  std::string text = "<tool_call>\n<function=";
  if (!function.empty()) text.append(function).append(">\n");
  return text;
}

bool suits(std::string_view chat_template) { return chat_template.find("<function=") != std::string_view::npos; }

}  // namespace

const CallFormat kCallsQwen3Coder = {
    "qwen3_coder",
    "<function=",
    "</function>",
    {false, kTags.open, kTags.close},
    kAround,
    {},
    false,
    read,
    forced,
    {"</function>\n</tool_call>", "\n<tool_call>\n<function=", "", kTags.open, ">\n", "\n</parameter>\n"},
    suits};

}  // namespace carpool
