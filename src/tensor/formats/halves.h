// What the formats of 32 values in GGUF's older layout share: columns i and 16 + i as the low and high nibble of byte
// i, fifth bits in a word of 32, and panels of such codes.
#pragma once

#include "tensor/formats/common.h"

namespace carpool::formats {

// The codes of a block of 32; `upper` has bit c set where column c's code is 16 more.
struct Codes32 {
  uint8_t code[32];

  Codes32(const uint8_t* nibbles, uint32_t upper) {
    for (int c = 0; c < 32; ++c) {
      const int low = c < 16 ? nibbles[c] & 15 : nibbles[c - 16] >> 4;
      code[c] = static_cast<uint8_t>(low | (upper >> c & 1) << 4);
    }
  }
};

inline void store_nibbles(const uint8_t* codes, uint8_t* nibbles) {
  for (int i = 0; i < 16; ++i) nibbles[i] = static_cast<uint8_t>((codes[i] & 15) | (codes[16 + i] & 15) << 4);
}

inline uint32_t fifth_bits(const uint8_t* codes) {
  uint32_t upper = 0;
  for (int c = 0; c < 32; ++c) upper |= static_cast<uint32_t>(codes[c] >> 4 & 1) << c;
  return upper;
}

// The nibbles of row `r` of a panel of 32 columns.
inline void pack_nibbles32(const uint8_t* nibbles, int r, uint8_t* panel) {
  for (int half = 0; half < 2; ++half) {
    const uint64_t pairs = load<uint64_t>(nibbles + 8 * half);
    store(panel + 64 * half + 4 * r, paired(pairs & kLowNibbles));
    store(panel + 64 * (2 + half) + 4 * r, paired(pairs >> 4 & kLowNibbles));
  }
}

// Bit `b` of each of 32 bytes, the first byte's lowest.
inline uint32_t bits_of(const uint8_t* bytes, int b) {
  constexpr uint64_t kOnes = 0x0101010101010101u, kGather = 0x0102040810204080u;  // byte i's bit to bit 56 + i
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    out |= static_cast<uint32_t>((load<uint64_t>(bytes + 8 * i) >> b & kOnes) * kGather >> 56) << 8 * i;
  }
  return out;
}

// One bit for each of 32 columns as the word of a panel: bit g of byte c is of column 4 g + c.
inline uint32_t spread_bits(uint32_t columns) {
  constexpr uint32_t kOnes = 0x01010101u, kScatter = 0x00204081u;  // bit c of a nibble to bit 8 c
  uint32_t word = 0;
  for (int g = 0; g < 8; ++g) word |= ((columns >> 4 * g & 15) * kScatter & kOnes) << g;
  return word;
}

// Column c's bit of row `lane` in such words.
inline int panel_bit(const uint8_t* words, int lane, int c) { return words[4 * lane + c % 4] >> (c / 4) & 1; }

}  // namespace carpool::formats
