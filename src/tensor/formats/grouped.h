// What the integer formats with scales of groups share: zero points that are packed along rows.
#pragma once

#include "tensor/formats/common.h"

namespace carpool::formats {

// The unsigned zero point of row `r` and column `c`: bits kBits * (row % n) of a 32-bit word, n rows a word, of the
// words [ceil(rows / n), groups].
template <int kBits>
int zero_at(const WeightView& view, int64_t r, int64_t c) {
  constexpr int64_t kPerWord = 32 / kBits;
  const int64_t groups = (view.cols + view.grid.cols - 1) / view.grid.cols, row = view.map(r);
  const auto word = load<uint32_t>(bytes_of(view.zeros) + 4 * (row / kPerWord * groups + c / view.grid.cols));
  return static_cast<int>(word >> kBits * (row % kPerWord) & ((1u << kBits) - 1));
}

// 32 columns of nibbles that lie in the order of columns, as row `r` of a panel.
inline void pack_neighbours32(const uint8_t* nibbles, int r, uint8_t* panel) {
  for (int half = 0; half < 2; ++half) {
    const uint64_t words = paired_neighbours(load<uint64_t>(nibbles + 8 * half));
    store(panel + 128 * half + 4 * r, static_cast<uint32_t>(words));
    store(panel + 128 * half + 64 + 4 * r, static_cast<uint32_t>(words >> 32));
  }
}

inline int neighbour_nibble(const uint8_t* nibbles, int c) { return c % 2 ? nibbles[c / 2] >> 4 : nibbles[c / 2] & 15; }

}  // namespace carpool::formats
