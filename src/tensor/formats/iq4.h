// What IQ4_NL and IQ4_XS share: 16 levels that are closer together near 0, rounding to them, random codes.
#pragma once

#include "tensor/formats/halves.h"

namespace carpool::formats {

inline constexpr int8_t kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// The code whose level is nearest to `value`, which is in units of the scale.
inline int iq4_nearest(float value) {
  int code = 0;
  while (code < 15 && value > 0.5f * static_cast<float>(kIq4Levels[code] + kIq4Levels[code + 1])) ++code;
  return code;
}

// The scale of least squares for 32 values: starts around the one that makes the largest magnitude an end of the
// levels, each refined once. 0 for zeros.
inline float iq4_scale(const float* x) {
  float extreme = 0;
  for (int i = 0; i < 32; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  const auto error_of = [&](float scale) {
    const float inverse = inverse_of(scale);
    float sum = 0;
    for (int i = 0; i < 32; ++i) {
      const float e = scale * kIq4Levels[iq4_nearest(x[i] * inverse)] - x[i];
      sum += e * e;
    }
    return sum;
  };
  float best = extreme / kIq4Levels[0], least = error_of(best);
  for (int i = 0; i < 14; ++i) {
    const float start =
        extreme / (static_cast<float>(kIq4Levels[i < 7 ? 0 : 15]) * (0.88f + 0.04f * static_cast<float>(i % 7)));
    const float inverse = inverse_of(start);
    float xq = 0, qq = 0;
    for (int j = 0; j < 32; ++j) {
      const float level = kIq4Levels[iq4_nearest(x[j] * inverse)];
      xq += x[j] * level, qq += level * level;
    }
    const float error = error_of(xq / qq);  // no level is 0
    if (error < least) best = xq / qq, least = error;
  }
  return best;
}

// Random nibbles of eight codes whose levels have mean 0, and their mean square.
inline constexpr float kIq4MeanSquare = 57904.0f / 8.0f;
inline void write_iq4_nibbles(RandomBits& bits, uint8_t* out, int bytes) {
  static constexpr uint8_t kCodes[8] = {0, 2, 3, 4, 12, 13, 14, 15};
  for (int i = 0; i < bytes; i += 8) {
    uint64_t random = bits.next();
    for (int b = 0; b < 8; ++b, random >>= 6)
      out[i + b] = static_cast<uint8_t>(kCodes[random & 7] | kCodes[random >> 3 & 7] << 4);
  }
}

}  // namespace carpool::formats
