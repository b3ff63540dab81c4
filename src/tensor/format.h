// What the bytes of a weight mean, and a view of a weight matrix in memory.
//
// Owns the Format list (formats.def) and WeightView, which points into a mapped file or a private copy and
// owns nothing. Does not own arithmetic: that is kernels/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace carpool {

enum class Format : uint8_t {
#define CARPOOL_FORMAT(id, name, dtype, elements, bytes) k##id,
#include "tensor/formats.def"
#undef CARPOOL_FORMAT
};

inline constexpr int kFormatCount = 0
#define CARPOOL_FORMAT(id, name, dtype, elements, bytes) +1
#include "tensor/formats.def"
#undef CARPOOL_FORMAT
    ;

struct FormatInfo {
  std::string_view name;              // "bf16"
  std::string_view safetensors_name;  // "BF16"
  int block_elements;                 // consecutive elements of a row that share a block
  int block_bytes;
};

const FormatInfo& info(Format format);

// The format that safetensors calls `dtype`, or nullptr when no kernel reads it.
const Format* format_of_safetensors(std::string_view dtype);

// Names of all formats, "f32, bf16", for messages.
std::string_view format_names();

// A weight matrix [rows, cols] (rows = outputs), row-major, rows contiguous; vectors have rows = 1.
struct WeightView {
  Format format = Format::kF32;
  const void* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;

  size_t row_bytes() const {
    return static_cast<size_t>(cols / info(format).block_elements) * static_cast<size_t>(info(format).block_bytes);
  }
  size_t bytes() const { return row_bytes() * static_cast<size_t>(rows); }
  const void* row(int64_t r) const {
    return static_cast<const std::byte*>(data) + static_cast<size_t>(r) * row_bytes();
  }
};

// The value of a bfloat16: the upper half of a float32.
inline float bf16_to_float(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  return __builtin_bit_cast(float, wide);
}

// Round to nearest, ties to even; NaN stays NaN.
inline uint16_t float_to_bf16(float value) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Writes row `r` of `view` as float32 to out[0..cols). The scalar definition of every format.
void decode_row(const WeightView& view, int64_t r, float* out);

}  // namespace carpool
