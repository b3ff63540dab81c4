// Q8_0: blocks of 32 values with one half-precision scale; value = code * scale, codes -128..127.
//
// A stored block is the scale and 32 signed bytes. The layout and the rounding of the encoder are those of GGUF files:
// codes come from the scale before it is rounded to a half, ties go away from zero. Panels: see panels.h.
#include "tensor/formats/common.h"

namespace carpool {

extern const FormatCode kQ8_0Code;

namespace {

using namespace formats;

constexpr int kBlock = 32, kBlockBytes = 34, kPanelBlock = 544, kScales = 512;

float value_of(uint8_t code, float scale) { return static_cast<float>(static_cast<int8_t>(code)) * scale; }

void decode(const WeightView& view, int64_t r, float* out) {
  const uint8_t* block = bytes_of(view.row(r));
  for (int64_t b = 0; b < view.cols / kBlock; ++b, block += kBlockBytes, out += kBlock) {
    const float scale = half_at(block);
    for (int i = 0; i < kBlock; ++i) out[i] = value_of(block[2 + i], scale) * view.scale;
  }
}

void encode(const float* values, int64_t cols, void* out) {
  uint8_t* block = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, block += kBlockBytes, values += kBlock) {
    float largest = 0;
    for (int i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(values[i]));
    const float scale = std::min(largest / 127.0f, 65504.0f), inverse = inverse_of(scale);
    store(block, float_to_f16(scale));
    for (int i = 0; i < kBlock; ++i) {
      const float code = std::clamp(std::round(values[i] * inverse), -127.0f, 127.0f);
      block[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(code));
    }
  }
}

void pack(const WeightView& view, int64_t p, std::byte* out) {
  pack_blocks<kBlockBytes, kPanelBlock>(view, p, out, [](const uint8_t* block, int r, uint8_t* panel) {
    for (int j = 0; j < 8; ++j) store(panel + 64 * j + 4 * r, load<uint32_t>(block + 2 + 4 * j));
    store(panel + kScales + 2 * r, load<uint16_t>(block));
  });
}

void unpack(const PanelView& view, int64_t r, float* out) {
  const uint8_t* panel = panel_of(view, r);
  const int lane = panel_lane(r);
  for (int64_t b = 0; b < view.cols / kBlock; ++b, panel += kPanelBlock, out += kBlock) {
    const float scale = half_at(panel + kScales + 2 * lane);
    for (int c = 0; c < kBlock; ++c) {
      out[c] = value_of(panel[64 * (c / 4) + 4 * lane + c % 4], scale) * panel_scale(view, r);
    }
  }
}

// Eight codes -127..127: -128 becomes 0, so that the mean is 0. Mean square: the sum of k^2 for -127..127, over 256.
uint64_t random_codes(RandomBits& bits) {
  constexpr uint64_t kTops = 0x8080808080808080u;
  const uint64_t codes = bits.next(), low = codes & ~kTops;
  const uint64_t low_is_zero = ~(low + ~kTops) & kTops;  // top bit of every byte: whether the other seven are 0
  return codes & ~(low_is_zero);
}
constexpr float kCodeMeanSquare = 127.0f * 128.0f * 255.0f / 3.0f / 256.0f;

void random(int64_t cols, uint64_t seed, std::byte* out) {
  RandomBits bits(seed);
  const RandomHalves scales(cols, kCodeMeanSquare);
  uint8_t* panel = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, panel += kPanelBlock) {
    for (int i = 0; i < kScales; i += 8) store(panel + i, random_codes(bits));
    scales.write(bits, panel + kScales);
  }
}

}  // namespace

constinit const FormatCode kQ8_0Code = {decode, encode, pack, unpack, random};

}  // namespace carpool
