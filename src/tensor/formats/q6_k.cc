// Q6_K: blocks of 256 values in 16 parts of 16; value = (d * scale) * (code - 32), codes 0..63, signed 8-bit scales per
// part, d a half per block. All products but the one with the matrix's scale are exact.
//
// A stored block is 128 bytes of lower 4 bits, 64 bytes of upper 2 bits, 16 scales, d. Either half of the columns has
// 64 and 32 of those bytes: byte i < 32 of the first has columns i and 64 + i of the half as low and high nibble, byte
// 32 + i columns 32 + i and 96 + i; byte i of the second has the upper bits of columns i, 32 + i, 64 + i, 96 + i,
// lowest first. The layout is that of GGUF files; the encoder is our own. Panels: see panels.h.
#include "tensor/formats/symmetric_search.h"

namespace carpool {

extern const FormatCode kQ6_KCode;

namespace {

using namespace formats;

constexpr int kBlock = 256, kBlockBytes = 210, kUpper = 128, kScales = 192, kD = 208, kParts = 16, kPart = 16;
constexpr int kPanelBlock = 3360, kPanelPart = 208, kPanelUpper = 128, kPanelScales = 192, kPanelD = 3328;

// Where the code of a column lies in a stored block.
struct Place {
  int lower, lower_shift, upper, upper_shift;

  explicit constexpr Place(int column) {
    const int half = column / 128, group = column % 128 / 32, i = column % 32;
    lower = 64 * half + 32 * (group % 2) + i;
    lower_shift = 4 * (group / 2);
    upper = kUpper + 32 * half + i;
    upper_shift = 2 * group;
  }
};

using Search = SymmetricSearch<32, 128>;

float value_of(float step, int code) { return step * static_cast<float>(code - 32); }

void decode(const WeightView& view, int64_t r, float* out) {
  const uint8_t* block = bytes_of(view.row(r));
  for (int64_t b = 0; b < view.cols / kBlock; ++b, block += kBlockBytes, out += kBlock) {
    const float d = half_at(block + kD);
    for (int c = 0; c < kBlock; ++c) {
      const Place at(c);
      const int code = (block[at.lower] >> at.lower_shift & 15) | (block[at.upper] >> at.upper_shift & 3) << 4;
      const float step = d * static_cast<int8_t>(block[kScales + c / kPart]);
      out[c] = value_of(step, code) * view.scale;
    }
  }
}

void encode(const float* values, int64_t cols, void* out) {
  uint8_t* block = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, block += kBlockBytes) {
    const Search::Block best = Search::encode(values + b * kBlock);
    std::memset(block, 0, kBlockBytes);
    store(block + kD, best.d);
    for (int p = 0; p < kParts; ++p) block[kScales + p] = static_cast<uint8_t>(best.scale[p]);
    for (int c = 0; c < kBlock; ++c) {
      const Place at(c);
      block[at.lower] |= static_cast<uint8_t>((best.codes[c] & 15) << at.lower_shift);
      block[at.upper] |= static_cast<uint8_t>(best.codes[c] >> 4 << at.upper_shift);
    }
  }
}

// The upper bits of eight columns, a byte each, as the lowest four bits of every byte of a word.
uint32_t upper_word(uint64_t bits) { return static_cast<uint32_t>(bits | bits >> 30); }

void pack(const WeightView& view, int64_t p, std::byte* out) {
  pack_blocks<kBlockBytes, kPanelBlock>(view, p, out, [](const uint8_t* block, int r, uint8_t* panel) {
    constexpr uint64_t kTwoBits = 0x0303030303030303u;
    for (int part = 0; part < kParts; ++part, panel += kPanelPart) {
      const Place at(kPart * part);
      const uint64_t low0 = load<uint64_t>(block + at.lower), low1 = load<uint64_t>(block + at.lower + 8);
      const uint64_t up0 = load<uint64_t>(block + at.upper), up1 = load<uint64_t>(block + at.upper + 8);
      store(panel + 4 * r, paired(low0 >> at.lower_shift & kLowNibbles));
      store(panel + 64 + 4 * r, paired(low1 >> at.lower_shift & kLowNibbles));
      const uint32_t first = upper_word(up0 >> at.upper_shift & kTwoBits);
      const uint32_t second = upper_word(up1 >> at.upper_shift & kTwoBits);
      store(panel + kPanelUpper + 4 * r, first | second << 4);
      panel[kPanelScales + r] = block[kScales + part];
    }
    store(panel + 2 * r, load<uint16_t>(block + kD));
  });
}

void unpack(const PanelView& view, int64_t r, float* out) {
  const uint8_t* panel = panel_of(view, r);
  const int lane = panel_lane(r);
  for (int64_t b = 0; b < view.cols / kBlock; ++b, panel += kPanelBlock) {
    const float d = half_at(panel + kPanelD + 2 * lane);
    for (int p = 0; p < kParts; ++p, out += kPart) {
      const uint8_t* part = panel + p * kPanelPart;
      const float step = d * static_cast<int8_t>(part[kPanelScales + lane]);
      for (int c = 0; c < kPart; ++c) {
        const int upper = part[kPanelUpper + 4 * lane + c % 4] >> 2 * (c / 4) & 3;
        out[c] = value_of(step, panel_nibble(part, lane, c) | upper << 4) * panel_scale(view, r);
      }
    }
  }
}

// Lower bits 1..15 about 8 and any upper bits: codes - 32 are symmetric about 0. Scales are 16..31 of either sign.
void random(int64_t cols, uint64_t seed, std::byte* out) {
  constexpr float kCodeMeanSquare = kNibbleMeanSquare + (8.0f * 8.0f + 24.0f * 24.0f) / 2.0f;
  constexpr float kScaleMeanSquare = 23.5f * 23.5f + (16.0f * 16.0f - 1.0f) / 12.0f;
  RandomBits bits(seed);
  const uint16_t d = float_to_f16(1.0f / std::sqrt(kCodeMeanSquare * kScaleMeanSquare * static_cast<float>(cols)));
  uint8_t* panel = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, panel += kPanelBlock) {
    for (int p = 0; p < kParts; ++p) {
      uint8_t* part = panel + p * kPanelPart;
      write_nibbles(bits, part, kPanelUpper);
      write_random(bits, part + kPanelUpper, kPanelScales - kPanelUpper);
      for (int half = 0; half < 2; ++half) {
        uint64_t choice = bits.next();
        for (int r = 0; r < 8; ++r, choice >>= 8) {
          const int magnitude = 16 + static_cast<int>(choice & 15);
          part[kPanelScales + 8 * half + r] = static_cast<uint8_t>(choice & 128 ? -magnitude : magnitude);
        }
      }
    }
    for (int r = 0; r < kPanelRows; ++r) store(panel + kPanelD + 2 * r, d);
  }
}

}  // namespace

constinit const FormatCode kQ6_KCode = {decode, encode, pack, unpack, random};

}  // namespace carpool
