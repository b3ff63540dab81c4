// INT4F: 4-bit codes with a float32 scale and a zero point for 32 columns of a row, or for more of them; value = (code
// - zero) * scale * scale of the matrix. For checkpoints whose scales are no bfloat16, or that have zero points.
//
// Checkpoints keep scales, of any float type, and zero points apart (format.h), nibbles in the order of columns;
// without zero points all are 8. By itself a stored block is the scale, the zero point and the 16 bytes of its 32
// columns. Panels (panels.h) have both every 32 columns.
#include "tensor/formats/grouped.h"

namespace carpool {

extern const FormatCode kINT4FCode;

namespace {

using namespace formats;

constexpr int kBlock = 32, kBlockBytes = 21, kPanelBlock = 336, kScales = 256, kZeroPoints = 320;

// 32 columns of a row.
struct Group {
  float scale = 0;
  int zero = 8;
  const uint8_t* nibbles = nullptr;

  Group(const WeightView& view, int64_t r, int64_t b) {
    const uint8_t* row = bytes_of(view.row(r));
    if (view.scales) {
      scale = scale_at(view, r, b * kBlock);
      if (view.zeros) zero = zero_at<4>(view, r, b * kBlock);
      nibbles = row + b * (kBlock / 2);
    } else {
      scale = load<float>(row + b * kBlockBytes);
      zero = row[b * kBlockBytes + 4];
      nibbles = row + b * kBlockBytes + 5;
    }
  }
};

void decode(const WeightView& view, int64_t r, float* out) {
  for (int64_t b = 0; b < view.cols / kBlock; ++b, out += kBlock) {
    const Group group(view, r, b);
    for (int c = 0; c < kBlock; ++c) {
      out[c] = static_cast<float>(neighbour_nibble(group.nibbles, c) - group.zero) * group.scale * view.scale;
    }
  }
}

// From the smallest value, or 0, to the largest in 15 steps; 0 is a code.
void encode(const float* values, int64_t cols, void* out) {
  uint8_t* block = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, block += kBlockBytes, values += kBlock) {
    const auto [least, most] = std::minmax_element(values, values + kBlock);
    const float low = std::min(*least, 0.0f), high = std::max(*most, 0.0f);
    const float scale = high / 15.0f - low / 15.0f, inverse = inverse_of(scale);
    const float zero = rounded(std::clamp(-low * inverse, 0.0f, 15.0f));
    store(block, scale);
    block[4] = static_cast<uint8_t>(zero);
    uint8_t codes[kBlock];
    for (int c = 0; c < kBlock; ++c) {
      codes[c] = static_cast<uint8_t>(rounded(std::clamp(values[c] * inverse + zero, 0.0f, 15.0f)));
    }
    for (int i = 0; i < kBlock / 2; ++i) block[5 + i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
  }
}

void pack(const WeightView& view, int64_t p, std::byte* out) {
  static constexpr uint8_t kZeros[kBlock / 2] = {};
  uint8_t* panel = bytes_of(out);
  for (int64_t b = 0; b < view.cols / kBlock; ++b, panel += kPanelBlock) {
    for (int r = 0; r < kPanelRows; ++r) {
      const int64_t row = p * kPanelRows + r;
      if (row < view.rows) {
        const Group group(view, row, b);
        pack_neighbours32(group.nibbles, r, panel);
        store(panel + kScales + 4 * r, group.scale);
        panel[kZeroPoints + r] = static_cast<uint8_t>(group.zero);
      } else {
        pack_neighbours32(kZeros, r, panel);
        store(panel + kScales + 4 * r, 0.0f);
        panel[kZeroPoints + r] = 0;
      }
    }
  }
}

void unpack(const PanelView& view, int64_t r, float* out) {
  const uint8_t* panel = panel_of(view, r);
  const int lane = panel_lane(r);
  for (int64_t b = 0; b < view.cols / kBlock; ++b, panel += kPanelBlock, out += kBlock) {
    const float scale = load<float>(panel + kScales + 4 * lane);
    const int zero = panel[kZeroPoints + lane];
    for (int c = 0; c < kBlock; ++c) {
      out[c] = static_cast<float>(panel_nibble(panel, lane, c) - zero) * scale * panel_scale(view, r);
    }
  }
}

void random(int64_t cols, uint64_t seed, std::byte* out) {
  RandomBits bits(seed);
  const float scale = 1.0f / std::sqrt(kNibbleMeanSquare * kFactorMeanSquare * static_cast<float>(cols));
  uint8_t* panel = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, panel += kPanelBlock) {
    write_nibbles(bits, panel, kScales);
    uint64_t factors = bits.next();
    for (int r = 0; r < kPanelRows; ++r, factors >>= 4) {
      store(panel + kScales + 4 * r, scale * random_factor(factors));
      panel[kZeroPoints + r] = 8;
    }
  }
}

}  // namespace

constinit const FormatCode kINT4FCode = {decode, encode, pack, unpack, random};

}  // namespace carpool
