// Q4_0: blocks of 32 values with one half-precision scale; value = (code - 8) * scale, codes 0..15.
//
// A stored block is the scale and 16 bytes: byte i has column i in the low nibble and column 16 + i in the high one.
// The layout and the rounding of the encoder are those of GGUF files. Panels: see panels.h.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tensor/panels.h"
#include "tensor/random_bits.h"

namespace carpool {

extern const FormatCode kQ4_0Code;

namespace {

constexpr int kBlock = 32, kBlockBytes = 18, kPanelBlock = 288, kScales = 256;

uint16_t half_at(const void* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return bits;
}

void decode(const WeightView& view, int64_t r, float* out) {
  const auto* block = static_cast<const uint8_t*>(view.row(r));
  for (int64_t b = 0; b < view.cols / kBlock; ++b, block += kBlockBytes, out += kBlock) {
    const float scale = f16_to_float(half_at(block)) * view.scale;
    for (int i = 0; i < 16; ++i) {
      out[i] = static_cast<float>((block[2 + i] & 15) - 8) * scale;
      out[16 + i] = static_cast<float>((block[2 + i] >> 4) - 8) * scale;
    }
  }
}

// The scale makes the value of largest magnitude the code 0 (-8), so that the wider side of the range is used.
void encode(const float* values, int64_t cols, void* out) {
  auto* block = static_cast<uint8_t*>(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, block += kBlockBytes, values += kBlock) {
    float extreme = 0;
    for (int i = 0; i < kBlock; ++i) {
      if (std::fabs(values[i]) > std::fabs(extreme)) extreme = values[i];
    }
    const float scale = extreme / -8.0f, inverse = scale != 0 ? 1.0f / scale : 0.0f;
    const uint16_t half = float_to_f16(scale);
    std::memcpy(block, &half, 2);
    const auto quantize = [&](float v) { return std::min(15, static_cast<int>(v * inverse + 8.5f)); };
    for (int i = 0; i < 16; ++i) {
      block[2 + i] = static_cast<uint8_t>(quantize(values[i]) | quantize(values[16 + i]) << 4);
    }
  }
}

// The code 0..15 of column `c` of a stored block.
int stored_code(const uint8_t* block, int c) { return c < 16 ? block[2 + c] & 15 : block[2 + c - 16] >> 4; }

void pack(const WeightView& view, int64_t p, std::byte* out) {
  auto* panel = reinterpret_cast<uint8_t*>(out);
  for (int64_t b = 0; b < view.cols / kBlock; ++b, panel += kPanelBlock) {
    for (int r = 0; r < kPanelRows; ++r) {
      const int64_t row = p * kPanelRows + r;
      const uint8_t* block = row < view.rows ? static_cast<const uint8_t*>(view.row(row)) + b * kBlockBytes : nullptr;
      for (int j = 0; j < 4; ++j) {
        for (int c = 0; c < 4; ++c) {
          const int low = block ? stored_code(block, 8 * j + c) : 8, high = block ? stored_code(block, 8 * j + 4 + c) : 8;
          panel[64 * j + 4 * r + c] = static_cast<uint8_t>(low | high << 4);
        }
      }
      const uint16_t scale = block ? half_at(block) : 0;
      std::memcpy(panel + kScales + 2 * r, &scale, 2);
    }
  }
}

void unpack(const PanelView& view, int64_t r, float* out) {
  const auto* panel = reinterpret_cast<const uint8_t*>(view.panel(r / kPanelRows));
  const int lane = static_cast<int>(r % kPanelRows);
  const float factor = view.scale[r / kPanelRows % 2];
  for (int64_t b = 0; b < view.cols / kBlock; ++b, panel += kPanelBlock, out += kBlock) {
    const float scale = f16_to_float(half_at(panel + kScales + 2 * lane)) * factor;
    for (int c = 0; c < kBlock; ++c) {
      const uint8_t byte = panel[64 * (c / 8) + 4 * lane + c % 4];
      out[c] = static_cast<float>((c % 8 < 4 ? byte & 15 : byte >> 4) - 8) * scale;
    }
  }
}

// Codes 1..15: mean 0. Their standard deviation is sqrt(56/3) = 4.32.
void random(int64_t cols, uint64_t seed, std::byte* out) {
  RandomBits bits(seed);
  const uint16_t scale = float_to_f16(1.0f / (4.32f * std::sqrt(static_cast<float>(cols))));
  auto* panel = reinterpret_cast<uint8_t*>(out);
  for (int64_t b = 0; b < cols / kBlock; ++b, panel += kPanelBlock) {
    for (int i = 0; i < kScales; i += 8) {
      const uint64_t codes = bits.nibbles_without_zero();
      std::memcpy(panel + i, &codes, 8);
    }
    for (int r = 0; r < kPanelRows; ++r) std::memcpy(panel + kScales + 2 * r, &scale, 2);
  }
}

}  // namespace

constinit const FormatCode kQ4_0Code = {decode, encode, pack, unpack, random};

}  // namespace carpool
