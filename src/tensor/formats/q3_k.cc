// Q3_K: blocks of 256 values in 16 parts of 16; value = (d * scale) * (code - 4), codes 0..7, scales -32..31 per part,
// d a half per block. All products but the one with the matrix's scale are exact.
//
// A stored block is 32 bytes of upper bits, 64 bytes of lower ones (two_bits.h), 12 bytes of scales, d. Bit g of upper
// byte i is of column 32 g + i. Scales are 32 too large: the low nibble of byte p and the upper bits 2 (p / 4) of byte
// 8
// + p % 4 of part p < 8, the high nibble of byte p - 8 beyond. The layout is that of GGUF files; the encoder is our
// own. Panels: see panels.h.
#include "tensor/formats/halves.h"
#include "tensor/formats/symmetric_search.h"
#include "tensor/formats/two_bits.h"

namespace carpool {

extern const FormatCode kQ3_KCode;

namespace {

using namespace formats;

constexpr int kBlock = 256, kBlockBytes = 110, kLower = 32, kPacked = 96, kStoredD = 108, kParts = 16, kPart = 16;
constexpr int kPanelBlock = 1824, kPanelPair = 224, kPanelUpper = 128, kScales = 192, kD = 1792;

using Search = SymmetricSearch<4, 32>;

float value_of(float step, int code) { return step * static_cast<float>(code - 4); }

int scale_of(const uint8_t* block, int p) {
  const uint8_t* packed = block + kPacked;
  const int low = p < 8 ? packed[p] & 15 : packed[p - 8] >> 4;
  return (low | (packed[8 + p % 4] >> 2 * (p / 4) & 3) << 4) - 32;
}

void decode(const WeightView& view, int64_t r, float* out) {
  const uint8_t* block = bytes_of(view.row(r));
  for (int64_t b = 0; b < view.cols / kBlock; ++b, block += kBlockBytes, out += kBlock) {
    const float d = half_at(block + kStoredD);
    for (int c = 0; c < kBlock; ++c) {
      const TwoBitPlace at(c);
      const int code = (block[kLower + at.byte] >> at.shift & 3) | (block[c % 32] >> (c / 32) & 1) << 2;
      out[c] = value_of(d * static_cast<float>(scale_of(block, c / kPart)), code) * view.scale;
    }
  }
}

void encode(const float* values, int64_t cols, void* out) {
  uint8_t* block = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, block += kBlockBytes) {
    const Search::Block best = Search::encode(values + b * kBlock);
    std::memset(block, 0, kBlockBytes);
    for (int c = 0; c < kBlock; ++c) {
      const TwoBitPlace at(c);
      block[kLower + at.byte] |= static_cast<uint8_t>((best.codes[c] & 3) << at.shift);
      block[c % 32] |= static_cast<uint8_t>(best.codes[c] >> 2 << (c / 32));
    }
    for (int p = 0; p < kParts; ++p) {
      const int scale = best.scale[p] + 32;
      block[kPacked + p % 8] |= static_cast<uint8_t>((scale & 15) << (p < 8 ? 0 : 4));
      block[kPacked + 8 + p % 4] |= static_cast<uint8_t>(scale >> 4 << 2 * (p / 4));
    }
    store(block + kStoredD, best.d);
  }
}

void pack(const WeightView& view, int64_t p, std::byte* out) {
  pack_blocks<kBlockBytes, kPanelBlock>(view, p, out, [](const uint8_t* block, int r, uint8_t* panel) {
    for (int pair = 0; pair < kParts / 2; ++pair) {
      uint8_t* to = panel + pair * kPanelPair;
      for (int i = 0; i < 2; ++i) {
        store(to + 64 * i + 4 * r, two_bit_word(block + kLower, 32 * pair + 16 * i));
        to[kScales + kPanelRows * i + r] = static_cast<uint8_t>(scale_of(block, 2 * pair + i));
      }
      store(to + kPanelUpper + 4 * r, spread_bits(bits_of(block, pair)));
    }
    store(panel + kD + 2 * r, load<uint16_t>(block + kStoredD));
  });
}

void unpack(const PanelView& view, int64_t r, float* out) {
  const uint8_t* panel = panel_of(view, r);
  const int lane = panel_lane(r);
  for (int64_t b = 0; b < view.cols / kBlock; ++b, panel += kPanelBlock) {
    const float d = half_at(panel + kD + 2 * lane);
    for (int c = 0; c < kBlock; ++c) {
      const uint8_t* pair = panel + c / 32 * kPanelPair;
      const int half = c % 32 / kPart;
      const float step = d * static_cast<int8_t>(pair[kScales + kPanelRows * half + lane]);
      const int lower = panel_two_bits(pair + 64 * half, lane, c % kPart);
      const int code = lower | panel_bit(pair + kPanelUpper, lane, c % 32) << 2;
      *out++ = value_of(step, code) * panel_scale(view, r);
    }
  }
}

// Codes 1, 3, 5, 7, which are symmetric about 4. Scales are 16..31 of either sign.
void random(int64_t cols, uint64_t seed, std::byte* out) {
  constexpr float kCodeMeanSquare = 5.0f;
  constexpr float kScaleMeanSquare = 23.5f * 23.5f + (16.0f * 16.0f - 1.0f) / 12.0f;
  RandomBits bits(seed);
  const uint16_t d = float_to_f16(1.0f / std::sqrt(kCodeMeanSquare * kScaleMeanSquare * static_cast<float>(cols)));
  uint8_t* panel = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, panel += kPanelBlock) {
    for (int pair = 0; pair < kParts / 2; ++pair) {
      uint8_t* to = panel + pair * kPanelPair;
      for (int i = 0; i < kPanelUpper; i += 8) store(to + i, bits.next() | 0x5555555555555555u);
      write_random(bits, to + kPanelUpper, kScales - kPanelUpper);
      for (int i = 0; i < 2 * kPanelRows; i += 8) {
        uint64_t choice = bits.next();
        for (int r = 0; r < 8; ++r, choice >>= 8) {
          const int magnitude = 16 + static_cast<int>(choice & 15);
          to[kScales + i + r] = static_cast<uint8_t>(choice & 128 ? -magnitude : magnitude);
        }
      }
    }
    for (int r = 0; r < kPanelRows; ++r) store(panel + kD + 2 * r, d);
  }
}

}  // namespace

constinit const FormatCode kQ3_KCode = {decode, encode, pack, unpack, random};

}  // namespace carpool
