// See matrix_encoder.h.
#include "model/matrix_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace carpool {
namespace {

constexpr float kLargestE2m1 = 6, kLargestE4m3 = 448, kLargestF16 = 65504;
constexpr int64_t kBlock = 16, kSuper = 64;           // columns of an NVFP4 block, and of GGUF's four
constexpr size_t kSuperBytes = 36, kSuperScales = 4;  // of GGUF
constexpr int64_t kFp8Block = 128;

size_t stored_bytes(Format format, int64_t cols) {
  return static_cast<size_t>(cols / info(format).block_elements) * static_cast<size_t>(info(format).block_bytes);
}

// Decodes every row and calls visit(row, values); rows run in parallel, so visit touches what is its row's only.
template <class Visit>
void for_each_row(const WeightView& view, ThreadPool& pool, const Visit& visit) {
  std::vector<std::vector<float>> buffers(static_cast<size_t>(pool.size()));
  for (auto& b : buffers) b.resize(static_cast<size_t>(view.cols));
  pool.run(static_cast<int>(view.rows), [&](int row, int worker) {
    float* values = buffers[static_cast<size_t>(worker)].data();
    decode_row(view, row, values);
    visit(static_cast<int64_t>(row), values);
  });
}

// The largest magnitude; refuses what is not finite.
float largest(const WeightView& view, ThreadPool& pool, const std::string& what) {
  std::vector<float> of_row(static_cast<size_t>(view.rows));
  for_each_row(view, pool, [&](int64_t r, const float* values) {
    float most = 0;
    bool finite = true;
    for (int64_t c = 0; c < view.cols; ++c) {
      finite = finite && std::isfinite(values[c]);
      most = std::max(most, std::fabs(values[c]));
    }
    of_row[static_cast<size_t>(r)] = finite ? most : INFINITY;
  });
  float most = 0;  // of no rows too
  for (const float m : of_row) most = std::max(most, m);
  if (!std::isfinite(most)) throw Error(ErrorKind::kMalformed, what + ": holds values that are NaN or infinite");
  return most;
}

std::vector<std::byte> encode_rows(const WeightView& view, Format format, ThreadPool& pool) {
  const size_t row_bytes = stored_bytes(format, view.cols);
  std::vector<std::byte> out(row_bytes * static_cast<size_t>(view.rows));
  for_each_row(view, pool, [&](int64_t r, const float* values) {
    encode_row(format, values, view.cols, out.data() + static_cast<size_t>(r) * row_bytes);
  });
  return out;
}

// The 16 columns of a block of a GGUF row to nibbles in the order of columns, and back.
void columns_in_order(const uint8_t* gguf, uint8_t* apart) {
  for (int c = 0; c < kBlock; c += 2) {
    const auto code = [&](int i) { return i < 8 ? gguf[i] & 15 : gguf[i - 8] >> 4; };
    apart[c / 2] = static_cast<uint8_t>(code(c) | code(c + 1) << 4);
  }
}
void columns_in_halves(const uint8_t* apart, uint8_t* gguf) {
  for (int i = 0; i < 8; ++i) {
    const auto code = [&](int c) { return c % 2 ? apart[c / 2] >> 4 : apart[c / 2] & 15; };
    gguf[i] = static_cast<uint8_t>(code(i) | code(8 + i) << 4);
  }
}

// A scale byte of GGUF as E4M3 with sign, as decode_row reads it: bit 7 is ignored, 0x7f means 0, and 0xff stays NaN.
std::byte signed_scale(uint8_t byte) { return std::byte{static_cast<uint8_t>(byte == 0x7f ? 0 : byte & 0x7f)}; }

// GGUF rows of `padded` columns (a multiple of 64) to ModelOpt's two tensors of `cols` columns.
void to_checkpoint(const std::byte* rows, int64_t n, int64_t cols, EncodedMatrix& out) {
  const int64_t padded = (cols + kSuper - 1) / kSuper * kSuper, blocks = cols / kBlock;
  out.data.resize(static_cast<size_t>(n * cols / 2));
  out.scales.resize(static_cast<size_t>(n * blocks));
  for (int64_t r = 0; r < n; ++r) {
    const auto* row =
        reinterpret_cast<const uint8_t*>(rows) + static_cast<size_t>(r) * stored_bytes(Format::kNVFP4, padded);
    for (int64_t b = 0; b < blocks; ++b) {
      const uint8_t* super = row + b / 4 * static_cast<int64_t>(kSuperBytes);
      out.scales[static_cast<size_t>(r * blocks + b)] = signed_scale(super[b % 4]);
      columns_in_order(super + kSuperScales + 8 * (b % 4),
                       reinterpret_cast<uint8_t*>(out.data.data()) + (r * blocks + b) * 8);
    }
  }
}

// ModelOpt's tensors as GGUF rows; false when a scale is negative or NaN, which GGUF does not have.
bool to_gguf(const WeightView& view, std::vector<std::byte>& out) {
  const int64_t blocks = view.cols / kBlock;
  const auto* scales = static_cast<const uint8_t*>(view.scales);
  if (std::any_of(scales, scales + view.rows * blocks, [](uint8_t s) { return s >= 0x7f; })) return false;
  out.resize(stored_bytes(Format::kNVFP4, view.cols) * static_cast<size_t>(view.rows));
  auto* to = reinterpret_cast<uint8_t*>(out.data());
  for (int64_t b = 0; b < view.rows * blocks; ++b) {
    uint8_t* super = to + b / 4 * static_cast<int64_t>(kSuperBytes);
    super[b % 4] = scales[b];
    columns_in_halves(static_cast<const uint8_t*>(view.data) + 8 * b, super + kSuperScales + 8 * (b % 4));
  }
  return true;
}

// Scaled so that the largest value is 6 times the largest block scale.
EncodedMatrix encode_nvfp4(const WeightView& view, Layout layout, ThreadPool& pool, const std::string& what) {
  EncodedMatrix out;
  const float most = largest(view, pool, what);
  // Values below the smallest normal scale become zeros.
  if (most > 0) out.scale = std::max(most / (kLargestE2m1 * kLargestE4m3), std::numeric_limits<float>::min());
  const int64_t padded = (view.cols + kSuper - 1) / kSuper * kSuper;
  const size_t row_bytes = stored_bytes(Format::kNVFP4, padded);
  std::vector<std::byte> rows(row_bytes * static_cast<size_t>(view.rows));
  for_each_row(view, pool, [&](int64_t r, const float* values) {
    std::vector<float> scaled(static_cast<size_t>(padded));
    for (int64_t c = 0; c < view.cols; ++c) scaled[static_cast<size_t>(c)] = values[c] / out.scale;
    encode_row(Format::kNVFP4, scaled.data(), padded, rows.data() + static_cast<size_t>(r) * row_bytes);
  });
  if (layout == Layout::kGguf) {
    out.data = std::move(rows);
  } else {
    to_checkpoint(rows.data(), view.rows, view.cols, out);
  }
  return out;
}

// One float32 scale for 128 x 128 values: the largest becomes 448.
EncodedMatrix encode_fp8(const WeightView& view, ThreadPool& pool, const std::string& what) {
  EncodedMatrix out;
  largest(view, pool, what);
  const int64_t across = (view.cols + kFp8Block - 1) / kFp8Block, down = (view.rows + kFp8Block - 1) / kFp8Block;
  std::vector<float> scales(static_cast<size_t>(across * down));
  out.data.resize(static_cast<size_t>(view.rows * view.cols));
  pool.run(static_cast<int>(down), [&](int block, int) {
    const int64_t first = block * kFp8Block, rows = std::min(kFp8Block, view.rows - first);
    std::vector<float> values(static_cast<size_t>(rows * view.cols));
    for (int64_t r = 0; r < rows; ++r) decode_row(view, first + r, values.data() + r * view.cols);
    for (int64_t b = 0; b < across; ++b) {
      const int64_t begin = b * kFp8Block, end = std::min(begin + kFp8Block, view.cols);
      float most = 0;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = begin; c < end; ++c)
          most = std::max(most, std::fabs(values[static_cast<size_t>(r * view.cols + c)]));
      }
      const float scale = most > 0 ? std::max(most / kLargestE4m3, std::numeric_limits<float>::min()) : 1.0f;
      scales[static_cast<size_t>(block * across + b)] = scale;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = begin; c < end; ++c) {
          out.data[static_cast<size_t>((first + r) * view.cols + c)] =
              std::byte{float_to_e4m3(values[static_cast<size_t>(r * view.cols + c)] / scale)};
        }
      }
    }
  });
  out.scales.resize(scales.size() * sizeof(float));
  if (!scales.empty()) std::memcpy(out.scales.data(), scales.data(), out.scales.size());
  return out;
}

std::vector<std::byte> copied(const void* from, size_t bytes) {
  std::vector<std::byte> out(bytes);
  if (bytes > 0) std::memcpy(out.data(), from, bytes);
  return out;
}

// The matrix's own bits where they mean the same in the other file; false when it has to be encoded.
bool keep(const WeightView& view, Format format, Layout layout, EncodedMatrix& out) {
  if (view.format != format || !view.map.is_identity()) return false;
  out.scale = view.scale;
  if (format == Format::kNVFP4) {
    if (view.nibbles_apart() && layout == Layout::kGguf) return to_gguf(view, out.data);
    if (!view.nibbles_apart() && layout == Layout::kCheckpoint) {
      to_checkpoint(static_cast<const std::byte*>(view.data), view.rows, view.cols, out);
      return true;
    }
    out.data = copied(view.data, view.bytes());
    if (view.nibbles_apart()) out.scales = copied(view.scales, static_cast<size_t>(view.rows * view.cols / kBlock));
    return true;
  }
  if (view.scale != 1.0f || (view.scales && format != Format::kFP8)) return false;
  if (format == Format::kFP8) {
    const ScaleGrid& grid = view.grid;
    if (!view.scales || grid.format != Format::kF32 || grid.rows != kFp8Block || grid.cols != kFp8Block) return false;
    const int64_t across = (view.cols + kFp8Block - 1) / kFp8Block, down = (view.rows + kFp8Block - 1) / kFp8Block;
    out.scales = copied(view.scales, static_cast<size_t>(across * down) * sizeof(float));
  }
  out.data = copied(view.data, view.bytes());
  return true;
}

}  // namespace

EncodedMatrix encode_matrix(const WeightView& view, Format format, Layout layout, ThreadPool& pool,
                            const std::string& what) {
  EncodedMatrix out;
  if (keep(view, format, layout, out)) return out;
  if (format == Format::kNVFP4) return encode_nvfp4(view, layout, pool, what);
  if (format == Format::kFP8) return encode_fp8(view, pool, what);
  out = {};
  const float most = largest(view, pool, what);
  if (format == Format::kF16 && most > kLargestF16) {
    throw Error(ErrorKind::kConfig,
                fmt::format("{}: holds values of up to {}, f16 ends at {}", what, most, kLargestF16));
  }
  out.data = encode_rows(view, format, pool);
  return out;
}

}  // namespace carpool
