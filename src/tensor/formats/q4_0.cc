// Q4_0: blocks of 32 values with one half-precision scale; value = (code - 8) * scale, codes 0..15.
//
// A stored block is the scale and 16 bytes: byte i has column i in the low nibble and column 16 + i in the high one.
// The layout and the rounding of the encoder are those of GGUF files. Panels: see panels.h.
#include "tensor/formats/common.h"

namespace carpool {

extern const FormatCode kQ4_0Code;

namespace {

using namespace formats;

constexpr int kBlock = 32, kBlockBytes = 18, kPanelBlock = 288, kScales = 256;

void decode(const WeightView& view, int64_t r, float* out) {
  const uint8_t* block = bytes_of(view.row(r));
  for (int64_t b = 0; b < view.cols / kBlock; ++b, block += kBlockBytes, out += kBlock) {
    const float scale = half_at(block);
    for (int i = 0; i < 16; ++i) {
      out[i] = static_cast<float>((block[2 + i] & 15) - 8) * scale * view.scale;
      out[16 + i] = static_cast<float>((block[2 + i] >> 4) - 8) * scale * view.scale;
    }
  }
}

// The scale makes the value of largest magnitude the code 0 (-8), so that the wider side of the range is used.
void encode(const float* values, int64_t cols, void* out) {
  uint8_t* block = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, block += kBlockBytes, values += kBlock) {
    float extreme = values[0];
    for (int i = 1; i < kBlock; ++i) {
      if (std::fabs(values[i]) > std::fabs(extreme)) extreme = values[i];
    }
    const float scale = std::clamp(extreme / -8.0f, -65504.0f, 65504.0f), inverse = inverse_of(scale);
    store(block, float_to_f16(scale));
    const auto quantize = [&](float v) { return static_cast<int>(std::clamp(v * inverse + 8.5f, 0.0f, 15.0f)); };
    for (int i = 0; i < 16; ++i) {
      block[2 + i] = static_cast<uint8_t>(quantize(values[i]) | quantize(values[16 + i]) << 4);
    }
  }
}

void pack(const WeightView& view, int64_t p, std::byte* out) {
  pack_blocks<kBlockBytes, kPanelBlock>(view, p, out, [](const uint8_t* block, int r, uint8_t* panel) {
    for (int half = 0; half < 2; ++half) {
      const uint64_t nibbles = load<uint64_t>(block + 2 + 8 * half);
      store(panel + 64 * half + 4 * r, paired(nibbles & kLowNibbles));
      store(panel + 64 * (2 + half) + 4 * r, paired(nibbles >> 4 & kLowNibbles));
    }
    store(panel + kScales + 2 * r, load<uint16_t>(block));
  });
}

void unpack(const PanelView& view, int64_t r, float* out) {
  const uint8_t* panel = panel_of(view, r);
  const int lane = panel_lane(r);
  for (int64_t b = 0; b < view.cols / kBlock; ++b, panel += kPanelBlock, out += kBlock) {
    const float scale = half_at(panel + kScales + 2 * lane);
    for (int c = 0; c < kBlock; ++c) {
      out[c] = static_cast<float>(panel_nibble(panel, lane, c) - 8) * scale * panel_scale(view, r);
    }
  }
}

void random(int64_t cols, uint64_t seed, std::byte* out) {
  RandomBits bits(seed);
  const RandomHalves scales(cols, kNibbleMeanSquare);
  uint8_t* panel = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, panel += kPanelBlock) {
    write_nibbles(bits, panel, kScales);
    scales.write(bits, panel + kScales);
  }
}

}  // namespace

constinit const FormatCode kQ4_0Code = {decode, encode, pack, unpack, random};

}  // namespace carpool
