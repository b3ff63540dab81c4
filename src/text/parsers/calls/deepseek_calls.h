// What DeepSeek-V3 and V3.1 share: a section of calls between control tokens, a name and a JSON object in each.
#pragma once

#include "text/parsers/formats.h"

namespace carpool {

#define CARPOOL_DEEPSEEK(words) "<\uFF5C" words "\uFF5C>"
inline constexpr std::string_view kDeepSeekAround[] = {CARPOOL_DEEPSEEK("tool\u2581calls\u2581begin"),
                                                       CARPOOL_DEEPSEEK("tool\u2581calls\u2581end")};
inline constexpr std::string_view kDeepSeekOpen = CARPOOL_DEEPSEEK("tool\u2581call\u2581begin");
inline constexpr std::string_view kDeepSeekClose = CARPOOL_DEEPSEEK("tool\u2581call\u2581end");
inline constexpr std::string_view kDeepSeekWithin[] = {CARPOOL_DEEPSEEK("tool\u2581sep")};
// Of V3, whose objects are fenced.
inline constexpr std::string_view kDeepSeekFencedEnd = "\n```" CARPOOL_DEEPSEEK("tool\u2581call\u2581end");
inline constexpr std::string_view kDeepSeekFencedNext =
    "\n" CARPOOL_DEEPSEEK("tool\u2581call\u2581begin") "function" CARPOOL_DEEPSEEK("tool\u2581sep");
#undef CARPOOL_DEEPSEEK

// Reads both: "function SEP NAME", a line break and the object fenced as code (V3), or "NAME SEP object" (V3.1).
ParsedBlock read_deepseek_call(std::string_view body, const std::vector<ToolFunction>& functions);

}  // namespace carpool
