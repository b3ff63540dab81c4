// The encoder of formats with an affine fit per part of a block: x ~ step * code - offset, both at least 0, rounded to
// small integers times two halves of the block (Q2_K, Q4_K, Q5_K).
//
// A search: fits of several ranges are refined by least squares, then steps and offsets are rounded to the best
// neighbours. Bytes are the formats' own business. Values beyond what the halves reach saturate.
#pragma once

#include "tensor/formats/common.h"

namespace carpool::formats {

// Blocks of 256 values in kParts parts; codes 0..kTop, scales and minima 0..kTopScale.
template <int kParts, int kTop, int kTopScale>
class AffineSearch {
 public:
  static constexpr int kBlock = 256, kPart = kBlock / kParts;

  // What a block stores, and the squared error of its values.
  struct Block {
    uint16_t d, dmin;
    uint8_t scale[kParts], minimum[kParts];
    float error;
    uint8_t codes[kBlock];
  };

  static Block encode(const float* values) {
    constexpr float kLargest = 65504.0f * kTopScale;
    float x[kBlock];
    for (int i = 0; i < kBlock; ++i) x[i] = std::clamp(values[i], -kLargest, kLargest);
    Fit whole[kParts], fitted[kParts];
    for (int p = 0; p < kParts; ++p) whole[p] = whole_range(x + kPart * p), fitted[p] = least_squares(x + kPart * p);
    Block first = quantize(x, whole), second = quantize(x, fitted);
    Block& best = second.error <= first.error ? second : first;
    write_codes(x, best);
    return best;
  }

 private:
  struct Fit {
    float step, offset;
  };

  // Codes of four values.
  static Float4 codes_of(const float* x, float inverse, float offset) {
    return rounded(clamped((load<Float4>(x) + all(offset)) * all(inverse), 0.0f, kTop));
  }

  static float squared_error(const float* x, Fit fit) {
    const float inverse = inverse_of(fit.step);
    return sum_of<kPart>([&](int i) {
      const Float4 value = all(fit.step) * codes_of(x + i, inverse, fit.offset) - all(fit.offset);
      const Float4 error = value - load<Float4>(x + i);
      return error * error;
    });
  }

  // From the smallest value to the largest in kTop steps.
  static Fit whole_range(const float* x) {
    float low = 0, high = x[0];
    for (int i = 0; i < kPart; ++i) low = std::min(low, x[i]), high = std::max(high, x[i]);
    return {(high - low) / kTop, -low};
  }

  // Step and offset of least squares for the codes that `fit` gives; `fit` itself where those are all the same.
  static Fit refined(const float* x, Fit fit) {
    const float inverse = inverse_of(fit.step);
    Float4 q[kPart / 4];
    for (int i = 0; i < kPart; i += 4) q[i / 4] = codes_of(x + i, inverse, fit.offset);
    const float sum_q = sum_of<kPart>([&](int i) { return q[i / 4]; });
    const float sum_qq = sum_of<kPart>([&](int i) { return q[i / 4] * q[i / 4]; });
    const float sum_x = sum_of<kPart>([&](int i) { return load<Float4>(x + i); });
    const float sum_xq = sum_of<kPart>([&](int i) { return load<Float4>(x + i) * q[i / 4]; });
    const float det = kPart * sum_qq - sum_q * sum_q;
    if (det <= 0) return fit;
    const Fit best{(kPart * sum_xq - sum_x * sum_q) / det, (sum_q * sum_xq - sum_qq * sum_x) / det};
    if (best.offset >= 0) return {std::max(best.step, 0.0f), best.offset};
    return {std::max(sum_xq / sum_qq, 0.0f), 0};  // offsets are not negative
  }

  // The best of several starts: ranges from a little wider to narrower than the values (the outermost are then
  // clipped), each refined.
  static Fit least_squares(const float* x) {
    const Fit whole = whole_range(x);
    Fit best = whole;
    float least = squared_error(x, whole);
    for (int i = 0; i < 8; ++i) {
      const float stretch = kTop / (kTop - 1.4f + 0.4f * static_cast<float>(i));
      const Fit fit = refined(x, {whole.step * stretch, whole.offset * std::min(stretch, 1.0f)});
      const float error = squared_error(x, fit);
      if (error < least) best = fit, least = error;
    }
    return best;
  }

  // Rounds `fits`: the largest is kTopScale; the others are the best of the nearest integers and their neighbours.
  static Block quantize(const float* x, const Fit* fits) {
    constexpr float kMost = kTopScale;
    float step = 0, offset = 0;
    for (int p = 0; p < kParts; ++p) step = std::max(step, fits[p].step), offset = std::max(offset, fits[p].offset);
    Block out{finite_half(step / kMost), finite_half(offset / kMost), {}, {}, 0, {}};
    const float d = f16_to_float(out.d), dmin = f16_to_float(out.dmin);
    const float inverse_d = inverse_of(d), inverse_dmin = inverse_of(dmin);
    for (int p = 0; p < kParts; ++p) {
      const int scale = static_cast<int>(rounded(std::min(fits[p].step * inverse_d, kMost)));
      const int minimum = static_cast<int>(rounded(std::min(fits[p].offset * inverse_dmin, kMost)));
      float least = std::numeric_limits<float>::infinity();
      for (const int s : {scale, std::max(scale - 1, 0), std::min(scale + 1, kTopScale)}) {
        for (const int m : {minimum, std::max(minimum - 1, 0), std::min(minimum + 1, kTopScale)}) {
          const float error = squared_error(x + kPart * p, {d * static_cast<float>(s), dmin * static_cast<float>(m)});
          if (error >= least) continue;
          least = error;
          out.scale[p] = static_cast<uint8_t>(s), out.minimum[p] = static_cast<uint8_t>(m);
        }
      }
      out.error += least;
    }
    return out;
  }

  static void write_codes(const float* x, Block& block) {
    for (int c = 0; c < kBlock; c += 4) {
      const float inverse = inverse_of(f16_to_float(block.d) * block.scale[c / kPart]);
      const Float4 codes = codes_of(x + c, inverse, f16_to_float(block.dmin) * block.minimum[c / kPart]);
      for (int i = 0; i < 4; ++i) block.codes[c + i] = static_cast<uint8_t>(codes[i]);
    }
  }
};

// 6-bit scales and minima of 8 parts in 12 bytes, as Q4_K and Q5_K store them. Of parts 0..3 they are the low 6 bits of
// bytes 0..3 and 4..7, whose upper 2 bits are the upper bits of parts 4..7; the lower 4 bits of those are the nibbles
// of bytes 8..11.
struct SixBitScales {
  uint8_t scale[8], minimum[8];

  static SixBitScales unpack(const uint8_t* packed) {
    SixBitScales out;
    for (int i = 0; i < 4; ++i) {
      out.scale[i] = packed[i] & 63;
      out.minimum[i] = packed[4 + i] & 63;
      out.scale[4 + i] = static_cast<uint8_t>((packed[8 + i] & 15) | (packed[i] >> 6) << 4);
      out.minimum[4 + i] = static_cast<uint8_t>(packed[8 + i] >> 4 | (packed[4 + i] >> 6) << 4);
    }
    return out;
  }
};

inline void pack_six_bits(const uint8_t* scale, const uint8_t* minimum, uint8_t* packed) {
  for (int i = 0; i < 4; ++i) {
    packed[i] = static_cast<uint8_t>(scale[i] | (scale[4 + i] >> 4) << 6);
    packed[4 + i] = static_cast<uint8_t>(minimum[i] | (minimum[4 + i] >> 4) << 6);
    packed[8 + i] = static_cast<uint8_t>((scale[4 + i] & 15) | (minimum[4 + i] & 15) << 4);
  }
}

}  // namespace carpool::formats
