// Q4_1: blocks of 32 values with two halves, a scale and a minimum; value = scale * code + minimum, codes 0..15.
//
// A stored block is the scale, the minimum and 16 bytes: byte i has column i in the low nibble and
// column 16 + i in the high one. The layout and the rounding of the encoder are those of GGUF files. Panels: see
// panels.h.
#include "tensor/formats/halves.h"

namespace carpool {

extern const FormatCode kQ4_1Code;

namespace {

using namespace formats;

constexpr int kBlock = 32, kBlockBytes = 20, kCodes = 4;
constexpr int kPanelBlock = 320, kScales = 256, kMinima = 288;

Codes32 codes_of(const uint8_t* block) { return {block + kCodes, 0}; }

void decode(const WeightView& view, int64_t r, float* out) {
  const uint8_t* block = bytes_of(view.row(r));
  for (int64_t b = 0; b < view.cols / kBlock; ++b, block += kBlockBytes, out += kBlock) {
    const float scale = half_at(block), minimum = half_at(block + 2);
    const Codes32 codes = codes_of(block);
    for (int c = 0; c < kBlock; ++c) out[c] = (scale * static_cast<float>(codes.code[c]) + minimum) * view.scale;
  }
}

// From the smallest value to the largest in 15 steps. Values that halves cannot reach saturate.
void encode(const float* values, int64_t cols, void* out) {
  uint8_t* block = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, block += kBlockBytes, values += kBlock) {
    const auto [least, most] = std::minmax_element(values, values + kBlock);
    const float low = std::clamp(*least, -65504.0f, 65504.0f), high = std::clamp(*most, -65504.0f, 65504.0f);
    const float scale = (high - low) / 15.0f, inverse = inverse_of(scale);
    store(block, float_to_f16(scale));
    store(block + 2, float_to_f16(low));
    uint8_t codes[kBlock];
    for (int c = 0; c < kBlock; ++c) {
      codes[c] = static_cast<uint8_t>(std::clamp((values[c] - low) * inverse + 0.5f, 0.0f, 15.0f));
    }
    store_nibbles(codes, block + kCodes);
  }
}

void pack(const WeightView& view, int64_t p, std::byte* out) {
  pack_blocks<kBlockBytes, kPanelBlock>(view, p, out, [](const uint8_t* block, int r, uint8_t* panel) {
    pack_nibbles32(block + kCodes, r, panel);
    store(panel + kScales + 2 * r, load<uint16_t>(block));
    store(panel + kMinima + 2 * r, load<uint16_t>(block + 2));
  });
}

void unpack(const PanelView& view, int64_t r, float* out) {
  const uint8_t* panel = panel_of(view, r);
  const int lane = panel_lane(r);
  for (int64_t b = 0; b < view.cols / kBlock; ++b, panel += kPanelBlock, out += kBlock) {
    const float scale = half_at(panel + kScales + 2 * lane), minimum = half_at(panel + kMinima + 2 * lane);
    for (int c = 0; c < kBlock; ++c) {
      const int code = panel_nibble(panel, lane, c);
      out[c] = (scale * static_cast<float>(code) + minimum) * panel_scale(view, r);
    }
  }
}

// Codes 1..15 about 8, and the minimum is -8 scales, exactly.
void random(int64_t cols, uint64_t seed, std::byte* out) {
  constexpr float kCodeMeanSquare = kNibbleMeanSquare;
  RandomBits bits(seed);
  const RandomHalves scales(cols, kCodeMeanSquare);
  uint8_t* panel = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, panel += kPanelBlock) {
    write_nibbles(bits, panel, kScales);
    scales.write(bits, panel + kScales);
    for (int r = 0; r < kPanelRows; ++r) {
      store(panel + kMinima + 2 * r, float_to_f16(-8.0f * half_at(panel + kScales + 2 * r)));
    }
  }
}

}  // namespace

constinit const FormatCode kQ4_1Code = {decode, encode, pack, unpack, random};

}  // namespace carpool
