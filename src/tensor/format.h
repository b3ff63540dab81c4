// What the bytes of a weight mean, and a view of a weight matrix as a file stores it.
//
// Owns the Format list (formats.def), WeightView, which points into a mapped file or a private copy and owns nothing,
// and the per-format code (FormatCode, one file each in formats/): rows to float32 and back, rows to panels. This is
// the slow definition of every format; fast arithmetic is kernels/, on the panels of panels.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace carpool {

enum class Format : uint8_t {
#define CARPOOL_FORMAT(id, ...) k##id,
#include "tensor/formats.def"
#undef CARPOOL_FORMAT
};

inline constexpr int kFormatCount = 0
#define CARPOOL_FORMAT(id, ...) +1
#include "tensor/formats.def"
#undef CARPOOL_FORMAT
    ;

struct FormatInfo {
  std::string_view name;              // "bf16"
  std::string_view safetensors_name;  // "BF16"; "" when no safetensors dtype means this format by itself
  int gguf_type;                      // id of the tensor type in GGUF files; -1 = none
  int block_elements;                 // consecutive elements of a stored row that share a block
  int block_bytes;
  int panel_elements;  // consecutive k of 16 rows that share a block of a panel
  int panel_bytes;
};

const FormatInfo& info(Format format);

// The format that safetensors calls `dtype`, whose name is `name`, or that GGUF numbers `type`; nullptr for none.
const Format* format_of_safetensors(std::string_view dtype);
const Format* format_of_name(std::string_view name);
const Format* format_of_gguf(int64_t type);

// Names of all formats, "f32, bf16, ...", for messages.
std::string_view format_names();

// Which of the rows that a file stores are the rows of a view: runs of `run` neighbours whose first ones are `step`
// apart, from `first` on. Gate and up rows that lie in one tensor, or the key rows of every head.
struct RowMap {
  int64_t first = 0;
  int64_t run = 0, step = 0;  // run 0: all neighbours

  int64_t operator()(int64_t r) const { return first + (run == 0 ? r : r / run * step + r % run); }
  bool is_identity() const { return first == 0 && run == 0; }
};

// Scales in a tensor of their own that is not fixed by the format: their type (float32, bfloat16 or half) and how many
// rows and columns of the matrix share one. Edges may be ragged.
struct ScaleGrid {
  Format format = Format::kF32;
  int64_t rows = 128, cols = 128;
};

// A weight matrix [rows, cols] (rows = outputs), row-major, rows contiguous; vectors have rows = 1. cols is a multiple
// of block_elements. Some checkpoints keep the scales of a format in a tensor of their own; then `scales` is not null:
//   NVFP4  data [rows, cols/2] (low nibble = even column), scales E4M3 [rows, cols/16]     (ModelOpt)
//   MXFP4  data [rows, cols/2] (low nibble = even column), scales E8M0 [rows, cols/32]     (gpt-oss)
//   INT4, INT4F, INT8  data [rows, cols/2] (low nibble = even column) or [rows, cols], codes 8 or 128 too large, scales
//          of `grid`; `zeros`, if set, 32-bit words [ceil(rows*bits/32), groups] of unsigned zero points of
//          neighbouring rows, lowest bits first                                           (compressed-tensors)
//   FP8    data [rows, cols], scales of `grid`, [ceil(rows/grid.rows), ceil(cols/grid.cols)], multiplied; null = all 1
// Without them NVFP4 and MXFP4 rows are GGUF's blocks. `scale` multiplies every value (NVFP4's second scale, FP8 per
// tensor), after all that the stored bytes say: one rounding more. With scales apart, cols need only be a multiple of
// 16 (NVFP4) or 32 (MXFP4). `data` and `scales` may lie at any address. They are of all stored rows; `map` says which
// of those the view's rows are.
struct WeightView {
  Format format = Format::kF32;
  const void* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  const void* scales = nullptr;
  float scale = 1.0f;
  RowMap map = {};
  ScaleGrid grid = {};          // FP8: grid.cols a multiple of 128, or at least cols; INT4, INT4F, INT8: of 32
  const void* zeros = nullptr;  // INT4F, INT8

  bool nibbles_apart() const { return scales != nullptr && format != Format::kFP8 && format != Format::kINT8; }
  // Bytes of a row of `data`.
  size_t row_bytes() const {
    if (nibbles_apart()) return static_cast<size_t>(cols) / 2;
    if (scales) return static_cast<size_t>(cols);
    return static_cast<size_t>(cols / info(format).block_elements) * static_cast<size_t>(info(format).block_bytes);
  }
  // Bytes of the view's rows, scales apart.
  size_t bytes() const { return row_bytes() * static_cast<size_t>(rows); }
  const void* row(int64_t r) const {
    return static_cast<const std::byte*>(data) + static_cast<size_t>(map(r)) * row_bytes();
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

// IEEE half precision, every bit pattern; rounding to nearest even, overflow to infinity, NaN stays NaN.
float f16_to_float(uint16_t bits);
uint16_t float_to_f16(float value);
// OCP FP8 E4M3 (FN): no infinity, NaN = 0x7f and 0xff, largest 448. Rounding to nearest even, saturating.
float e4m3_to_float(uint8_t bits);
uint8_t float_to_e4m3(float value);
// OCP E8M0: 2^(bits - 127); 255 is NaN.
float e8m0_to_float(uint8_t bits);
// OCP E2M1 (4 bits): 0, 0.5, 1, 1.5, 2, 3, 4, 6 and, with bit 3 set, their negatives.
float e2m1_to_float(uint8_t bits);

// Writes row `r` of `view` as float32 to out[0..cols). The definition of every format.
void decode_row(const WeightView& view, int64_t r, float* out);

// Writes `cols` values (a multiple of block_elements, all finite) as one stored row of `format` to `out`
// ([cols / block_elements * block_bytes] bytes), with unit `scale`: what `carpool quantize` writes. FP8 has no scales
// then, so values beyond 448 saturate; so does what is too large for the scales of a block. NVFP4's scales reach down
// to 2^-9 only: usual weights want dividing by WeightView::scale = largest / (6 * 448) first.
void encode_row(Format format, const float* values, int64_t cols, void* out);

struct PanelView;

// The code of one format; formats/<name>.cc defines one each and format.cc collects them.
struct FormatCode {
  void (*decode_row)(const WeightView& view, int64_t r, float* out);
  void (*encode_row)(const float* values, int64_t cols, void* out);
  // Rows [16 p, 16 p + 16) of `view` as one panel; rows past the end are zeros. See panels.h.
  void (*pack_panel)(const WeightView& view, int64_t p, std::byte* out);
  // Row `r` of panels as float32, the same bits that decode_row gave before packing.
  void (*unpack_row)(const PanelView& view, int64_t r, float* out);
  // A panel of `cols` columns of pseudo-random weights, mean 0 and standard deviation near 1/sqrt(cols), from `seed`.
  void (*random_panel)(int64_t cols, uint64_t seed, std::byte* out);
};

const FormatCode& code(Format format);

}  // namespace carpool
