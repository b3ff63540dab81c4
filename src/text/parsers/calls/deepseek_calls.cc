// See deepseek_calls.h.
#include "text/parsers/calls/deepseek_calls.h"

#include "text/parsers/call_json.h"
#include "text/parsers/tags.h"

namespace carpool {

ParsedBlock read_deepseek_call(std::string_view body, const std::vector<ToolFunction>&) {
  const size_t at = body.find(kDeepSeekWithin[0]);
  if (at == std::string_view::npos) return {{}, false};
  std::string_view name = trimmed(body.substr(0, at)), rest = body.substr(at + kDeepSeekWithin[0].size());
  constexpr std::string_view kFence = "```";
  if (const size_t brace = rest.find('{'); name == "function" && rest.find(kFence) < brace) {
    const size_t line = rest.find_first_of("\n`");
    name = trimmed(rest.substr(0, line));
    rest.remove_prefix(std::min(brace, rest.size()));
  }
  if (name.empty() || name.size() > kMaxFunctionName || name.find_first_of(kBlanks) != std::string_view::npos) {
    return {{}, false};
  }
  if (trimmed(rest).empty()) return {{{std::string(name), "{}"}}, true};
  const std::optional<std::string_view> object = take_object(rest);
  if (!object) return {{}, false};
  const std::string_view behind = trimmed(rest);
  return {{{std::string(name), std::string(*object)}}, behind.empty() || behind == kFence};
}

}  // namespace carpool
