// INT4: 4-bit codes with a bfloat16 scale for 32 columns of a row, or for more of them; value = (code - 8) * scale,
// exact,
// * scale of the matrix.
//
// Checkpoints keep the scales apart (format.h), nibbles in the order of columns. By itself a stored block is the scale
// and the 16 bytes of its 32 columns. Panels (panels.h) have a scale every 32 columns.
#include "tensor/formats/grouped.h"

namespace carpool {

extern const FormatCode kINT4Code;

namespace {

using namespace formats;

constexpr int kBlock = 32, kBlockBytes = 18, kPanelBlock = 288, kScales = 256;

uint16_t scale_bits(const WeightView& view, int64_t r, int64_t c) {
  if (!view.scales) return load<uint16_t>(bytes_of(view.row(r)) + c / kBlock * kBlockBytes);
  return float_to_bf16(scale_at(view, r, c));  // it is a bfloat16: no change
}

const uint8_t* nibbles_of(const WeightView& view, int64_t r, int64_t b) {
  const uint8_t* row = bytes_of(view.row(r));
  return view.scales ? row + b * (kBlock / 2) : row + b * kBlockBytes + 2;
}

void decode(const WeightView& view, int64_t r, float* out) {
  for (int64_t b = 0; b < view.cols / kBlock; ++b, out += kBlock) {
    const float scale = bf16_to_float(scale_bits(view, r, b * kBlock));
    const uint8_t* nibbles = nibbles_of(view, r, b);
    for (int c = 0; c < kBlock; ++c) {
      out[c] = static_cast<float>(neighbour_nibble(nibbles, c) - 8) * scale * view.scale;
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
    const uint16_t scale = float_to_bf16(extreme / -8.0f);
    store(block, scale);
    const float inverse = inverse_of(bf16_to_float(scale));
    uint8_t codes[kBlock];
    for (int c = 0; c < kBlock; ++c) {
      codes[c] = static_cast<uint8_t>(rounded(std::clamp(values[c] * inverse, -8.0f, 7.0f)) + 8.0f);
    }
    for (int i = 0; i < kBlock / 2; ++i) block[2 + i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
  }
}

void pack(const WeightView& view, int64_t p, std::byte* out) {
  static constexpr uint8_t kZeros[kBlock / 2] = {};
  uint8_t* panel = bytes_of(out);
  for (int64_t b = 0; b < view.cols / kBlock; ++b, panel += kPanelBlock) {
    for (int r = 0; r < kPanelRows; ++r) {
      const int64_t row = p * kPanelRows + r;
      const bool exists = row < view.rows;
      pack_neighbours32(exists ? nibbles_of(view, row, b) : kZeros, r, panel);
      store(panel + kScales + 2 * r, exists ? scale_bits(view, row, b * kBlock) : uint16_t{0});
    }
  }
}

void unpack(const PanelView& view, int64_t r, float* out) {
  const uint8_t* panel = panel_of(view, r);
  const int lane = panel_lane(r);
  for (int64_t b = 0; b < view.cols / kBlock; ++b, panel += kPanelBlock, out += kBlock) {
    const float scale = bf16_to_float(load<uint16_t>(panel + kScales + 2 * lane));
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
    for (int r = 0; r < kPanelRows; ++r) {
      store(panel + kScales + 2 * r, float_to_bf16(half_at(panel + kScales + 2 * r)));
    }
  }
}

}  // namespace

constinit const FormatCode kINT4Code = {decode, encode, pack, unpack, random};

}  // namespace carpool
