// The lists of formats, and what a chat template says about them. See output.h.
#include "text/parsers/formats.h"

#include <fmt/format.h>

#include "base/error.h"
#include "text/parsers/harmony.h"
#include "text/parsers/tags.h"

namespace carpool {
namespace {

template <class Format>
struct Named {
  const char* name;
  const Format* format;
};

#define REASONING_PARSER(name, symbol) {name, &symbol},
constexpr Named<ReasoningFormat> kReasoning[] = {
#include "text/parsers/reasoning_parsers.def"
};
#undef REASONING_PARSER
#define TOOL_CALL_PARSER(name, symbol) {name, &symbol},
constexpr Named<CallFormat> kCalls[] = {
#include "text/parsers/tool_call_parsers.def"
};
#undef TOOL_CALL_PARSER

template <class Format>
std::vector<std::string> names_of(std::span<const Named<Format>> list) {
  std::vector<std::string> names = {"auto", "none"};
  for (const Named<Format>& entry : list) names.emplace_back(entry.name);
  return names;
}

template <class Format>
const Format* choose_one(const char* option, const std::string& name, std::span<const Named<Format>> list,
                         std::string_view chat_template) {
  if (name == "none") return nullptr;
  for (const Named<Format>& entry : list) {
    if (name == "auto" ? entry.format->suits(chat_template) : name == entry.name) return entry.format;
  }
  if (name == "auto") return nullptr;
  std::string known;
  for (const std::string& each : names_of(list)) known += fmt::format("{}{}", known.empty() ? "" : ", ", each);
  throw Error(ErrorKind::kUsage, fmt::format("{} {} is unknown; there are {}", option, escape(name, 40), known));
}

}  // namespace

OutputFormat OutputFormat::choose(const std::string& reasoning, const std::string& calls,
                                  std::string_view chat_template) {
  OutputFormat format;
  format.reasoning = choose_one<ReasoningFormat>("--reasoning-parser", reasoning, kReasoning, chat_template);
  format.calls = choose_one<CallFormat>("--tool-call-parser", calls, kCalls, chat_template);
  if (is_harmony(format.reasoning) && calls == "auto") format.calls = &kCallsGptOss;
  if (is_harmony(format.calls) && reasoning == "auto") format.reasoning = &kReasoningGptOss;
  const bool calls_off = is_harmony(format.reasoning) && !format.calls;
  if (is_harmony(format.reasoning) != is_harmony(format.calls) && !calls_off) {
    throw Error(ErrorKind::kConfig,
                fmt::format("--reasoning-parser {} and --tool-call-parser {} do not go together: gpt-oss is one format "
                            "for both",
                            escape(reasoning, 40), escape(calls, 40)));
  }
  return format;
}

std::vector<std::string_view> OutputFormat::tags() const {
  std::vector<std::string_view> all;
  if (is_harmony(reasoning)) {
    all.assign(std::begin(kHarmonyTags), std::end(kHarmonyTags));
    return all;
  }
  if (reasoning) all.insert(all.end(), {reasoning->open, reasoning->close});
  if (!calls) return all;
  all.insert(all.end(), {calls->open, calls->close});
  all.insert(all.end(), calls->around.begin(), calls->around.end());
  if (!calls->quotation.json) all.insert(all.end(), {calls->quotation.open, calls->quotation.close});
  all.insert(all.end(), calls->within.begin(), calls->within.end());
  return all;
}

const char* OutputFormat::reasoning_name() const { return reasoning ? reasoning->name : "none"; }
const char* OutputFormat::calls_name() const { return calls ? calls->name : "none"; }

std::vector<std::string> reasoning_parser_names() { return names_of<ReasoningFormat>(kReasoning); }
std::vector<std::string> tool_call_parser_names() { return names_of<CallFormat>(kCalls); }

PromptEnd reasoning_at_end(const OutputFormat& format, std::string_view prompt) {
  if (!format.reasoning || is_harmony(format.reasoning)) return PromptEnd::kNeither;
  const std::string_view text = trimmed_right(prompt);
  if (text.ends_with(format.reasoning->open)) return PromptEnd::kOpen;
  return text.ends_with(format.reasoning->close) ? PromptEnd::kClosed : PromptEnd::kNeither;
}

std::string_view reasoning_close(const OutputFormat& format) {
  return format.reasoning ? format.reasoning->close : std::string_view();
}

std::string forced_call(const OutputFormat& format, std::string_view function) {
  return format.calls->forced(function);
}

}  // namespace carpool
