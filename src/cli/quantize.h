// Parts of `carpool quantize` that are tested alone; the command is added by add_quantize (commands.h).
#pragma once

#include <string>
#include <utility>

#include "model/quantize.h"

namespace carpool {

// "PATTERN=FORMAT", split at the last '='. Error{kUsage}.
std::pair<std::string, Format> parse_exception(const std::string& text);

// What was stored as what, as lines for a person.
std::string quantize_text(const QuantizeOptions& options, const QuantizeReport& report);

}  // namespace carpool
