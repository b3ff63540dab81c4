// NVFP4: blocks of 16 E2M1 values with one E4M3 scale; value = (E2M1 * block scale, exact) * scale of the matrix.
//
// Stored in two ways (format.h). GGUF: 64 columns are 4 scale bytes, then 4 times 8 bytes, byte i of which has column i
// in the low nibble and column 8 + i in the high one. Its scales are unsigned: bit 7 is ignored and 0x7f means 0;
// 0xff, which nobody writes, is NaN. ModelOpt: nibbles in the order of columns, scales apart, E4M3 with sign. Panels
// (panels.h) hold plain E4M3 scales for both.
#include "tensor/formats/e2m1.h"

namespace carpool {

extern const FormatCode kNVFP4Code;

namespace {

using namespace formats;

constexpr int kBlock = 16, kSuperBlock = 64, kSuperBytes = 36, kPanelBlock = 144, kScales = 128;

// GGUF's scale byte as E4M3.
uint8_t signed_scale(uint8_t byte) { return byte == 0x7f ? 0 : byte & 0x7f; }

// Scale byte and 8 bytes of nibbles of 16 columns of a GGUF row.
struct Gguf {
  uint8_t scale;
  const uint8_t* nibbles;
};
Gguf gguf_block(const uint8_t* row, int64_t b) {
  const uint8_t* super = row + b / 4 * kSuperBytes;
  return {signed_scale(super[b % 4]), super + 4 + 8 * (b % 4)};
}

const uint8_t* scales_of(const WeightView& view, int64_t r) {
  return bytes_of(view.scales) + view.map(r) * (view.cols / kBlock);
}

void decode(const WeightView& view, int64_t r, float* out) {
  const uint8_t* row = bytes_of(view.row(r));
  for (int64_t b = 0; b < view.cols / kBlock; ++b, out += kBlock) {
    if (view.nibbles_apart()) {
      const float scale = e4m3_to_float(scales_of(view, r)[b]);
      for (int c = 0; c < kBlock; ++c) {
        const uint8_t byte = row[8 * b + c / 2];
        out[c] = e2m1_value(c % 2 ? byte >> 4 : byte & 15, scale) * view.scale;
      }
    } else {
      const Gguf block = gguf_block(row, b);
      const float scale = e4m3_to_float(block.scale);
      for (int c = 0; c < kBlock; ++c) {
        const uint8_t byte = block.nibbles[c % 8];
        out[c] = e2m1_value(c < 8 ? byte & 15 : byte >> 4, scale) * view.scale;
      }
    }
  }
}

// Sum of squares of what rounding to E2M1 times `scale` changes: steps of a half below 2, of 1 below 4, of 2 to 6.
float squared_error(const float* magnitudes, float scale) {
  const Float4 inverse = all(inverse_of(scale));
  return sum_of<kBlock>([&](int i) {
    const Float4 m = clamped(load<Float4>(magnitudes + i) * inverse, 0.0f, 6.0f);
    const Float4 halves = rounded(m * all(2.0f)) * all(0.5f), twos = rounded(m * all(0.5f)) * all(2.0f);
    const Float4 coarse = m < all(4.0f) ? rounded(m) : twos, nearest = m < all(2.0f) ? halves : coarse;
    const Float4 error = nearest * all(scale) - load<Float4>(magnitudes + i);
    return error * error;
  });
}

// The E4M3 scale of least squared error. Tried: from one below largest / 6, where the largest value is a 6, to
// somewhat above largest / 4, where it is a 4 and the values between are closer together.
uint8_t best_scale(const float* values) {
  float largest = 0, magnitudes[kBlock];
  for (int i = 0; i < kBlock; ++i) {
    magnitudes[i] = std::fabs(values[i]);
    largest = std::max(largest, magnitudes[i]);
  }
  const int first = std::max(float_to_e4m3(largest / 6.0f) - 1, 0), last = std::min(first + 7, 0x7e);
  int best = 0;
  float least = std::numeric_limits<float>::infinity();
  for (int code = first; code <= last; ++code) {
    const float error = squared_error(magnitudes, e4m3_to_float(static_cast<uint8_t>(code)));
    if (error < least) best = code, least = error;
  }
  return static_cast<uint8_t>(std::isinf(least) ? last : best);  // squares beyond float32: the largest scale
}

void encode(const float* values, int64_t cols, void* out) {
  uint8_t* super = bytes_of(out);
  for (int64_t s = 0; s < cols / kSuperBlock; ++s, super += kSuperBytes) {
    for (int b = 0; b < 4; ++b, values += kBlock) {
      super[b] = best_scale(values);
      const float scale = e4m3_to_float(super[b]);
      for (int i = 0; i < 8; ++i) {
        const uint8_t low = scale > 0 ? e2m1_of(values[i], scale) : 0;
        const uint8_t high = scale > 0 ? e2m1_of(values[8 + i], scale) : 0;
        super[4 + 8 * b + i] = static_cast<uint8_t>(low | high << 4);
      }
    }
  }
}

void pack_gguf(const WeightView& view, int64_t p, std::byte* out) {
  pack_blocks<kSuperBytes, 4 * kPanelBlock>(view, p, out, [](const uint8_t* super, int r, uint8_t* panel) {
    for (int b = 0; b < 4; ++b, panel += kPanelBlock) {
      const uint64_t nibbles = load<uint64_t>(super + 4 + 8 * b);
      store(panel + 4 * r, paired(nibbles & kLowNibbles));
      store(panel + 64 + 4 * r, paired(nibbles >> 4 & kLowNibbles));
      panel[kScales + r] = signed_scale(super[b]);
    }
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
      const uint64_t words = exists ? paired_neighbours(load<uint64_t>(nibbles + 8 * b)) : 0;
      store(panel + 4 * r, static_cast<uint32_t>(words));
      store(panel + 64 + 4 * r, static_cast<uint32_t>(words >> 32));
      panel[kScales + r] = exists ? scales[b] : 0;
    }
  }
}

void unpack(const PanelView& view, int64_t r, float* out) {
  const uint8_t* panel = panel_of(view, r);
  const int lane = panel_lane(r);
  for (int64_t b = 0; b < view.cols / kBlock; ++b, panel += kPanelBlock, out += kBlock) {
    const float scale = e4m3_to_float(panel[kScales + lane]);
    for (int c = 0; c < kBlock; ++c) {
      out[c] = e2m1_value(panel_nibble(panel, lane, c), scale) * panel_scale(view, r);
    }
  }
}

// E2M1 codes are symmetric about 0, so random bits will do.
void random(int64_t cols, uint64_t seed, std::byte* out) {
  RandomBits bits(seed);
  const RandomScaleBytes scales(cols, 0x7e, e4m3_to_float);
  uint8_t* panel = bytes_of(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, panel += kPanelBlock) {
    write_random(bits, panel, kScales);
    scales.write(bits, panel + kScales);
  }
}

}  // namespace

constinit const FormatCode kNVFP4Code = {decode, encode, pack, unpack, random};

}  // namespace carpool
