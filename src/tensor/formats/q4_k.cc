// Q4_K: blocks of 256 values in 8 parts of 32; value = (d * scale) * code - dmin * minimum, codes 0..15, scales and
// minima 0..63 per part, d and dmin halves per block.
//
// A stored block is d, dmin, 12 bytes of scales and minima, 128 bytes of codes: byte i of 32-byte group g has column i
// of part 2g in the low nibble and of part 2g + 1 in the high one. The layout and the order of roundings are those of
// GGUF files; the encoder is our own. Panels: see panels.h.
#include "tensor/formats/common.h"

namespace carpool {

extern const FormatCode kQ4_KCode;

namespace {

using namespace formats;

constexpr int kBlock = 256, kBlockBytes = 144, kCodes = 16, kParts = 8, kPart = 32;
constexpr int kPanelBlock = 2368, kPanelPart = 288, kScales = 256, kMinima = 272, kD = 2304, kDMin = 2336;

float value_of(float step, int code, float offset) { return step * static_cast<float>(code) - offset; }

// 6-bit scales and minima of 8 parts. Of parts 0..3 they are the low 6 bits of bytes 0..3 and 4..7, whose upper 2 bits
// are the upper bits of parts 4..7; the lower 4 bits of those are the nibbles of bytes 8..11.
struct Scales {
  uint8_t scale[kParts], minimum[kParts];
};

Scales unpack_scales(const uint8_t* packed) {
  Scales out;
  for (int i = 0; i < 4; ++i) {
    out.scale[i] = packed[i] & 63;
    out.minimum[i] = packed[4 + i] & 63;
    out.scale[4 + i] = static_cast<uint8_t>((packed[8 + i] & 15) | (packed[i] >> 6) << 4);
    out.minimum[4 + i] = static_cast<uint8_t>(packed[8 + i] >> 4 | (packed[4 + i] >> 6) << 4);
  }
  return out;
}

void pack_scales(const Scales& s, uint8_t* packed) {
  for (int i = 0; i < 4; ++i) {
    packed[i] = static_cast<uint8_t>(s.scale[i] | (s.scale[4 + i] >> 4) << 6);
    packed[4 + i] = static_cast<uint8_t>(s.minimum[i] | (s.minimum[4 + i] >> 4) << 6);
    packed[8 + i] = static_cast<uint8_t>((s.scale[4 + i] & 15) | (s.minimum[4 + i] & 15) << 4);
  }
}

void decode(const WeightView& view, int64_t r, float* out) {
  const uint8_t* block = bytes_of(view.row(r));
  for (int64_t b = 0; b < view.cols / kBlock; ++b, block += kBlockBytes) {
    const float d = half_at(block), dmin = half_at(block + 2);
    const Scales s = unpack_scales(block + 4);
    for (int part = 0; part < kParts; ++part, out += kPart) {
      const float step = d * s.scale[part], offset = dmin * s.minimum[part];
      const uint8_t* codes = block + kCodes + 32 * (part / 2);
      for (int i = 0; i < kPart; ++i) {
        out[i] = value_of(step, part % 2 ? codes[i] >> 4 : codes[i] & 15, offset) * view.scale;
      }
    }
  }
}

// An affine fit of a part, x ~ step * code - offset, both at least 0.
struct Fit {
  float step, offset;
};

// Codes of four values.
Float4 codes_of(const float* x, float inverse, float offset) {
  return rounded(clamped((load<Float4>(x) + all(offset)) * all(inverse), 0.0f, 15.0f));
}

float squared_error(const float* x, Fit fit) {
  const float inverse = inverse_of(fit.step);
  return sum_of<kPart>([&](int i) {
    const Float4 value = all(fit.step) * codes_of(x + i, inverse, fit.offset) - all(fit.offset);
    const Float4 error = value - load<Float4>(x + i);
    return error * error;
  });
}

// From the smallest value to the largest in 15 steps.
Fit whole_range(const float* x) {
  float low = 0, high = x[0];
  for (int i = 0; i < kPart; ++i) low = std::min(low, x[i]), high = std::max(high, x[i]);
  return {(high - low) / 15.0f, -low};
}

// Step and offset of least squares for the codes that `fit` gives; `fit` itself where those are all the same.
Fit refined(const float* x, Fit fit) {
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

// The best of several starts: ranges from a little wider to narrower than the values (the outermost are then clipped),
// each refined.
Fit least_squares(const float* x) {
  const Fit whole = whole_range(x);
  Fit best = whole;
  float least = squared_error(x, whole);
  for (int i = 0; i < 8; ++i) {
    const float stretch = 15.0f / (13.6f + 0.4f * static_cast<float>(i));
    const Fit fit = refined(x, {whole.step * stretch, whole.offset * std::min(stretch, 1.0f)});
    const float error = squared_error(x, fit);
    if (error < least) best = fit, least = error;
  }
  return best;
}

// What a block stores beside its codes, and the squared error of its values.
struct Block {
  uint16_t d, dmin;
  Scales scales;
  float error;
};

// Rounds `fits` to 6 bits: the largest is 63; the others are the best of the nearest integers and their neighbours.
Block quantize(const float* x, const Fit* fits) {
  float step = 0, offset = 0;
  for (int p = 0; p < kParts; ++p) step = std::max(step, fits[p].step), offset = std::max(offset, fits[p].offset);
  Block out{finite_half(step / 63.0f), finite_half(offset / 63.0f), {}, 0};
  const float d = f16_to_float(out.d), dmin = f16_to_float(out.dmin);
  const float inverse_d = inverse_of(d), inverse_dmin = inverse_of(dmin);
  for (int p = 0; p < kParts; ++p) {
    const int scale = static_cast<int>(rounded(std::min(fits[p].step * inverse_d, 63.0f)));
    const int minimum = static_cast<int>(rounded(std::min(fits[p].offset * inverse_dmin, 63.0f)));
    float least = std::numeric_limits<float>::infinity();
    for (const int s : {scale, std::max(scale - 1, 0), std::min(scale + 1, 63)}) {
      for (const int m : {minimum, std::max(minimum - 1, 0), std::min(minimum + 1, 63)}) {
        const float error = squared_error(x + kPart * p, {d * static_cast<float>(s), dmin * static_cast<float>(m)});
        if (error >= least) continue;
        least = error;
        out.scales.scale[p] = static_cast<uint8_t>(s), out.scales.minimum[p] = static_cast<uint8_t>(m);
      }
    }
    out.error += least;
  }
  return out;
}

void write_block(const float* x, const Block& best, uint8_t* out) {
  store(out, best.d);
  store(out + 2, best.dmin);
  pack_scales(best.scales, out + 4);
  std::memset(out + kCodes, 0, kBlockBytes - kCodes);
  for (int p = 0; p < kParts; ++p, x += kPart) {
    const float inverse = inverse_of(f16_to_float(best.d) * best.scales.scale[p]);
    const float offset = f16_to_float(best.dmin) * best.scales.minimum[p];
    for (int i = 0; i < kPart; i += 4) {
      const Float4 codes = codes_of(x + i, inverse, offset);
      for (int j = 0; j < 4; ++j) {
        const auto code = static_cast<uint8_t>(codes[j]);
        out[kCodes + 32 * (p / 2) + i + j] |= static_cast<uint8_t>(p % 2 ? code << 4 : code);
      }
    }
  }
}

// Values beyond what a minimum can reach saturate.
void encode(const float* values, int64_t cols, void* out) {
  constexpr float kLargest = 65504.0f * 63.0f;
  for (int64_t b = 0; b < cols / kBlock; ++b) {
    float x[kBlock];
    for (int i = 0; i < kBlock; ++i) x[i] = std::clamp(values[b * kBlock + i], -kLargest, kLargest);
    Fit whole[kParts], fitted[kParts];
    for (int p = 0; p < kParts; ++p) whole[p] = whole_range(x + kPart * p), fitted[p] = least_squares(x + kPart * p);
    const Block first = quantize(x, whole), second = quantize(x, fitted);
    write_block(x, second.error <= first.error ? second : first, bytes_of(out) + b * kBlockBytes);
  }
}

void pack(const WeightView& view, int64_t p, std::byte* out) {
  pack_blocks<kBlockBytes, kPanelBlock>(view, p, out, [](const uint8_t* block, int r, uint8_t* panel) {
    const Scales s = unpack_scales(block + 4);
    for (int pair = 0; pair < kParts / 2; ++pair) {
      uint8_t* low = panel + 2 * pair * kPanelPart;
      uint8_t* high = low + kPanelPart;
      for (int j = 0; j < 4; ++j) {
        const uint64_t nibbles = load<uint64_t>(block + kCodes + 32 * pair + 8 * j);
        store(low + 64 * j + 4 * r, paired(nibbles & kLowNibbles));
        store(high + 64 * j + 4 * r, paired(nibbles >> 4 & kLowNibbles));
      }
      low[kScales + r] = s.scale[2 * pair], low[kMinima + r] = s.minimum[2 * pair];
      high[kScales + r] = s.scale[2 * pair + 1], high[kMinima + r] = s.minimum[2 * pair + 1];
    }
    store(panel + kD + 2 * r, load<uint16_t>(block));
    store(panel + kDMin + 2 * r, load<uint16_t>(block + 2));
  });
}

void unpack(const PanelView& view, int64_t r, float* out) {
  const uint8_t* panel = panel_of(view, r);
  const int lane = panel_lane(r);
  for (int64_t b = 0; b < view.cols / kBlock; ++b, panel += kPanelBlock) {
    const float d = half_at(panel + kD + 2 * lane), dmin = half_at(panel + kDMin + 2 * lane);
    for (int p = 0; p < kParts; ++p, out += kPart) {
      const uint8_t* part = panel + p * kPanelPart;
      const float step = d * part[kScales + lane], offset = dmin * part[kMinima + lane];
      for (int c = 0; c < kPart; ++c) {
        out[c] = value_of(step, panel_nibble(part, lane, c), offset) * panel_scale(view, r);
      }
    }
  }
}

// Codes 1..15 about 8: every minimum equals its scale, and dmin = 8 d, exactly. Scales are 32..63.
void random(int64_t cols, uint64_t seed, std::byte* out) {
  constexpr float kScaleMeanSquare = 47.5f * 47.5f + (32.0f * 32.0f - 1.0f) / 12.0f;
  RandomBits bits(seed);
  const uint16_t d = float_to_f16(1.0f / std::sqrt(kNibbleMeanSquare * kScaleMeanSquare * static_cast<float>(cols)));
  const uint16_t dmin = float_to_f16(8.0f * f16_to_float(d));
  uint8_t* panel = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, panel += kPanelBlock) {
    for (int p = 0; p < kParts; ++p) {
      uint8_t* part = panel + p * kPanelPart;
      write_nibbles(bits, part, kScales);
      for (int i = 0; i < kPanelRows; i += 8) {
        const uint64_t scales = (bits.next() & 0x1f1f1f1f1f1f1f1fu) | 0x2020202020202020u;
        store(part + kScales + i, scales);
        store(part + kMinima + i, scales);
      }
    }
    for (int r = 0; r < kPanelRows; ++r) store(panel + kD + 2 * r, d), store(panel + kDMin + 2 * r, dmin);
  }
}

}  // namespace

constinit const FormatCode kQ4_KCode = {decode, encode, pack, unpack, random};

}  // namespace carpool
