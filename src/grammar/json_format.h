// The values of `format` that can be written by a grammar.
#pragma once

#include <optional>
#include <string_view>

#include "grammar/grammar.h"

namespace carpool {

// What may stand between the quotes, and how many characters that can be (all have at most 300). Nothing for formats we
// do not have. Dates are real dates (February has 28 days), times end in Z or an offset.
std::optional<NodeId> format_node(GrammarBuilder& builder, std::string_view format);
inline constexpr const char* kFormats = "date-time, date, time, uuid, ipv4, email, hostname, uri, duration";

}  // namespace carpool
