// Q5_K: blocks of 256 values in 8 parts of 32; value = (d * scale) * code - dmin * minimum, codes 0..31, scales and
// minima 0..63 per part, d and dmin halves per block.
//
// A stored block is d, dmin, 12 bytes of scales and minima, 32 bytes of upper bits and 128 of lower ones. Bit p of
// upper byte i is of column i of part p; byte i of 32-byte group g of the others has column i of part 2g in the low
// nibble and of part 2g + 1 in the high one. The layout and the order of roundings are those of GGUF files; the encoder
// is our own. Panels: see panels.h.
#include "tensor/formats/affine_search.h"
#include "tensor/formats/halves.h"

namespace carpool {

extern const FormatCode kQ5_KCode;

namespace {

using namespace formats;

constexpr int kBlock = 256, kBlockBytes = 176, kPacked = 4, kUpper = 16, kLower = 48, kParts = 8, kPart = 32;
constexpr int kPanelBlock = 2880, kPanelPart = 352, kPanelUpper = 256, kScales = 320, kMinima = 336, kD = 2816,
              kDMin = 2848;

using Search = AffineSearch<kParts, 31, 63>;

float value_of(float step, int code, float offset) { return step * static_cast<float>(code) - offset; }

int code_of(const uint8_t* block, int p, int i) {
  const uint8_t lower = block[kLower + 32 * (p / 2) + i];
  return (p % 2 ? lower >> 4 : lower & 15) | (block[kUpper + i] >> p & 1) << 4;
}

void decode(const WeightView& view, int64_t r, float* out) {
  const uint8_t* block = bytes_of(view.row(r));
  for (int64_t b = 0; b < view.cols / kBlock; ++b, block += kBlockBytes) {
    const float d = half_at(block), dmin = half_at(block + 2);
    const SixBitScales s = SixBitScales::unpack(block + kPacked);
    for (int p = 0; p < kParts; ++p, out += kPart) {
      const float step = d * s.scale[p], offset = dmin * s.minimum[p];
      for (int i = 0; i < kPart; ++i) out[i] = value_of(step, code_of(block, p, i), offset) * view.scale;
    }
  }
}

void encode(const float* values, int64_t cols, void* out) {
  uint8_t* block = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, block += kBlockBytes) {
    const Search::Block best = Search::encode(values + b * kBlock);
    std::memset(block, 0, kBlockBytes);
    store(block, best.d);
    store(block + 2, best.dmin);
    pack_six_bits(best.scale, best.minimum, block + kPacked);
    for (int c = 0; c < kBlock; ++c) {
      const int p = c / kPart, i = c % kPart;
      block[kLower + 32 * (p / 2) + i] |= static_cast<uint8_t>((best.codes[c] & 15) << (p % 2 ? 4 : 0));
      block[kUpper + i] |= static_cast<uint8_t>(best.codes[c] >> 4 << p);
    }
  }
}

void pack(const WeightView& view, int64_t p, std::byte* out) {
  pack_blocks<kBlockBytes, kPanelBlock>(view, p, out, [](const uint8_t* block, int r, uint8_t* panel) {
    const SixBitScales s = SixBitScales::unpack(block + kPacked);
    for (int i = 0; i < kParts; ++i) {
      uint8_t* part = panel + i * kPanelPart;
      for (int j = 0; j < 4; ++j) {
        const uint64_t nibbles = load<uint64_t>(block + kLower + 32 * (i / 2) + 8 * j);
        store(part + 64 * j + 4 * r, paired((i % 2 ? nibbles >> 4 : nibbles) & kLowNibbles));
      }
      store(part + kPanelUpper + 4 * r, spread_bits(bits_of(block + kUpper, i)));
      part[kScales + r] = s.scale[i];
      part[kMinima + r] = s.minimum[i];
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
        const int code = panel_nibble(part, lane, c) | panel_bit(part + kPanelUpper, lane, c) << 4;
        out[c] = value_of(step, code, offset) * panel_scale(view, r);
      }
    }
  }
}

// Lower bits 1..15 about 8 and any upper bits, so codes are 1..31 about 16: every minimum equals its scale, and dmin =
// 16 d, exactly. Scales are 32..63.
void random(int64_t cols, uint64_t seed, std::byte* out) {
  constexpr float kScaleMeanSquare = 47.5f * 47.5f + (32.0f * 32.0f - 1.0f) / 12.0f;
  RandomBits bits(seed);
  const float square = (kNibbleMeanSquare + 64.0f) * kScaleMeanSquare * static_cast<float>(cols);
  const uint16_t d = float_to_f16(1.0f / std::sqrt(square));
  const uint16_t dmin = float_to_f16(16.0f * f16_to_float(d));
  uint8_t* panel = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, panel += kPanelBlock) {
    for (int p = 0; p < kParts; ++p) {
      uint8_t* part = panel + p * kPanelPart;
      write_nibbles(bits, part, kPanelUpper);
      write_random(bits, part + kPanelUpper, kScales - kPanelUpper);
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

constinit const FormatCode kQ5_KCode = {decode, encode, pack, unpack, random};

}  // namespace carpool
