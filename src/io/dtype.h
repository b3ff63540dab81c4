// The element types that a weight file may declare, by their safetensors names.
//
// Owns the table of names, widths and the bit patterns that are not finite numbers. A type listed here can be
// stored and checked; whether it can be multiplied is tensor/formats.def. Nothing is ever converted here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace carpool {

struct DtypeInfo {
  std::string_view name;  // "BF16"
  int bits;               // of one element; 4 and 6 are packed, so a tensor's total must be whole bytes
  // An element is NaN or infinite exactly if (bits & non_finite_mask) == non_finite_pattern. A mask of zero
  // means that every bit pattern is a number (integers, and float types without NaN).
  uint64_t non_finite_mask;
  uint64_t non_finite_pattern;
};

// The row of the table named `name`, or nullptr.
const DtypeInfo* find_dtype(std::string_view name);

// "BOOL, F4, ..." for messages.
std::string dtype_names();

}  // namespace carpool
