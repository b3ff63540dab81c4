// Qwen2.5, Qwen3 and Hermes: <tool_call> {"name": ..., "arguments": {...}} </tool_call>.
#include "text/parsers/call_json.h"
#include "text/parsers/formats.h"
#include "text/parsers/tags.h"

namespace carpool {
namespace {

// One call of {"name", "arguments"}; false when it is none.
bool read_one(std::string_view object, ParsedBlock& block) {
  ParsedCall call{"", "{}"};
  for (const JsonMember& member : members_of(object)) {
    if (member.key == "name" && member.value.starts_with('"')) {
      call.name = std::string(json::parse(member.value).get_string());
    } else if (member.key == "arguments" || member.key == "parameters") {
      std::optional<std::string> arguments = arguments_of(member.value);
      if (!arguments) return false;
      call.arguments = std::move(*arguments);
    }
  }
  if (call.name.empty() || call.name.size() > kMaxFunctionName) return false;
  block.calls.push_back(std::move(call));
  return true;
}

// Several objects in one block are several calls.
ParsedBlock read(std::string_view body, const std::vector<ToolFunction>&) {
  ParsedBlock block;
  std::string_view rest = body;
  while (const std::optional<std::string_view> object = take_object(rest)) {
    if (!read_one(*object, block)) block.exact = false;
  }
  if (!trimmed(rest).empty()) block.exact = false;
  return block;
}

std::string forced(std::string_view function) {
  std::string text = "<tool_call>\n{\"name\": \"";
  if (!function.empty()) text.append(function).append("\", \"arguments\": ");
  return text;
}

bool suits(std::string_view chat_template) { return chat_template.find("<tool_call>") != std::string_view::npos; }

}  // namespace

const CallFormat kCallsQwen25 = {
    "qwen25", "<tool_call>", "</tool_call>", {true}, {},
    {},       false,         read,           forced, {"}\n</tool_call>", "\n<tool_call>\n{\"name\": \"", ""},
    suits};

}  // namespace carpool
