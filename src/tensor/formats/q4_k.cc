// Q4_K: blocks of 256 values in 8 parts of 32; value = (d * scale) * code - dmin * minimum, codes 0..15, scales and
// minima 0..63 per part, d and dmin halves per block.
//
// A stored block is d, dmin, 12 bytes of scales and minima, 128 bytes of codes: byte i of 32-byte group g has column i
// of part 2g in the low nibble and of part 2g + 1 in the high one. The layout and the order of roundings are those of
// GGUF files; the encoder is our own. Panels: see panels.h.
#include "tensor/formats/affine_search.h"

namespace carpool {

extern const FormatCode kQ4_KCode;

namespace {

using namespace formats;

constexpr int kBlock = 256, kBlockBytes = 144, kCodes = 16, kParts = 8, kPart = 32;
constexpr int kPanelBlock = 2368, kPanelPart = 288, kScales = 256, kMinima = 272, kD = 2304, kDMin = 2336;

using Search = AffineSearch<kParts, 15, 63>;

float value_of(float step, int code, float offset) { return step * static_cast<float>(code) - offset; }

void decode(const WeightView& view, int64_t r, float* out) {
  const uint8_t* block = bytes_of(view.row(r));
  for (int64_t b = 0; b < view.cols / kBlock; ++b, block += kBlockBytes) {
    const float d = half_at(block), dmin = half_at(block + 2);
    const SixBitScales s = SixBitScales::unpack(block + 4);
    for (int part = 0; part < kParts; ++part, out += kPart) {
      const float step = d * s.scale[part], offset = dmin * s.minimum[part];
      const uint8_t* codes = block + kCodes + 32 * (part / 2);
      for (int i = 0; i < kPart; ++i) {
        out[i] = value_of(step, part % 2 ? codes[i] >> 4 : codes[i] & 15, offset) * view.scale;
      }
    }
  }
}

void encode(const float* values, int64_t cols, void* out) {
  uint8_t* block = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, block += kBlockBytes) {
    const Search::Block best = Search::encode(values + b * kBlock);
    store(block, best.d);
    store(block + 2, best.dmin);
    pack_six_bits(best.scale, best.minimum, block + 4);
    std::memset(block + kCodes, 0, kBlockBytes - kCodes);
    for (int c = 0; c < kBlock; ++c) {
      const int p = c / kPart;
      block[kCodes + 32 * (p / 2) + c % kPart] |= static_cast<uint8_t>(best.codes[c] << (p % 2 ? 4 : 0));
    }
  }
}

void pack(const WeightView& view, int64_t p, std::byte* out) {
  pack_blocks<kBlockBytes, kPanelBlock>(view, p, out, [](const uint8_t* block, int r, uint8_t* panel) {
    const SixBitScales s = SixBitScales::unpack(block + 4);
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
