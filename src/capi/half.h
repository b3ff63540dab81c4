// Two-byte floats to float32, exactly.
//
// Owns what the C API needs to read bf16 and f16 logits; the formats of weights are src/tensor's, which this folder
// does not see.
#pragma once

#include <bit>
#include <cstdint>

namespace carpool::capi {

inline float from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// Shifting the 15 magnitude bits into a float32 divides the value by 2^112, subnormal numbers included; the product
// undoes that. Infinity and NaN have an exponent of their own.
inline float from_f16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fff) << 13;
  if (magnitude >= 0x7c00u << 13) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x7fffffu));
  return std::bit_cast<float>(std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f) | sign);
}

}  // namespace carpool::capi
