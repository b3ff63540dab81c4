// The finite check: integer compares on the bit patterns, in a shape that compilers turn into vector code.
#include "io/tensor_info.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "io/dtype.h"
#include "tensor/format.h"

namespace carpool {
namespace {

// Word is as wide as one element. `mask` and `pattern` as in DtypeInfo.
template <typename Word>
NonFinite scan(const std::byte* data, size_t n, Word mask, Word pattern) {
  const auto bad_at = [&](size_t i) {
    Word w;
    std::memcpy(&w, data + i * sizeof(Word), sizeof(Word));  // the data may be unaligned
    return static_cast<Word>(w & mask) == pattern;
  };
  constexpr size_t kBlock = 16384;  // a short inner loop whose narrow counter cannot wrap
  NonFinite result;
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t end = std::min(n, begin + kBlock);
    uint32_t bad = 0;
    for (size_t i = begin; i < end; ++i) bad += bad_at(i) ? 1u : 0u;
    if (bad != 0 && result.count == 0) {
      size_t i = begin;
      while (!bad_at(i)) ++i;
      result.first_index = static_cast<int64_t>(i);
    }
    result.count += bad;
  }
  return result;
}

// The scales in a stored block: `count` of `bytes` bytes each from byte `offset` on, bad as in DtypeInfo.
struct BlockScales {
  Format format;
  size_t offset, count, bytes;
  uint16_t mask, pattern;
  bool shared = false;  // each multiplies all elements of the block: a scale and the scale of the minima
};
constexpr BlockScales kBlockScales[] = {
    {Format::kQ8_0, 0, 1, 2, 0x7c00, 0x7c00},        {Format::kQ4_0, 0, 1, 2, 0x7c00, 0x7c00},
    {Format::kNVFP4, 0, 4, 1, 0xff, 0xff},  // 0x7f stands for zero there
    {Format::kMXFP4, 0, 1, 1, 0xff, 0xff},           {Format::kQ4_1, 0, 2, 2, 0x7c00, 0x7c00, true},
    {Format::kQ5_0, 0, 1, 2, 0x7c00, 0x7c00},        {Format::kQ5_1, 0, 2, 2, 0x7c00, 0x7c00, true},
    {Format::kQ2_K, 80, 2, 2, 0x7c00, 0x7c00, true}, {Format::kQ3_K, 108, 1, 2, 0x7c00, 0x7c00},
    {Format::kQ4_K, 0, 2, 2, 0x7c00, 0x7c00, true},  {Format::kQ5_K, 0, 2, 2, 0x7c00, 0x7c00, true},
    {Format::kQ6_K, 208, 1, 2, 0x7c00, 0x7c00},      {Format::kIQ4_NL, 0, 1, 2, 0x7c00, 0x7c00},
    {Format::kIQ4_XS, 0, 1, 2, 0x7c00, 0x7c00},
};

// Counts the elements of blocks that a scale spoils.
NonFinite scan_blocks(const TensorInfo& tensor, const BlockScales& scales) {
  const FormatInfo& format = info(scales.format);
  const size_t per_block = static_cast<size_t>(format.block_elements);
  const size_t spoiled = scales.shared ? per_block : per_block / scales.count;
  NonFinite result;
  const size_t blocks = tensor.bytes / static_cast<size_t>(format.block_bytes);
  for (size_t b = 0; b < blocks; ++b) {
    const std::byte* at = tensor.data + b * static_cast<size_t>(format.block_bytes) + scales.offset;
    for (size_t i = 0; i < scales.count; ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, at + i * scales.bytes, scales.bytes);  // little-endian
      if ((bits & scales.mask) != scales.pattern) continue;
      if (result.count == 0)
        result.first_index = static_cast<int64_t>(b * per_block + (scales.shared ? 0 : i * spoiled));
      result.count += spoiled;
      if (scales.shared) break;
    }
  }
  return result;
}

}  // namespace

NonFinite scan_non_finite(const TensorInfo& tensor) {
  const DtypeInfo* dtype = find_dtype(tensor.dtype);
  if (dtype == nullptr) {
    const Format* format = format_of_name(tensor.dtype);
    CARPOOL_CHECK(format != nullptr);
    for (const BlockScales& scales : kBlockScales) {
      if (scales.format == *format) return scan_blocks(tensor, scales);
    }
    check_failed(__FILE__, __LINE__, "every format made of blocks says where its scales are");
  }
  if (dtype->non_finite_mask == 0) return {};
  const size_t n = tensor.bytes * 8 / static_cast<size_t>(dtype->bits);
  const uint64_t mask = dtype->non_finite_mask, pattern = dtype->non_finite_pattern;
  switch (dtype->bits) {
    case 8:
      return scan(tensor.data, n, static_cast<uint8_t>(mask), static_cast<uint8_t>(pattern));
    case 16:
      return scan(tensor.data, n, static_cast<uint16_t>(mask), static_cast<uint16_t>(pattern));
    case 32:
      return scan(tensor.data, n, static_cast<uint32_t>(mask), static_cast<uint32_t>(pattern));
    default:
      return scan(tensor.data, n, mask, pattern);
  }
}

}  // namespace carpool
