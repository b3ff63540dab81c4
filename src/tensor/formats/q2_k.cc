// Q2_K: blocks of 256 values in 16 parts of 16; value = (d * scale) * code - dmin * minimum, codes 0..3, scales and
// minima 0..15 per part, d and dmin halves per block.
//
// A stored block is 16 bytes with the scale of a part in the low nibble and its minimum in the high one, 64 bytes of
// codes (two_bits.h), d, dmin. The layout and the order of roundings are those of GGUF files; the encoder is our own.
// Panels: see panels.h.
#include "tensor/formats/affine_search.h"
#include "tensor/formats/two_bits.h"

namespace carpool {

extern const FormatCode kQ2_KCode;

namespace {

using namespace formats;

constexpr int kBlock = 256, kBlockBytes = 84, kCodes = 16, kStoredD = 80, kParts = 16, kPart = 16;
constexpr int kPanelBlock = 1344, kPanelPart = 80, kScales = 64, kD = 1280, kDMin = 1312;

using Search = AffineSearch<kParts, 3, 15>;

float value_of(float step, int code, float offset) { return step * static_cast<float>(code) - offset; }

void decode(const WeightView& view, int64_t r, float* out) {
  const uint8_t* block = bytes_of(view.row(r));
  for (int64_t b = 0; b < view.cols / kBlock; ++b, block += kBlockBytes, out += kBlock) {
    const float d = half_at(block + kStoredD), dmin = half_at(block + kStoredD + 2);
    for (int c = 0; c < kBlock; ++c) {
      const uint8_t scales = block[c / kPart];
      const TwoBitPlace at(c);
      const int code = block[kCodes + at.byte] >> at.shift & 3;
      out[c] = value_of(d * static_cast<float>(scales & 15), code, dmin * static_cast<float>(scales >> 4)) * view.scale;
    }
  }
}

void encode(const float* values, int64_t cols, void* out) {
  uint8_t* block = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, block += kBlockBytes) {
    const Search::Block best = Search::encode(values + b * kBlock);
    std::memset(block, 0, kBlockBytes);
    for (int p = 0; p < kParts; ++p) block[p] = static_cast<uint8_t>(best.scale[p] | best.minimum[p] << 4);
    for (int c = 0; c < kBlock; ++c) {
      const TwoBitPlace at(c);
      block[kCodes + at.byte] |= static_cast<uint8_t>(best.codes[c] << at.shift);
    }
    store(block + kStoredD, best.d);
    store(block + kStoredD + 2, best.dmin);
  }
}

void pack(const WeightView& view, int64_t p, std::byte* out) {
  pack_blocks<kBlockBytes, kPanelBlock>(view, p, out, [](const uint8_t* block, int r, uint8_t* panel) {
    for (int i = 0; i < kParts; ++i) {
      store(panel + i * kPanelPart + 4 * r, two_bit_word(block + kCodes, kPart * i));
      panel[i * kPanelPart + kScales + r] = block[i];
    }
    store(panel + kD + 2 * r, load<uint16_t>(block + kStoredD));
    store(panel + kDMin + 2 * r, load<uint16_t>(block + kStoredD + 2));
  });
}

void unpack(const PanelView& view, int64_t r, float* out) {
  const uint8_t* panel = panel_of(view, r);
  const int lane = panel_lane(r);
  for (int64_t b = 0; b < view.cols / kBlock; ++b, panel += kPanelBlock) {
    const float d = half_at(panel + kD + 2 * lane), dmin = half_at(panel + kDMin + 2 * lane);
    for (int p = 0; p < kParts; ++p, out += kPart) {
      const uint8_t* part = panel + p * kPanelPart;
      const uint8_t scales = part[kScales + lane];
      const float step = d * static_cast<float>(scales & 15), offset = dmin * static_cast<float>(scales >> 4);
      for (int c = 0; c < kPart; ++c) {
        out[c] = value_of(step, panel_two_bits(part, lane, c), offset) * panel_scale(view, r);
      }
    }
  }
}

// Every minimum equals its scale, and dmin = 1.5 d, exactly: values are -1.5, -0.5, 0.5, 1.5 steps. Scales are 8..15.
void random(int64_t cols, uint64_t seed, std::byte* out) {
  constexpr float kCodeMeanSquare = 1.25f, kScaleMeanSquare = 11.5f * 11.5f + (8.0f * 8.0f - 1.0f) / 12.0f;
  RandomBits bits(seed);
  // Two of the eleven bits of a half stay free, so that 1.5 d is a half too.
  const float wanted = 1.0f / std::sqrt(kCodeMeanSquare * kScaleMeanSquare * static_cast<float>(cols));
  const auto d = static_cast<uint16_t>(float_to_f16(wanted) & ~3);
  const uint16_t dmin = float_to_f16(1.5f * f16_to_float(d));
  uint8_t* panel = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, panel += kPanelBlock) {
    for (int p = 0; p < kParts; ++p) {
      uint8_t* part = panel + p * kPanelPart;
      write_random(bits, part, kScales);
      for (int i = 0; i < kPanelRows; i += 8) {
        const uint64_t scales = (bits.next() & 0x0707070707070707u) | 0x0808080808080808u;
        store(part + kScales + i, scales | scales << 4);
      }
    }
    for (int r = 0; r < kPanelRows; ++r) store(panel + kD + 2 * r, d), store(panel + kDMin + 2 * r, dmin);
  }
}

}  // namespace

constinit const FormatCode kQ2_KCode = {decode, encode, pack, unpack, random};

}  // namespace carpool
