// Kimi-K2: a section of calls, each functions.NAME:INDEX and a JSON object, between control tokens.
#include "text/parsers/call_json.h"
#include "text/parsers/formats.h"
#include "text/parsers/tags.h"

namespace carpool {
namespace {

constexpr std::string_view kAround[] = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"};
constexpr std::string_view kOpen = "<|tool_call_begin|>", kClose = "<|tool_call_end|>";
constexpr std::string_view kArguments[] = {"<|tool_call_argument_begin|>"};
constexpr std::string_view kFunctions = "functions.";
constexpr size_t kNone = std::string_view::npos;

std::string_view name_of(std::string_view id) {
  if (id.starts_with(kFunctions)) id.remove_prefix(kFunctions.size());
  const size_t colon = id.rfind(':');
  const bool indexed = colon != kNone && id.find_first_not_of("0123456789", colon + 1) == kNone;
  return id.substr(0, indexed ? colon : kNone);
}

ParsedBlock read(std::string_view body, const std::vector<ToolFunction>&) {
  const size_t at = body.find(kArguments[0]);
  const std::string_view name = name_of(trimmed(body.substr(0, at)));
  if (at == kNone || name.empty() || name.size() > kMaxFunctionName) return {{}, false};
  std::string_view rest = body.substr(at + kArguments[0].size());
  if (trimmed(rest).empty()) return {{{std::string(name), "{}"}}, true};
  const std::optional<std::string_view> object = take_object(rest);
  if (!object) return {{}, false};
  return {{{std::string(name), std::string(*object)}}, trimmed(rest).empty()};
}

std::string forced(std::string_view function) {
  std::string text = std::string(kAround[0]).append(kOpen).append(kFunctions);
  if (!function.empty()) text.append(function).append(":0").append(kArguments[0]);
  return text;
}

bool suits(std::string_view chat_template) { return chat_template.find(kAround[0]) != kNone; }

}  // namespace

const CallFormat kCallsKimiK2 = {
    "kimi_k2", kOpen,
    kClose,    {true},
    kAround,   kArguments,
    true,      read,
    forced,    {"<|tool_call_end|>", "<|tool_call_begin|>functions.", "<|tool_calls_section_end|>"},
    suits};

}  // namespace carpool
