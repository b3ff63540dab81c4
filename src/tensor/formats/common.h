// What the formats share: unaligned little-endian access, nibbles in the order of panels, packing row by row, random
// scales.
//
// Nothing here knows a format. Machines are little-endian, as the files are. The packing functions move 64 bits at a
// time; their check is that every format's unpack_row, which is written column by column, gives decode_row's bits.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tensor/panels.h"
#include "tensor/random_bits.h"

namespace carpool::formats {

static_assert(std::endian::native == std::endian::little, "files and panels are little-endian");

template <class T>
T load(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

template <class T>
void store(void* p, T value) {
  std::memcpy(p, &value, sizeof value);
}

inline const uint8_t* bytes_of(const void* p) { return static_cast<const uint8_t*>(p); }
inline uint8_t* bytes_of(void* p) { return static_cast<uint8_t*>(p); }

inline float half_at(const void* p) { return f16_to_float(load<uint16_t>(p)); }

// The nearest half that is finite: a scale beyond 65504 would make zeros NaN.
inline uint16_t finite_half(float value) { return float_to_f16(std::clamp(value, -65504.0f, 65504.0f)); }

// 1 / scale, or 0 where the scale is too small to divide by.
inline float inverse_of(float scale) {
  const float inverse = 1.0f / scale;
  return std::isfinite(inverse) ? inverse : 0.0f;
}

// Integer nearest to `value`, ties to even; |value| at most 2^22.
inline float rounded(float value) { return (value + 0x1.8p23f) - 0x1.8p23f; }

// Four floats that compilers keep in a register: encoders that search are slow otherwise.
using Float4 = float __attribute__((vector_size(16)));

inline Float4 all(float value) { return Float4{value, value, value, value}; }
inline Float4 rounded(Float4 value) { return (value + all(0x1.8p23f)) - all(0x1.8p23f); }
inline Float4 clamped(Float4 value, float low, float high) {
  const Float4 above = value < all(low) ? all(low) : value;
  return above > all(high) ? all(high) : above;
}

// The sum of term(0), term(4) .. term(n - 4), four terms each.
template <int n, class Term>
float sum_of(Term term) {
  Float4 sums = all(0);
  for (int i = 0; i < n; i += 4) sums += term(i);
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

// One number of the types that scales are stored in.
inline float scale_of_type(Format format, const uint8_t* p) {
  if (format == Format::kF32) return load<float>(p);
  const auto bits = load<uint16_t>(p);
  return format == Format::kBF16 ? bf16_to_float(bits) : f16_to_float(bits);
}

// The scale of row `r` and column `c` of a view whose scales lie in a grid.
inline float scale_at(const WeightView& view, int64_t r, int64_t c) {
  const ScaleGrid& grid = view.grid;
  const int64_t across = (view.cols + grid.cols - 1) / grid.cols;
  const int64_t i = view.map(r) / grid.rows * across + c / grid.cols;
  return scale_of_type(grid.format, bytes_of(view.scales) + i * (grid.format == Format::kF32 ? 4 : 2));
}

inline constexpr uint64_t kLowNibbles = 0x0f0f0f0f0f0f0f0fu;

// Eight columns, a byte each and below 16, as the word of a panel: column c in the low nibble of byte c, column 4 + c
// in the high one.
inline uint32_t paired(uint64_t columns) { return static_cast<uint32_t>(columns | columns >> 28); }

// The same for twice eight columns that lie side by side, lowest nibble first: two words.
inline uint64_t paired_neighbours(uint64_t x) {
  constexpr uint64_t kSecondBytes = 0x0000ff000000ff00u, kSecondNibbles = 0x00f000f000f000f0u;
  x = (x & 0xff0000ffff0000ffu) | (x & kSecondBytes) << 8 | (x >> 8 & kSecondBytes);
  return (x & 0xf00ff00ff00ff00fu) | (x & kSecondNibbles) << 4 | (x >> 4 & kSecondNibbles);
}

// The nibble of column `c` of row `lane` in words of 64 bytes per 8 columns.
inline int panel_nibble(const uint8_t* words, int lane, int c) {
  const uint8_t byte = words[64 * (c / 8) + 4 * lane + c % 4];
  return c % 8 < 4 ? byte & 15 : byte >> 4;
}

inline int panel_lane(int64_t r) { return static_cast<int>(r % kPanelRows); }
inline float panel_scale(const PanelView& view, int64_t r) { return view.scale[r / kPanelRows % 2]; }
inline const uint8_t* panel_of(const PanelView& view, int64_t r) { return bytes_of(view.panel(r / kPanelRows)); }

// Packs a panel of a format whose stored blocks (kStored bytes) and panel blocks (kPanel bytes) cover the same columns:
// calls one(stored block, lane, panel block). Rows past the last are blocks of zero bytes.
template <size_t kStored, size_t kPanel, class One>
void pack_blocks(const WeightView& view, int64_t p, std::byte* out, One one) {
  static constexpr uint8_t kZeros[kStored] = {};
  const uint8_t* rows[kPanelRows];
  size_t steps[kPanelRows];
  for (int r = 0; r < kPanelRows; ++r) {
    const int64_t row = p * kPanelRows + r;
    rows[r] = row < view.rows ? bytes_of(view.row(row)) : kZeros;
    steps[r] = row < view.rows ? kStored : 0;
  }
  const int64_t blocks = view.cols / info(view.format).block_elements;
  uint8_t* panel = bytes_of(out);
  for (int64_t b = 0; b < blocks; ++b, panel += kPanel) {
    for (int r = 0; r < kPanelRows; ++r) {
      one(rows[r], r, panel);
      rows[r] += steps[r];
    }
  }
}

// Where the 16 rows of panel `p` begin; nullptr past the last row.
struct PanelRows {
  const uint8_t* row[kPanelRows];

  PanelRows(const WeightView& view, int64_t p) {
    for (int r = 0; r < kPanelRows; ++r) {
      const int64_t at = p * kPanelRows + r;
      row[r] = at < view.rows ? bytes_of(view.row(at)) : nullptr;
    }
  }
};

// Transposes a square of elements T, a row a word: exchanges ever smaller squares.
template <class T>
void transpose(uint64_t (&words)[8 / sizeof(T)]) {
  constexpr int kSize = 8 / sizeof(T), kBits = 8 * sizeof(T);
  for (int width = 32; width >= kBits; width /= 2) {
    const uint64_t lower = ~uint64_t{0} / ((uint64_t{1} << width) + 1);  // the lower `width` bits of every 2 * width
    const int step = width / kBits;
    for (int i = 0; i < kSize; ++i) {
      if (i & step) continue;
      const uint64_t swapped = ((words[i] >> width) ^ words[i + step]) & lower;
      words[i + step] ^= swapped;
      words[i] ^= swapped << width;
    }
  }
}

// Writes elements first..first + count of 16 rows side by side: out[k * kPanelRows + r] = row r, element first + k.
// Rows that are nullptr are zeros. A cache line of every row at a time, so that rows whose distance is a power of two
// do not evict each other.
template <class T>
void interleave(const PanelRows& rows, int64_t first, int64_t count, uint8_t* out) {
  constexpr int kSize = 8 / sizeof(T);
  constexpr int64_t kLine = 64 / sizeof(T), kStep = kPanelRows * sizeof(T);
  for (int64_t line = 0; line < count; line += kLine) {
    const int64_t end = std::min(line + kLine, count), whole = line + (end - line) / kSize * kSize;
    for (int r = 0; r < kPanelRows; r += kSize) {
      uint8_t* column = out + line * kStep + r * sizeof(T);
      for (int64_t k = line; k < whole; k += kSize, column += kSize * kStep) {
        uint64_t words[kSize];
        for (int i = 0; i < kSize; ++i) {
          words[i] = rows.row[r + i] ? load<uint64_t>(rows.row[r + i] + (first + k) * sizeof(T)) : 0;
        }
        transpose<T>(words);
        for (int i = 0; i < kSize; ++i) store(column + i * kStep, words[i]);
      }
      for (int64_t k = whole; k < end; ++k, column += kStep) {
        for (int i = 0; i < kSize; ++i) {
          const T value = rows.row[r + i] ? load<T>(rows.row[r + i] + (first + k) * sizeof(T)) : T{0};
          store(column + i * sizeof(T), value);
        }
      }
    }
  }
}

// 16 factors evenly spread over 0.53 .. 1.47, so that random blocks do not all have one scale; mean square
// 1 + (0.0625^2) (16^2 - 1) / 12.
inline constexpr float kFactorMeanSquare = 1.0f + 0.0625f * 0.0625f * 255.0f / 12.0f;
inline float random_factor(uint64_t nibble) { return 1.0f + 0.0625f * (static_cast<float>(nibble & 15) - 7.5f); }

// Half-precision scales for codes of mean square `code_square`: values then have mean square 1 / cols.
class RandomHalves {
 public:
  RandomHalves(int64_t cols, float code_square) {
    const float scale = 1.0f / std::sqrt(code_square * kFactorMeanSquare * static_cast<float>(cols));
    for (size_t i = 0; i < 16; ++i) halves_[i] = float_to_f16(scale * random_factor(i));
  }
  // Writes the scales of the 16 rows of a block.
  void write(RandomBits& bits, uint8_t* out) const {
    uint64_t nibbles = bits.next();
    for (int r = 0; r < kPanelRows; ++r, nibbles >>= 4) store(out + 2 * r, halves_[nibbles & 15]);
  }

 private:
  std::array<uint16_t, 16> halves_;
};

// Writes `bytes` (a multiple of 8) of random bits.
inline void write_random(RandomBits& bits, uint8_t* out, int bytes) {
  for (int i = 0; i < bytes; i += 8) store(out + i, bits.next());
}

// The same of nibbles 1..15 whose mean is 8; mean square of (nibble - 8) is kNibbleMeanSquare.
inline constexpr float kNibbleMeanSquare = 280.0f / 16.0f;
inline void write_nibbles(RandomBits& bits, uint8_t* out, int bytes) {
  for (int i = 0; i < bytes; i += 8) store(out + i, bits.nibbles_without_zero());
}

// 256 values (2 i - 255) step, symmetric about 0, of mean square 1 / cols.
inline float random_level(int64_t cols, int i) {
  const float step = 1.0f / std::sqrt((65536.0f - 1.0f) / 3.0f * static_cast<float>(cols));
  return static_cast<float>(2 * i - 255) * step;
}

}  // namespace carpool::formats
