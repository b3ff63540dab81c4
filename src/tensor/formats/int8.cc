// INT8: 8-bit codes with a float32 scale and a zero point for 32 columns of a row, or for more of them; value = (code -
// zero) * scale * scale of the matrix, both signed.
//
// Checkpoints keep scales, of any float type, and zero points apart (format.h) and store codes and zero points 128 too
// large; without zero points all are 0. By itself a stored block is the scale, the zero point and 32 codes, signed.
// Panels (panels.h) have both every 32 columns.
#include "tensor/formats/grouped.h"

namespace carpool {

extern const FormatCode kINT8Code;

namespace {

using namespace formats;

constexpr int kBlock = 32, kBlockBytes = 37, kPanelBlock = 592, kScales = 512, kZeroPoints = 576;
constexpr uint32_t kTops = 0x80808080u;  // turns four codes that are 128 too large into signed ones

// 32 columns of a row.
struct Group {
  float scale = 0;
  int zero = 0;
  uint8_t codes[kBlock] = {};  // signed

  Group(const WeightView& view, int64_t r, int64_t b) {
    const uint8_t* row = bytes_of(view.row(r));
    if (view.scales) {
      scale = scale_at(view, r, b * kBlock);
      if (view.zeros) zero = zero_at<8>(view, r, b * kBlock) - 128;
      for (int i = 0; i < kBlock; i += 4) store(codes + i, load<uint32_t>(row + b * kBlock + i) ^ kTops);
    } else {
      const uint8_t* block = row + b * kBlockBytes;
      scale = load<float>(block);
      zero = static_cast<int8_t>(block[4]);
      std::memcpy(codes, block + 5, kBlock);
    }
  }
};

float value_of(uint8_t code, int zero, float scale) {
  return static_cast<float>(static_cast<int8_t>(code) - zero) * scale;
}

void decode(const WeightView& view, int64_t r, float* out) {
  for (int64_t b = 0; b < view.cols / kBlock; ++b, out += kBlock) {
    const Group group(view, r, b);
    for (int c = 0; c < kBlock; ++c) out[c] = value_of(group.codes[c], group.zero, group.scale) * view.scale;
  }
}

void encode(const float* values, int64_t cols, void* out) {
  uint8_t* block = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, block += kBlockBytes, values += kBlock) {
    float largest = 0;
    for (int i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(values[i]));
    const float scale = largest / 127.0f, inverse = inverse_of(scale);
    store(block, scale);
    block[4] = 0;
    for (int c = 0; c < kBlock; ++c) {
      const float code = rounded(std::clamp(values[c] * inverse, -127.0f, 127.0f));
      block[5 + c] = static_cast<uint8_t>(static_cast<int8_t>(code));
    }
  }
}

void pack(const WeightView& view, int64_t p, std::byte* out) {
  uint8_t* panel = bytes_of(out);
  for (int64_t b = 0; b < view.cols / kBlock; ++b, panel += kPanelBlock) {
    std::memset(panel, 0, kPanelBlock);
    for (int r = 0; r < kPanelRows && p * kPanelRows + r < view.rows; ++r) {
      const Group group(view, p * kPanelRows + r, b);
      for (int j = 0; j < 8; ++j) store(panel + 64 * j + 4 * r, load<uint32_t>(group.codes + 4 * j));
      store(panel + kScales + 4 * r, group.scale);
      panel[kZeroPoints + r] = static_cast<uint8_t>(group.zero);
    }
  }
}

void unpack(const PanelView& view, int64_t r, float* out) {
  const uint8_t* panel = panel_of(view, r);
  const int lane = panel_lane(r);
  for (int64_t b = 0; b < view.cols / kBlock; ++b, panel += kPanelBlock, out += kBlock) {
    const float scale = load<float>(panel + kScales + 4 * lane);
    const int zero = static_cast<int8_t>(panel[kZeroPoints + lane]);
    for (int c = 0; c < kBlock; ++c) {
      out[c] = value_of(panel[64 * (c / 4) + 4 * lane + c % 4], zero, scale) * panel_scale(view, r);
    }
  }
}

// Odd codes, which are symmetric about 0.
void random(int64_t cols, uint64_t seed, std::byte* out) {
  constexpr float kCodeMeanSquare = (65536.0f - 4.0f) / 12.0f;
  RandomBits bits(seed);
  const float scale = 1.0f / std::sqrt(kCodeMeanSquare * kFactorMeanSquare * static_cast<float>(cols));
  uint8_t* panel = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, panel += kPanelBlock) {
    for (int i = 0; i < kScales; i += 8) store(panel + i, bits.next() | 0x0101010101010101u);
    uint64_t factors = bits.next();
    for (int r = 0; r < kPanelRows; ++r, factors >>= 4) {
      store(panel + kScales + 4 * r, scale * random_factor(factors));
      panel[kZeroPoints + r] = 0;
    }
  }
}

}  // namespace

constinit const FormatCode kINT8Code = {decode, encode, pack, unpack, random};

}  // namespace carpool
