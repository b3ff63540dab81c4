// What the 4-bit float formats share: rounding to E2M1, panels of E2M1 nibbles, and random block scales of one byte.
#pragma once

#include "tensor/formats/common.h"

namespace carpool::formats {

// The E2M1 code whose value times `scale` (positive, few significant bits, so that products below are exact) is
// nearest to `value`; a tie goes to the smaller magnitude, what rounds to zero is +0, beyond 6 is 6.
inline uint8_t e2m1_of(float value, float scale) {
  const float m = std::fabs(value);
  const int code = (m > 0.25f * scale) + (m > 0.75f * scale) + (m > 1.25f * scale) + (m > 1.75f * scale) +
                   (m > 2.5f * scale) + (m > 3.5f * scale) + (m > 5.0f * scale);
  return static_cast<uint8_t>(code != 0 && value < 0 ? code | 8 : code);
}

// The value of a code in a block. The code 8 (-0) is +0, as in GGUF's tables of integers.
inline float e2m1_value(int code, float scale) {
  return code == 8 ? 0.0f * scale : e2m1_to_float(static_cast<uint8_t>(code)) * scale;
}

// Mean square of the 16 codes.
inline constexpr float kE2M1MeanSquare = (0.25f + 1.0f + 2.25f + 4.0f + 9.0f + 16.0f + 36.0f) / 8.0f;

// Scale bytes of random blocks. Codes of one byte are coarse, so blocks take one of two neighbouring codes, in such a
// share that the mean square of all values is 1 / cols.
class RandomScaleBytes {
 public:
  // value_of(code) is increasing for codes 0..last.
  template <class ValueOf>
  RandomScaleBytes(int64_t cols, int last, ValueOf value_of) {
    const float wanted = 1.0f / std::sqrt(kE2M1MeanSquare * static_cast<float>(cols));
    int code = 0;
    while (code + 1 < last && value_of(static_cast<uint8_t>(code + 1)) <= wanted) ++code;
    lower_ = static_cast<uint8_t>(code);
    const float low = value_of(lower_), high = value_of(static_cast<uint8_t>(code + 1));
    upper_of_256_ = std::lround(256.0f * (wanted * wanted - low * low) / (high * high - low * low));
  }
  // Writes the scales of the 16 rows of a block.
  void write(RandomBits& bits, uint8_t* out) const {
    for (int half = 0; half < 2; ++half) {
      uint64_t chances = bits.next();
      for (int r = 0; r < 8; ++r, chances >>= 8) {
        out[8 * half + r] = static_cast<uint8_t>(lower_ + (static_cast<int64_t>(chances & 255) < upper_of_256_));
      }
    }
  }

 private:
  uint8_t lower_;
  int64_t upper_of_256_;
};

}  // namespace carpool::formats
