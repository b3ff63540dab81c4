// IQ4_NL: blocks of 32 values with one half-precision scale; value = level of the code * scale, see iq4.h.
//
// A stored block is the scale and 16 bytes: byte i has column i in the low nibble and column 16 + i in the high one.
// The layout is that of GGUF files; the encoder is our own. Panels: see panels.h.
#include "tensor/formats/iq4.h"

namespace carpool {

extern const FormatCode kIQ4_NLCode;

namespace {

using namespace formats;

constexpr int kBlock = 32, kBlockBytes = 18, kPanelBlock = 288, kScales = 256;

void decode(const WeightView& view, int64_t r, float* out) {
  const uint8_t* block = bytes_of(view.row(r));
  for (int64_t b = 0; b < view.cols / kBlock; ++b, block += kBlockBytes, out += kBlock) {
    const float scale = half_at(block);
    for (int i = 0; i < 16; ++i) {
      out[i] = static_cast<float>(kIq4Levels[block[2 + i] & 15]) * scale * view.scale;
      out[16 + i] = static_cast<float>(kIq4Levels[block[2 + i] >> 4]) * scale * view.scale;
    }
  }
}

// Values beyond what a half can scale saturate.
void encode(const float* values, int64_t cols, void* out) {
  constexpr float kLargest = 65504.0f * 100.0f;
  uint8_t* block = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, block += kBlockBytes) {
    float x[kBlock];
    for (int i = 0; i < kBlock; ++i) x[i] = std::clamp(values[b * kBlock + i], -kLargest, kLargest);
    const uint16_t scale = finite_half(iq4_scale(x));
    store(block, scale);
    const float inverse = inverse_of(f16_to_float(scale));
    uint8_t codes[kBlock];
    for (int i = 0; i < kBlock; ++i) codes[i] = static_cast<uint8_t>(iq4_nearest(x[i] * inverse));
    store_nibbles(codes, block + 2);
  }
}

void pack(const WeightView& view, int64_t p, std::byte* out) {
  pack_blocks<kBlockBytes, kPanelBlock>(view, p, out, [](const uint8_t* block, int r, uint8_t* panel) {
    pack_nibbles32(block + 2, r, panel);
    store(panel + kScales + 2 * r, load<uint16_t>(block));
  });
}

void unpack(const PanelView& view, int64_t r, float* out) {
  const uint8_t* panel = panel_of(view, r);
  const int lane = panel_lane(r);
  for (int64_t b = 0; b < view.cols / kBlock; ++b, panel += kPanelBlock, out += kBlock) {
    const float scale = half_at(panel + kScales + 2 * lane);
    for (int c = 0; c < kBlock; ++c) {
      out[c] = static_cast<float>(kIq4Levels[panel_nibble(panel, lane, c)]) * scale * panel_scale(view, r);
    }
  }
}

void random(int64_t cols, uint64_t seed, std::byte* out) {
  RandomBits bits(seed);
  const RandomHalves scales(cols, kIq4MeanSquare);
  uint8_t* panel = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, panel += kPanelBlock) {
    write_iq4_nibbles(bits, panel, kScales);
    scales.write(bits, panel + kScales);
  }
}

}  // namespace

constinit const FormatCode kIQ4_NLCode = {decode, encode, pack, unpack, random};

}  // namespace carpool
