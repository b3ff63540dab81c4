// The lower two bits of the codes of Q2_K and Q3_K: in 64 stored bytes, and in panels.
#pragma once

#include "tensor/formats/common.h"

namespace carpool::formats {

// Where column `c` of 256 lies: byte i of either half's 32 has columns i, 32 + i, 64 + i, 96 + i of the half, lowest
// first.
struct TwoBitPlace {
  int byte, shift;
  explicit constexpr TwoBitPlace(int c) : byte(32 * (c / 128) + c % 32), shift(2 * (c % 128 / 32)) {}
};

// 16 columns from `c` on as the word of a panel: byte i has columns i, 4 + i, 8 + i, 12 + i, lowest first.
inline uint32_t two_bit_word(const uint8_t* stored, int c) {
  constexpr uint64_t kTwoBits = 0x0303030303030303u;
  const TwoBitPlace at(c);
  const uint64_t first = load<uint64_t>(stored + at.byte) >> at.shift & kTwoBits;
  const uint64_t second = load<uint64_t>(stored + at.byte + 8) >> at.shift & kTwoBits;
  return static_cast<uint32_t>(first | first >> 30 | second << 4 | second >> 26);
}

// Column c's two bits of row `lane` in such words.
inline int panel_two_bits(const uint8_t* words, int lane, int c) { return words[4 * lane + c % 4] >> 2 * (c / 4) & 3; }

}  // namespace carpool::formats
