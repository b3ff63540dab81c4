// Activations quantised to int8, the other factor of the integer dot products.
//
// A row of K floats becomes signed codes -127..127 in blocks of 128 with one float32 scale each (largest magnitude /
// 127, rounding to nearest even), and the sums of the codes of every 16 and of every 32, with which kernels correct for
// weight codes that are stored unsigned. The last block may be short; codes past K are zeros. A block whose largest
// magnitude is below 1e-30 is all zeros. One with a value that is not finite gets the scale NaN, so that every output
// it touches says so. Quantised per row: a row is a row.
#pragma once

#include <cstddef>
#include <cstdint>

namespace carpool {

inline constexpr int kActivationBlock = 128;  // codes that share a scale
inline constexpr float kActivationZero = 1e-30f;

// Where the parts of a quantised row of K values lie: codes (int8), sums of 16 codes and sums of 32 codes (int32),
// scales (float32).
struct QuantizedRow {
  int64_t padded = 0;                         // K rounded up to whole blocks
  size_t sums16 = 0, sums32 = 0, scales = 0;  // byte offsets; codes are at 0
  size_t bytes = 0;                           // of the row, a multiple of 64

  explicit constexpr QuantizedRow(int64_t k)
      : padded((k + kActivationBlock - 1) / kActivationBlock * kActivationBlock),
        sums16(static_cast<size_t>(padded)),
        sums32(sums16 + static_cast<size_t>(padded / 16) * sizeof(int32_t)),
        scales(sums32 + static_cast<size_t>(padded / 32) * sizeof(int32_t)),
        bytes((scales + static_cast<size_t>(padded / kActivationBlock) * sizeof(float) + 63) / 64 * 64) {}
};

}  // namespace carpool
