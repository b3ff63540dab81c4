// The finite check: integer compares on the bit patterns, in a shape that compilers turn into vector code.
#include "io/tensor_info.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "io/dtype.h"

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

}  // namespace

NonFinite scan_non_finite(const TensorInfo& tensor) {
  const DtypeInfo* dtype = find_dtype(tensor.dtype);
  CARPOOL_CHECK(dtype != nullptr);
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
