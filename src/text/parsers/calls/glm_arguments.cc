// See glm_arguments.h.
#include "text/parsers/calls/glm_arguments.h"

#include "text/parsers/call_json.h"
#include "text/parsers/tags.h"

namespace carpool {
namespace {

constexpr std::string_view kValue = "<arg_value>", kValueEnd = "</arg_value>";
constexpr size_t kNone = std::string_view::npos;

}  // namespace

ParsedBlock read_glm_call(std::string_view body, const std::vector<ToolFunction>& functions) {
  const auto [key_open, key_close] = std::pair(kGlmTags[0], kGlmTags[1]);
  body = trimmed_left(body);
  const size_t name_end = std::min(body.find_first_of("<\n"), body.size());
  const std::string_view name = trimmed(body.substr(0, name_end));
  if (name.empty() || name.size() > kMaxFunctionName || name.find_first_of(kBlanks) != kNone) return {{}, false};
  const ToolFunction* function = find_function(functions, name);
  ArgumentsWriter arguments;
  bool exact = true;
  std::string_view rest = body.substr(name_end);
  while (!(rest = trimmed_left(rest)).empty()) {
    const size_t open = rest.find(key_open), stray = rest.find(kValue);
    if (stray < open) {  // a value without its key
      exact = false;
      const size_t end = rest.find(kValueEnd, stray);
      rest.remove_prefix(end == kNone ? rest.size() : end + kValueEnd.size());
      continue;
    }
    exact = exact && open == 0;
    if (open == kNone) break;
    rest.remove_prefix(open + key_open.size());
    const size_t close = rest.find(key_close), next = rest.find(key_open);
    if (close == kNone || next < close) {
      exact = false;
      continue;
    }
    const std::string_view key = trimmed(rest.substr(0, close)),
                           behind = trimmed_left(rest.substr(close + key_close.size()));
    const size_t end = behind.starts_with(kValue) ? behind.find(kValueEnd) : kNone;
    if (key.empty() || end == kNone) {
      exact = false;
      rest = behind;
      continue;
    }
    const std::string_view value = behind.substr(kValue.size(), end - kValue.size());
    arguments.set(key, typed_argument(value, function, key));
    rest = behind.substr(end + kValueEnd.size());
  }
  return {{{std::string(name), arguments.text()}}, exact};
}

}  // namespace carpool
