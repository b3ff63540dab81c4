// MiniMax-M2: <minimax:tool_call> <invoke name="NAME"> <parameter name="K">V</parameter> </invoke>
// </minimax:tool_call>.
#include "text/parsers/calls/xml_call.h"

namespace carpool {
namespace {

constexpr std::string_view kAround[] = {"<minimax:tool_call>", "</minimax:tool_call>"};
constexpr XmlTags kTags = {"\">", "<parameter name=\"", "</parameter>", false};

ParsedBlock read(std::string_view body, const std::vector<ToolFunction>& functions) {
  return read_xml_call(body, functions, kTags);
}

std::string forced(std::string_view function) {
  std::string text = "<minimax:tool_call>\n<invoke name=\"";
  if (!function.empty()) text.append(function).append("\">\n");
  return text;
}

bool suits(std::string_view chat_template) { return chat_template.find(kAround[0]) != std::string_view::npos; }

}  // namespace

const CallFormat kCallsMiniMaxM2 = {
    "minimax-m2",
    "<invoke name=\"",
    "</invoke>",
    {false, kTags.open, kTags.close},
    kAround,
    {},
    false,
    read,
    forced,
    {"</invoke>\n", "<invoke name=\"", "</minimax:tool_call>", kTags.open, kTags.name_end, "</parameter>\n"},
    suits};

}  // namespace carpool
