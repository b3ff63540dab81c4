// Qwen3-Coder: <tool_call> <function=NAME> <parameter=K> V </parameter> </function> </tool_call>, each on lines of its
// own. What surrounds the function is sometimes forgotten, so the function is the block.
#include "text/parsers/call_json.h"
#include "text/parsers/formats.h"
#include "text/parsers/tags.h"

namespace carpool {
namespace {

constexpr std::string_view kAround[] = {"<tool_call>", "</tool_call>"};
constexpr std::string_view kParameter = "<parameter=", kParameterEnd = "</parameter>";
constexpr size_t kNone = std::string_view::npos;

// The line breaks next to the tags are the format's.
std::string_view value_of(std::string_view text) {
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

// NAME> and parameters. One without a name is left out.
ParsedBlock read(std::string_view body, const std::vector<ToolFunction>& functions) {
  const size_t name_end = body.find('>');
  const std::string_view name = trimmed(body.substr(0, name_end));
  if (name_end == kNone || name.empty() || name.size() > kMaxFunctionName || name.find_first_of(" \n<") != kNone) {
    return {{}, false};
  }
  const ToolFunction* function = find_function(functions, name);
  ArgumentsWriter arguments;
  bool exact = true;
  std::string_view rest = body.substr(name_end + 1);
  while (!(rest = trimmed_left(rest)).empty()) {
    const size_t open = rest.find(kParameter);
    exact = exact && open == 0;
    if (open == kNone) break;
    rest.remove_prefix(open + kParameter.size());
    const size_t key_end = rest.find('>'), end = rest.find(kParameterEnd);
    if (end == kNone || key_end >= end || trimmed(rest.substr(0, key_end)).empty()) {
      exact = false;
      rest.remove_prefix(end == kNone ? rest.size() : end + kParameterEnd.size());
      continue;
    }
    const std::string_view key = trimmed(rest.substr(0, key_end));
    const std::string_view value = value_of(rest.substr(key_end + 1, end - key_end - 1));
    arguments.set(key, typed_argument(value, schema_of(function, key)));
    rest.remove_prefix(end + kParameterEnd.size());
  }
  return {{{std::string(name), arguments.text()}}, exact};
}

std::string forced(std::string_view function) {
  std::string text = "<tool_call>\n<function=";
  if (!function.empty()) text.append(function).append(">\n");
  return text;
}

bool suits(std::string_view chat_template) { return chat_template.find("<function=") != kNone; }

}  // namespace

const CallFormat kCallsQwen3Coder = {"qwen3_coder", "<function=", "</function>", {false, kParameter, kParameterEnd},
                                     kAround,       {},           false,         read,
                                     forced,        suits};

}  // namespace carpool
