// IQ4_XS: blocks of 256 values in 8 parts of 32; value = (d * scale) * level of the code, scales -32..31 per part, d a
// half per block, levels of iq4.h. All products but the one with the matrix's scale are exact.
//
// A stored block is d, a word with the upper 2 bits of the scales, 4 bytes with their nibbles, 128 bytes of codes: byte
// i of part p has column i in the low nibble and column 16 + i in the high one. Scales are stored 32 too large. The
// layout is that of GGUF files; the encoder is our own. Panels: see panels.h.
#include "tensor/formats/iq4.h"

namespace carpool {

extern const FormatCode kIQ4_XSCode;

namespace {

using namespace formats;

constexpr int kBlock = 256, kBlockBytes = 136, kUpper = 2, kLower = 4, kCodes = 8, kParts = 8, kPart = 32;
constexpr int kPanelBlock = 2208, kPanelPart = 272, kScales = 256, kD = 2176;

int scale_of(const uint8_t* block, int p) {
  const int low = block[kLower + p / 2] >> (p % 2 ? 4 : 0) & 15;
  return (low | (load<uint16_t>(block + kUpper) >> 2 * p & 3) << 4) - 32;
}

void decode(const WeightView& view, int64_t r, float* out) {
  const uint8_t* block = bytes_of(view.row(r));
  for (int64_t b = 0; b < view.cols / kBlock; ++b, block += kBlockBytes) {
    const float d = half_at(block);
    for (int p = 0; p < kParts; ++p, out += kPart) {
      const float step = d * static_cast<float>(scale_of(block, p));
      const Codes32 codes(block + kCodes + 16 * p, 0);
      for (int i = 0; i < kPart; ++i) out[i] = step * static_cast<float>(kIq4Levels[codes.code[i]]) * view.scale;
    }
  }
}

// The scale of largest magnitude is -32; the others are the nearest integers. Values beyond the range saturate.
void encode(const float* values, int64_t cols, void* out) {
  constexpr float kLargest = 65504.0f * 31.0f * 100.0f;
  uint8_t* block = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, block += kBlockBytes) {
    float x[kBlock], steps[kParts], extreme = 0;
    for (int i = 0; i < kBlock; ++i) x[i] = std::clamp(values[b * kBlock + i], -kLargest, kLargest);
    for (int p = 0; p < kParts; ++p) {
      steps[p] = iq4_scale(x + kPart * p);
      if (std::fabs(steps[p]) > std::fabs(extreme)) extreme = steps[p];
    }
    std::memset(block, 0, kBlockBytes);
    const uint16_t d = finite_half(extreme / -32.0f);
    store(block, d);
    const float inverse_d = inverse_of(f16_to_float(d));
    unsigned upper = 0;
    for (int p = 0; p < kParts; ++p) {
      const int scale = static_cast<int>(rounded(std::clamp(steps[p] * inverse_d, -32.0f, 31.0f)));
      upper |= static_cast<unsigned>(scale + 32) >> 4 << 2 * p;
      block[kLower + p / 2] |= static_cast<uint8_t>(((scale + 32) & 15) << (p % 2 ? 4 : 0));
      const float inverse = inverse_of(f16_to_float(d) * static_cast<float>(scale));
      uint8_t codes[kPart];
      for (int i = 0; i < kPart; ++i) codes[i] = static_cast<uint8_t>(iq4_nearest(x[kPart * p + i] * inverse));
      store_nibbles(codes, block + kCodes + 16 * p);
    }
    store(block + kUpper, static_cast<uint16_t>(upper));
  }
}

void pack(const WeightView& view, int64_t p, std::byte* out) {
  pack_blocks<kBlockBytes, kPanelBlock>(view, p, out, [](const uint8_t* block, int r, uint8_t* panel) {
    for (int i = 0; i < kParts; ++i) {
      pack_nibbles32(block + kCodes + 16 * i, r, panel + i * kPanelPart);
      panel[i * kPanelPart + kScales + r] = static_cast<uint8_t>(scale_of(block, i));
    }
    store(panel + kD + 2 * r, load<uint16_t>(block));
  });
}

void unpack(const PanelView& view, int64_t r, float* out) {
  const uint8_t* panel = panel_of(view, r);
  const int lane = panel_lane(r);
  for (int64_t b = 0; b < view.cols / kBlock; ++b, panel += kPanelBlock) {
    const float d = half_at(panel + kD + 2 * lane);
    for (int p = 0; p < kParts; ++p, out += kPart) {
      const uint8_t* part = panel + p * kPanelPart;
      const float step = d * static_cast<int8_t>(part[kScales + lane]);
      for (int c = 0; c < kPart; ++c) {
        out[c] = step * static_cast<float>(kIq4Levels[panel_nibble(part, lane, c)]) * panel_scale(view, r);
      }
    }
  }
}

// Scales are 16..31 of either sign.
void random(int64_t cols, uint64_t seed, std::byte* out) {
  constexpr float kScaleMeanSquare = 23.5f * 23.5f + (16.0f * 16.0f - 1.0f) / 12.0f;
  RandomBits bits(seed);
  const uint16_t d = float_to_f16(1.0f / std::sqrt(kIq4MeanSquare * kScaleMeanSquare * static_cast<float>(cols)));
  uint8_t* panel = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, panel += kPanelBlock) {
    for (int p = 0; p < kParts; ++p) {
      uint8_t* part = panel + p * kPanelPart;
      write_iq4_nibbles(bits, part, kScales);
      uint64_t choice = bits.next();
      for (int r = 0; r < kPanelRows; ++r, choice >>= 4) {
        const int magnitude = 16 + static_cast<int>(choice & 15);
        part[kScales + r] = static_cast<uint8_t>(r % 2 ? -magnitude : magnitude);
      }
    }
    for (int r = 0; r < kPanelRows; ++r) store(panel + kD + 2 * r, d);
  }
}

}  // namespace

constinit const FormatCode kIQ4_XSCode = {decode, encode, pack, unpack, random};

}  // namespace carpool
