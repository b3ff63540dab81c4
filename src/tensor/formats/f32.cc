// F32: IEEE single precision, no blocks. Stored rows are the values; panels: see panels.h.
#include <cstring>

#include "tensor/formats/common.h"

namespace carpool {

extern const FormatCode kF32Code;

namespace {

using namespace formats;

void decode(const WeightView& view, int64_t r, float* out) {
  std::memcpy(out, view.row(r), view.row_bytes());  // also the bits of a NaN, which a product would change
  if (view.scale == 1.0f) return;
  for (int64_t c = 0; c < view.cols; ++c) out[c] *= view.scale;
}

void encode(const float* values, int64_t cols, void* out) {
  std::memcpy(out, values, static_cast<size_t>(cols) * sizeof(float));
}

void pack(const WeightView& view, int64_t p, std::byte* out) {
  interleave<uint32_t>(PanelRows(view, p), 0, view.cols, bytes_of(out));
}

void unpack(const PanelView& view, int64_t r, float* out) {
  const uint8_t* panel = panel_of(view, r) + 4 * panel_lane(r);
  const float scale = panel_scale(view, r);
  for (int64_t c = 0; c < view.cols; ++c, panel += 4 * kPanelRows) {
    std::memcpy(out + c, panel, 4);
    if (scale != 1.0f) out[c] *= scale;
  }
}

// Odd integers of 32 bits are symmetric about 0; their mean square is 2^64 / 12.
void random(int64_t cols, uint64_t seed, std::byte* out) {
  RandomBits bits(seed);
  const float scale = 1.0f / (0x1p32f * std::sqrt(static_cast<float>(cols) / 12.0f));
  uint8_t* panel = bytes_of(out);
  for (int64_t i = 0; i < cols * kPanelRows; i += 2) {
    const uint64_t two = bits.next() | 0x0000000100000001u;
    store(panel + 4 * i, static_cast<float>(static_cast<int32_t>(two)) * scale);
    store(panel + 4 * i + 4, static_cast<float>(static_cast<int32_t>(two >> 32)) * scale);
  }
}

}  // namespace

constinit const FormatCode kF32Code = {decode, encode, pack, unpack, random};

}  // namespace carpool
