// F16: IEEE half precision, no blocks. Panels: 16 halves of one column (panels.h). Values beyond 65504 become infinite,
// as everywhere where a float32 is narrowed to a half.
#include "tensor/formats/common.h"

namespace carpool {

extern const FormatCode kF16Code;

namespace {

using namespace formats;

void decode(const WeightView& view, int64_t r, float* out) {
  const uint8_t* row = bytes_of(view.row(r));
  for (int64_t c = 0; c < view.cols; ++c) {
    out[c] = half_at(row + 2 * c);
    if (view.scale != 1.0f) out[c] *= view.scale;
  }
}

void encode(const float* values, int64_t cols, void* out) {
  for (int64_t c = 0; c < cols; ++c) store(bytes_of(out) + 2 * c, float_to_f16(values[c]));
}

void pack(const WeightView& view, int64_t p, std::byte* out) {
  interleave<uint16_t>(PanelRows(view, p), 0, view.cols, bytes_of(out));
}

void unpack(const PanelView& view, int64_t r, float* out) {
  const uint8_t* panel = panel_of(view, r) + 2 * panel_lane(r);
  const float scale = panel_scale(view, r);
  for (int64_t c = 0; c < view.cols; ++c, panel += 2 * kPanelRows) {
    out[c] = half_at(panel);
    if (scale != 1.0f) out[c] *= scale;
  }
}

void random(int64_t cols, uint64_t seed, std::byte* out) {
  RandomBits bits(seed);
  uint16_t levels[256];
  for (int i = 0; i < 256; ++i) levels[i] = float_to_f16(random_level(cols, i));
  uint8_t* panel = bytes_of(out);
  for (int64_t i = 0; i < cols * kPanelRows; i += 8) {
    uint64_t index = bits.next();
    for (int j = 0; j < 8; ++j, index >>= 8) store(panel + 2 * (i + j), levels[index & 255]);
  }
}

}  // namespace

constinit const FormatCode kF16Code = {decode, encode, pack, unpack, random};

}  // namespace carpool
