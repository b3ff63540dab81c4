// Grammars of JSON numbers within bounds, exact to the last digit.
//
// Owns the comparison of decimals as automata over their digits. Numbers are written without leading zeros, and those
// without bounds with at most 15 digits before and after the point and an exponent of at most two digits, so that every
// reader takes them for the same finite value; integers without bounds have at most 18 digits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "grammar/grammar.h"

namespace carpool {

// A decimal without exponent: -12.5 is {true, "12", "5"}. No leading zeros in `whole` ("0" for none), no trailing ones
// in `fraction`; zero is not negative.
struct Decimal {
  bool negative = false;
  std::string whole = "0", fraction;
};

// From JSON's spelling of a number; nothing when it has more than 30 digits on one side of the point.
std::optional<Decimal> read_decimal(std::string_view text);

struct NumberRange {
  std::optional<Decimal> min, max;
  bool open_min = false, open_max = false;  // the bound itself is outside
};

NodeId integer_node(GrammarBuilder& builder, const NumberRange& range);
NodeId number_node(GrammarBuilder& builder, const NumberRange& range);

}  // namespace carpool
