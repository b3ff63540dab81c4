#include "tensor/kv_block.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tensor/format.h"

namespace carpool {
namespace {

constexpr size_t kAlign = 64;

int ceil_div(int n, int d) { return (n + d - 1) / d; }

size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Bytes of `elements` times 16 positions; `scaled` of the elements have scales.
size_t part_bytes(KvFormat format, int elements, int scaled) {
  const size_t n = static_cast<size_t>(elements) * kKvPositions;
  switch (format) {
    case KvFormat::kF32:
      return aligned(n * sizeof(float));
    case KvFormat::kBF16:
      return aligned(n * sizeof(uint16_t));
    case KvFormat::kQ8:
      break;
  }
  return aligned(n + static_cast<size_t>(ceil_div(scaled, kKvScaleGroup)) * kKvPositions * sizeof(uint16_t));
}

// Where element i of position `slot` stands among the elements of its part.
size_t key_at(int i, int slot) { return static_cast<size_t>(i) * kKvPositions + static_cast<size_t>(slot); }
size_t value_at(int i, int slot) {
  return (static_cast<size_t>(i / kKvChunk) * kKvPositions + static_cast<size_t>(slot)) * kKvChunk +
         static_cast<size_t>(i % kKvChunk);
}

// The smallest bfloat16 that is at least `x` >= 0, finite.
uint16_t bf16_above(float x) { return static_cast<uint16_t>((__builtin_bit_cast(uint32_t, x) + 0xffffu) >> 16); }

constexpr uint16_t kNotANumber = 0x7fc0;

// Elements and scales of one position; `at` says where an element goes.
template <class At>
void store_q8(const float* x, int n, int slot, std::byte* part, At at) {
  const int groups = ceil_div(n, kKvScaleGroup);
  auto* scales = reinterpret_cast<uint16_t*>(part);
  auto* out = reinterpret_cast<int8_t*>(part + static_cast<size_t>(groups) * kKvPositions * sizeof(uint16_t));
  for (int g = 0; g < groups; ++g) {
    const int begin = g * kKvScaleGroup, end = std::min(begin + kKvScaleGroup, n);
    float most = 0;
    bool finite = true;
    for (int i = begin; i < end; ++i) {
      most = std::max(most, std::fabs(x[i]));
      finite = finite && std::isfinite(x[i]);
    }
    const uint16_t bits = finite ? bf16_above(most / 127.0f) : kNotANumber;
    const float scale = bf16_to_float(bits);
    scales[key_at(g, slot)] = bits;
    for (int i = begin; i < end; ++i) {
      // At most 127 and a rounding; adding 1.5 * 2^23 leaves the nearest integer in the low bits.
      const float quotient = finite && scale > 0 ? x[i] / scale : 0.0f;
      const auto shifted = __builtin_bit_cast(int32_t, quotient + 12582912.0f);
      out[at(i, slot)] = static_cast<int8_t>(shifted - __builtin_bit_cast(int32_t, 12582912.0f));
    }
  }
}

template <class At>
void store_part(KvFormat format, const float* x, int n, int slot, std::byte* part, At at) {
  if (format == KvFormat::kQ8) return store_q8(x, n, slot, part, at);
  for (int i = 0; i < n; ++i) {
    if (format == KvFormat::kF32) {
      reinterpret_cast<float*>(part)[at(i, slot)] = x[i];
    } else {
      reinterpret_cast<uint16_t*>(part)[at(i, slot)] = float_to_bf16(x[i]);
    }
  }
}

template <class At>
void load_part(KvFormat format, const std::byte* part, int n, int slot, float* x, At at) {
  const auto* scales = reinterpret_cast<const uint16_t*>(part);
  const auto* bytes = reinterpret_cast<const int8_t*>(part + static_cast<size_t>(ceil_div(n, kKvScaleGroup)) *
                                                                 kKvPositions * sizeof(uint16_t));
  for (int i = 0; i < n; ++i) {
    switch (format) {
      case KvFormat::kF32:
        x[i] = reinterpret_cast<const float*>(part)[at(i, slot)];
        break;
      case KvFormat::kBF16:
        x[i] = bf16_to_float(reinterpret_cast<const uint16_t*>(part)[at(i, slot)]);
        break;
      case KvFormat::kQ8:
        x[i] = static_cast<float>(bytes[at(i, slot)]) * bf16_to_float(scales[key_at(i / kKvScaleGroup, slot)]);
        break;
    }
  }
}

// Rows of 16 positions: one column of `from` becomes one of `to`.
template <class T>
void copy_column(const std::byte* from, int from_slot, std::byte* to, int to_slot, int rows) {
  const T* in = reinterpret_cast<const T*>(from) + from_slot;
  T* out = reinterpret_cast<T*>(to) + to_slot;
  for (size_t i = 0; i < static_cast<size_t>(rows) * kKvPositions; i += kKvPositions) out[i] = in[i];
}

size_t element_bytes(KvFormat format) {
  return format == KvFormat::kF32 ? sizeof(float) : format == KvFormat::kBF16 ? sizeof(uint16_t) : 1;
}

size_t scale_bytes(KvFormat format, int n) {
  return format == KvFormat::kQ8 ? static_cast<size_t>(ceil_div(n, kKvScaleGroup)) * kKvPositions * sizeof(uint16_t)
                                 : 0;
}

}  // namespace

std::string_view name(KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return "f32";
    case KvFormat::kBF16:
      return "bf16";
    case KvFormat::kQ8:
      break;
  }
  return "q8";
}

std::optional<KvFormat> kv_format_of_name(std::string_view text) {
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBF16, KvFormat::kQ8}) {
    if (text == name(format)) return format;
  }
  return std::nullopt;
}

KvBlock::KvBlock(KvFormat format_in, int head_dim_in, int value_dim_in, bool values_in_keys_in)
    : format(format_in), head_dim(head_dim_in), value_dim(value_dim_in), values_in_keys(values_in_keys_in) {
  value_offset = part_bytes(format, head_dim, head_dim);
  bytes = value_offset;
  if (has_values()) bytes += part_bytes(format, ceil_div(value_dim, kKvChunk) * kKvChunk, value_dim);
}

void KvBlock::store(std::byte* block, int slot, const float* key, const float* value) const {
  store_part(format, key, head_dim, slot, block, key_at);
  if (has_values()) store_part(format, value, value_dim, slot, block + value_offset, value_at);
}

void KvBlock::load(const std::byte* block, int slot, float* key, float* value) const {
  load_part(format, block, head_dim, slot, key, key_at);
  if (!value || value_dim == 0) return;
  if (values_in_keys) {
    std::copy_n(key, value_dim, value);
  } else {
    load_part(format, block + value_offset, value_dim, slot, value, value_at);
  }
}

void KvBlock::copy(const std::byte* from, int from_slot, std::byte* to, int to_slot) const {
  const size_t scales = scale_bytes(format, head_dim);
  if (format == KvFormat::kF32) copy_column<uint32_t>(from, from_slot, to, to_slot, head_dim);
  if (format == KvFormat::kBF16) copy_column<uint16_t>(from, from_slot, to, to_slot, head_dim);
  if (format == KvFormat::kQ8) {
    copy_column<uint16_t>(from, from_slot, to, to_slot, ceil_div(head_dim, kKvScaleGroup));
    copy_column<uint8_t>(from + scales, from_slot, to + scales, to_slot, head_dim);
  }
  if (!has_values()) return;
  from += value_offset;
  to += value_offset;
  const size_t skipped = scale_bytes(format, value_dim), size = element_bytes(format);
  if (skipped != 0) copy_column<uint16_t>(from, from_slot, to, to_slot, ceil_div(value_dim, kKvScaleGroup));
  for (int c = 0; c * kKvChunk < value_dim; ++c) {
    std::memcpy(to + skipped + size * value_at(c * kKvChunk, to_slot),
                from + skipped + size * value_at(c * kKvChunk, from_slot), size * kKvChunk);
  }
}

}  // namespace carpool
