// Q5_0: blocks of 32 values with one half-precision scale; value = (code - 16) * scale, codes 0..31.
//
// A stored block is the scale, 4 bytes with the upper bit of every code and 16 bytes: byte i has column i in the low
// nibble and column 16 + i in the high one. The layout and the rounding of the encoder are those of GGUF files. Panels:
// see panels.h.
#include "tensor/formats/halves.h"

namespace carpool {

extern const FormatCode kQ5_0Code;

namespace {

using namespace formats;

constexpr int kBlock = 32, kBlockBytes = 22, kCodes = 6, kPanelBlock = 352, kUpper = 256, kScales = 320;

float value_of(int code, float scale) { return static_cast<float>(code - 16) * scale; }

void decode(const WeightView& view, int64_t r, float* out) {
  const uint8_t* block = bytes_of(view.row(r));
  for (int64_t b = 0; b < view.cols / kBlock; ++b, block += kBlockBytes, out += kBlock) {
    const float scale = half_at(block);
    const Codes32 codes(block + kCodes, load<uint32_t>(block + 2));
    for (int c = 0; c < kBlock; ++c) out[c] = value_of(codes.code[c], scale) * view.scale;
  }
}

// The scale makes the value of largest magnitude the code 0 (-16), so that the wider side of the range is used.
void encode(const float* values, int64_t cols, void* out) {
  uint8_t* block = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, block += kBlockBytes, values += kBlock) {
    float extreme = values[0];
    for (int i = 1; i < kBlock; ++i) {
      if (std::fabs(values[i]) > std::fabs(extreme)) extreme = values[i];
    }
    const float scale = std::clamp(extreme / -16.0f, -65504.0f, 65504.0f), inverse = inverse_of(scale);
    store(block, float_to_f16(scale));
    uint8_t codes[kBlock];
    for (int c = 0; c < kBlock; ++c) {
      codes[c] = static_cast<uint8_t>(std::clamp(values[c] * inverse + 16.5f, 0.0f, 31.0f));
    }
    store(block + 2, fifth_bits(codes));
    store_nibbles(codes, block + kCodes);
  }
}

void pack(const WeightView& view, int64_t p, std::byte* out) {
  pack_blocks<kBlockBytes, kPanelBlock>(view, p, out, [](const uint8_t* block, int r, uint8_t* panel) {
    pack_nibbles32(block + kCodes, r, panel);
    store(panel + kUpper + 4 * r, spread_bits(load<uint32_t>(block + 2)));
    store(panel + kScales + 2 * r, load<uint16_t>(block));
  });
}

void unpack(const PanelView& view, int64_t r, float* out) {
  const uint8_t* panel = panel_of(view, r);
  const int lane = panel_lane(r);
  for (int64_t b = 0; b < view.cols / kBlock; ++b, panel += kPanelBlock, out += kBlock) {
    const float scale = half_at(panel + kScales + 2 * lane);
    for (int c = 0; c < kBlock; ++c) {
      const int code = panel_nibble(panel, lane, c) | panel_bit(panel + kUpper, lane, c) << 4;
      out[c] = value_of(code, scale) * panel_scale(view, r);
    }
  }
}

// Nibbles 1..15 about 8 and any upper bits: codes - 16 are symmetric about 0.
void random(int64_t cols, uint64_t seed, std::byte* out) {
  RandomBits bits(seed);
  const RandomHalves scales(cols, kNibbleMeanSquare + 64.0f);
  uint8_t* panel = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, panel += kPanelBlock) {
    write_nibbles(bits, panel, kUpper);
    write_random(bits, panel + kUpper, kScales - kUpper);
    scales.write(bits, panel + kScales);
  }
}

}  // namespace

constinit const FormatCode kQ5_0Code = {decode, encode, pack, unpack, random};

}  // namespace carpool
