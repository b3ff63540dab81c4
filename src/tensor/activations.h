// Activations quantised to int8, the other factor of the integer dot products.
//
// A row of K floats becomes signed codes -127..127 in blocks of 128 with one float32 scale each (largest magnitude /
// 127, rounding to nearest even), and the sum of the codes of every 16, from which kernels take away what an unsigned
// weight code is too large. The last block may be short; codes past K are zeros. A block with a value that is not
// finite gets the scale NaN, so that every output it touches says so. Quantised per row: a row is a row.
#pragma once

#include <cstddef>
#include <cstdint>

namespace carpool {

inline constexpr int kActivationBlock = 128;  // codes that share a scale
inline constexpr int kActivationSum = 16;     // codes that share a sum

// Where the parts of a quantised row of K values lie: codes, then scales (float32), then sums (int32).
struct QuantizedRow {
  int64_t padded = 0;  // K rounded up to whole blocks
  size_t scales = 0, sums = 0;  // byte offsets; codes are at 0
  size_t bytes = 0;             // of the row, a multiple of 64

  explicit constexpr QuantizedRow(int64_t k)
      : padded((k + kActivationBlock - 1) / kActivationBlock * kActivationBlock),
        scales(static_cast<size_t>(padded)),
        sums(scales + static_cast<size_t>(padded / kActivationBlock) * sizeof(float)),
        bytes((sums + static_cast<size_t>(padded / kActivationSum) * sizeof(int32_t) + 63) / 64 * 64) {}
};

}  // namespace carpool
