// MXFP4: blocks of 32 E2M1 values with one E8M0 scale, a power of two; value = E2M1 * scale. The scale 255 is NaN.
//
// Stored in two ways (format.h). GGUF: the scale and 16 bytes, byte i of which has column i in the low nibble and
// column 16 + i in the high one. gpt-oss: nibbles in the order of columns, scales apart. Panels: see panels.h.
#include "tensor/formats/e2m1.h"

namespace carpool {

extern const FormatCode kMXFP4Code;

namespace {

using namespace formats;

constexpr int kBlock = 32, kBlockBytes = 17, kPanelBlock = 272, kScales = 256;

const uint8_t* scales_of(const WeightView& view, int64_t r) {
  return bytes_of(view.scales) + view.map(r) * (view.cols / kBlock);
}

void decode(const WeightView& view, int64_t r, float* out) {
  const uint8_t* row = bytes_of(view.row(r));
  for (int64_t b = 0; b < view.cols / kBlock; ++b, out += kBlock) {
    if (view.nibbles_apart()) {
      const float scale = e8m0_to_float(scales_of(view, r)[b]);
      for (int c = 0; c < kBlock; ++c) {
        const uint8_t byte = row[16 * b + c / 2];
        out[c] = e2m1_value(c % 2 ? byte >> 4 : byte & 15, scale) * view.scale;
      }
    } else {
      const uint8_t* block = row + kBlockBytes * b;
      const float scale = e8m0_to_float(block[0]);
      for (int c = 0; c < kBlock; ++c) {
        const uint8_t byte = block[1 + c % 16];
        out[c] = e2m1_value(c < 16 ? byte & 15 : byte >> 4, scale) * view.scale;
      }
    }
  }
}

// The scale of the OCP definition and of GGUF's encoder: the power of two of the largest magnitude over that of 4, so
// that the largest value lies in [4, 8) and is a 4 or a 6.
uint8_t scale_of(const float* values) {
  float largest = 0;
  for (int i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(values[i]));
  if (largest == 0) return 0;
  return static_cast<uint8_t>(std::max(std::ilogb(largest) - 2 + 127, 0));
}

void encode(const float* values, int64_t cols, void* out) {
  uint8_t* block = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, block += kBlockBytes, values += kBlock) {
    block[0] = scale_of(values);
    const float scale = e8m0_to_float(block[0]);
    for (int i = 0; i < 16; ++i) {
      block[1 + i] = static_cast<uint8_t>(e2m1_of(values[i], scale) | e2m1_of(values[16 + i], scale) << 4);
    }
  }
}

void pack_gguf(const WeightView& view, int64_t p, std::byte* out) {
  pack_blocks<kBlockBytes, kPanelBlock>(view, p, out, [](const uint8_t* block, int r, uint8_t* panel) {
    for (int half = 0; half < 2; ++half) {
      const uint64_t nibbles = load<uint64_t>(block + 1 + 8 * half);
      store(panel + 64 * half + 4 * r, paired(nibbles & kLowNibbles));
      store(panel + 64 * (2 + half) + 4 * r, paired(nibbles >> 4 & kLowNibbles));
    }
    panel[kScales + r] = block[0];
  });
}

void pack(const WeightView& view, int64_t p, std::byte* out) {
  if (!view.nibbles_apart()) return pack_gguf(view, p, out);
  const int64_t blocks = view.cols / kBlock;
  for (int r = 0; r < kPanelRows; ++r) {
    const int64_t row = p * kPanelRows + r;
    uint8_t* panel = bytes_of(out);
    const bool exists = row < view.rows;
    const uint8_t* nibbles = exists ? bytes_of(view.row(row)) : nullptr;
    const uint8_t* scales = exists ? scales_of(view, row) : nullptr;
    for (int64_t b = 0; b < blocks; ++b, panel += kPanelBlock) {
      for (int half = 0; half < 2; ++half) {
        const uint64_t words = exists ? paired_neighbours(load<uint64_t>(nibbles + 16 * b + 8 * half)) : 0;
        store(panel + 128 * half + 4 * r, static_cast<uint32_t>(words));
        store(panel + 128 * half + 64 + 4 * r, static_cast<uint32_t>(words >> 32));
      }
      panel[kScales + r] = exists ? scales[b] : 0;
    }
  }
}

void unpack(const PanelView& view, int64_t r, float* out) {
  const uint8_t* panel = panel_of(view, r);
  const int lane = panel_lane(r);
  for (int64_t b = 0; b < view.cols / kBlock; ++b, panel += kPanelBlock, out += kBlock) {
    const float scale = e8m0_to_float(panel[kScales + lane]);
    for (int c = 0; c < kBlock; ++c) {
      out[c] = e2m1_value(panel_nibble(panel, lane, c), scale) * panel_scale(view, r);
    }
  }
}

// E2M1 codes are symmetric about 0, so random bits will do.
void random(int64_t cols, uint64_t seed, std::byte* out) {
  RandomBits bits(seed);
  const RandomScaleBytes scales(cols, 254, e8m0_to_float);
  uint8_t* panel = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, panel += kPanelBlock) {
    write_random(bits, panel, kScales);
    scales.write(bits, panel + kScales);
  }
}

}  // namespace

constinit const FormatCode kMXFP4Code = {decode, encode, pack, unpack, random};

}  // namespace carpool
