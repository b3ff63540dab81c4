// FP8: E4M3 values; value = (E4M3 * the scale of its part of the matrix) * scale of the matrix.
//
// A stored row is the codes; scales are a tensor of their own and may be absent (format.h): one for 128 x 128 values,
// or for a row. The encoder writes codes without scales and saturates at 448. Panels: see panels.h.
#include "tensor/formats/common.h"

namespace carpool {

extern const FormatCode kFP8Code;

namespace {

using namespace formats;

constexpr int64_t kBlock = 128;
constexpr int kPanelBlock = 2112, kScales = 2048;

int64_t blocks_of(int64_t cols) { return (cols + kBlock - 1) / kBlock; }

// The scale of row `r` and column block `b`.
float block_scale(const WeightView& view, int64_t r, int64_t b) {
  return view.scales ? scale_at(view, r, b * kBlock) : 1.0f;
}

void decode(const WeightView& view, int64_t r, float* out) {
  const uint8_t* row = bytes_of(view.row(r));
  for (int64_t b = 0; b < blocks_of(view.cols); ++b) {
    const float scale = block_scale(view, r, b);
    for (int64_t c = b * kBlock; c < std::min((b + 1) * kBlock, view.cols); ++c) {
      out[c] = e4m3_to_float(row[c]) * scale * view.scale;
    }
  }
}

void encode(const float* values, int64_t cols, void* out) {
  for (int64_t c = 0; c < cols; ++c) bytes_of(out)[c] = float_to_e4m3(values[c]);
}

void pack(const WeightView& view, int64_t p, std::byte* out) {
  const PanelRows rows(view, p);
  uint8_t* panel = bytes_of(out);
  for (int64_t b = 0; b < blocks_of(view.cols); ++b, panel += kPanelBlock) {
    const int64_t count = std::min(kBlock, view.cols - b * kBlock);
    interleave<uint8_t>(rows, b * kBlock, count, panel);
    std::memset(panel + count * kPanelRows, 0, static_cast<size_t>(kScales - count * kPanelRows));
    for (int r = 0; r < kPanelRows; ++r) {
      const int64_t row = p * kPanelRows + r;
      store(panel + kScales + 4 * r, row < view.rows ? block_scale(view, row, b) : 0.0f);
    }
  }
}

void unpack(const PanelView& view, int64_t r, float* out) {
  const uint8_t* panel = panel_of(view, r);
  for (int64_t c = 0; c < view.cols; ++c) {
    const uint8_t* block = panel + c / kBlock * kPanelBlock;
    const uint8_t code = block[c % kBlock * kPanelRows + panel_lane(r)];
    out[c] = e4m3_to_float(code) * load<float>(block + kScales + 4 * panel_lane(r)) * panel_scale(view, r);
  }
}

// Codes without the upper exponents: below 2, symmetric about 0, never NaN.
void random(int64_t cols, uint64_t seed, std::byte* out) {
  constexpr uint64_t kCodes = 0xbfbfbfbfbfbfbfbfu;
  float square = 0;
  for (int i = 0; i < 64; ++i)
    square += e4m3_to_float(static_cast<uint8_t>(i)) * e4m3_to_float(static_cast<uint8_t>(i));
  const float scale = 1.0f / std::sqrt(square / 64 * kFactorMeanSquare * static_cast<float>(cols));
  RandomBits bits(seed);
  uint8_t* panel = bytes_of(out);
  for (int64_t b = 0; b < blocks_of(cols); ++b, panel += kPanelBlock) {
    const int64_t count = std::min(kBlock, cols - b * kBlock);
    for (int64_t i = 0; i < count * kPanelRows; i += 8) store(panel + i, bits.next() & kCodes);
    std::memset(panel + count * kPanelRows, 0, static_cast<size_t>(kScales - count * kPanelRows));
    const float one = scale * random_factor(bits.next() >> 60);
    for (int r = 0; r < kPanelRows; ++r) store(panel + kScales + 4 * r, one);
  }
}

}  // namespace

constinit const FormatCode kFP8Code = {decode, encode, pack, unpack, random};

}  // namespace carpool
