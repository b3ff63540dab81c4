// The encoder of formats with a step per part of a block, x ~ step * code with codes of either sign, rounded to small
// integers times one half of the block (Q3_K, Q6_K).
//
// A search as in affine_search.h, steps of either sign. Bytes are the formats' own business. Values beyond the range
// saturate.
#pragma once

#include "tensor/formats/common.h"

namespace carpool::formats {

// Blocks of 256 values in 16 parts; codes -kCodes..kCodes - 1, scales -kScales..kScales - 1.
template <int kCodes, int kScales>
class SymmetricSearch {
 public:
  static constexpr int kBlock = 256, kParts = 16, kPart = 16;

  // What a block stores, codes made unsigned, and the squared error of its values.
  struct Block {
    uint16_t d;
    int8_t scale[kParts];
    float error;
    uint8_t codes[kBlock];
  };

  static Block encode(const float* values) {
    constexpr float kLargest = 65504.0f * (kScales - 1) * (kCodes - 1);
    float x[kBlock];
    for (int i = 0; i < kBlock; ++i) x[i] = std::clamp(values[i], -kLargest, kLargest);
    float whole[kParts], fitted[kParts];
    for (int p = 0; p < kParts; ++p) whole[p] = whole_range(x + kPart * p), fitted[p] = least_squares(x + kPart * p);
    Block first = quantize(x, whole), second = quantize(x, fitted);
    Block& best = second.error <= first.error ? second : first;
    for (int c = 0; c < kBlock; c += 4) {
      const Float4 codes = codes_of(x + c, inverse_of(f16_to_float(best.d) * best.scale[c / kPart]));
      for (int i = 0; i < 4; ++i) best.codes[c + i] = static_cast<uint8_t>(static_cast<int>(codes[i]) + kCodes);
    }
    return best;
  }

 private:
  static Float4 codes_of(const float* x, float inverse) {
    return rounded(clamped(load<Float4>(x) * all(inverse), -kCodes, kCodes - 1));
  }

  static float squared_error(const float* x, float step) {
    const float inverse = inverse_of(step);
    return sum_of<kPart>([&](int i) {
      const Float4 error = all(step) * codes_of(x + i, inverse) - load<Float4>(x + i);
      return error * error;
    });
  }

  // The step that makes the value of largest magnitude -kCodes.
  static float whole_range(const float* x) {
    float extreme = x[0];
    for (int i = 1; i < kPart; ++i) {
      if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
    }
    return extreme / -kCodes;
  }

  // The step of least squares for the codes that `step` gives; `step` itself where those are all 0.
  static float refined(const float* x, float step) {
    const float inverse = inverse_of(step);
    Float4 q[kPart / 4];
    for (int i = 0; i < kPart; i += 4) q[i / 4] = codes_of(x + i, inverse);
    const float sum_xq = sum_of<kPart>([&](int i) { return load<Float4>(x + i) * q[i / 4]; });
    const float sum_qq = sum_of<kPart>([&](int i) { return q[i / 4] * q[i / 4]; });
    return sum_qq > 0 ? sum_xq / sum_qq : step;
  }

  // The best of several starts around the whole range, of either sign, each refined.
  static float least_squares(const float* x) {
    const float whole = whole_range(x);
    float best = whole, least = squared_error(x, whole);
    for (int i = 0; i < 10; ++i) {
      const float stretch = kCodes / (kCodes - 1.5f + 0.5f * static_cast<float>(i % 5));
      const float step = refined(x, i < 5 ? whole * stretch : -whole * stretch);
      const float error = squared_error(x, step);
      if (error < least) best = step, least = error;
    }
    return best;
  }

  // Rounds `steps`: that of largest magnitude is -kScales; the others are the best of the nearest integers and their
  // neighbours.
  static Block quantize(const float* x, const float* steps) {
    float extreme = steps[0];
    for (int p = 1; p < kParts; ++p) {
      if (std::fabs(steps[p]) > std::fabs(extreme)) extreme = steps[p];
    }
    Block out{finite_half(extreme / -kScales), {}, 0, {}};
    const float d = f16_to_float(out.d), inverse = inverse_of(d);
    constexpr float kLow = -kScales, kHigh = kScales - 1;
    for (int p = 0; p < kParts; ++p) {
      const int nearest = static_cast<int>(rounded(std::clamp(steps[p] * inverse, kLow, kHigh)));
      float least = std::numeric_limits<float>::infinity();
      for (const int s : {nearest, std::max(nearest - 1, -kScales), std::min(nearest + 1, kScales - 1)}) {
        const float error = squared_error(x + kPart * p, d * static_cast<float>(s));
        if (error < least) least = error, out.scale[p] = static_cast<int8_t>(s);
      }
      out.error += least;
    }
    return out;
  }
};

}  // namespace carpool::formats
