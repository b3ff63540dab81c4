// BF16: the upper half of a float32, no blocks. Panels hold two consecutive columns in a word of 32 bits (panels.h); a
// missing last column is a zero.
#include "tensor/formats/common.h"

namespace carpool {

extern const FormatCode kBF16Code;

namespace {

using namespace formats;

void decode(const WeightView& view, int64_t r, float* out) {
  const uint8_t* row = bytes_of(view.row(r));
  for (int64_t c = 0; c < view.cols; ++c) {
    out[c] = bf16_to_float(load<uint16_t>(row + 2 * c));
    if (view.scale != 1.0f) out[c] *= view.scale;
  }
}

void encode(const float* values, int64_t cols, void* out) {
  for (int64_t c = 0; c < cols; ++c) store(bytes_of(out) + 2 * c, float_to_bf16(values[c]));
}

// Words of two columns; where their number is odd, the last word has one.
void pack(const WeightView& view, int64_t p, std::byte* out) {
  const PanelRows rows(view, p);
  const int64_t whole = view.cols / 2;
  interleave<uint32_t>(rows, 0, whole, bytes_of(out));
  if (view.cols % 2 == 0) return;
  uint8_t* last = bytes_of(out) + whole * 4 * kPanelRows;
  for (int r = 0; r < kPanelRows; ++r) {
    store<uint32_t>(last + 4 * r, rows.row[r] ? load<uint16_t>(rows.row[r] + 4 * whole) : 0);
  }
}

void unpack(const PanelView& view, int64_t r, float* out) {
  const uint8_t* panel = panel_of(view, r) + 4 * panel_lane(r);
  const float scale = panel_scale(view, r);
  for (int64_t c = 0; c < view.cols; ++c) {
    out[c] = bf16_to_float(load<uint16_t>(panel + c / 2 * 4 * kPanelRows + c % 2 * 2));
    if (scale != 1.0f) out[c] *= scale;
  }
}

void random(int64_t cols, uint64_t seed, std::byte* out) {
  RandomBits bits(seed);
  uint32_t levels[256];
  for (int i = 0; i < 256; ++i) levels[i] = float_to_bf16(random_level(cols, i));
  uint8_t* panel = bytes_of(out);
  for (int64_t c = 0; c < cols; c += 2, panel += 4 * kPanelRows) {
    const uint32_t upper = c + 1 < cols ? 0xffffffffu : 0xffffu;
    for (int r = 0; r < kPanelRows; r += 4) {
      uint64_t index = bits.next();
      for (int i = 0; i < 4; ++i, index >>= 16) {
        store(panel + 4 * (r + i), (levels[index & 255] | levels[index >> 8 & 255] << 16) & upper);
      }
    }
  }
}

}  // namespace

constinit const FormatCode kBF16Code = {decode, encode, pack, unpack, random};

}  // namespace carpool
