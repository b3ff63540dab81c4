// Checked arithmetic for every size that comes from a file, an option or a request.
//
// One helper for the whole class of overflow bugs: loaders never write a*b on their own.
#pragma once

#include <cstdint>
#include <optional>

namespace carpool {

inline std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b) {
  uint64_t r;
  return __builtin_mul_overflow(a, b, &r) ? std::nullopt : std::optional(r);
}

}  // namespace carpool
