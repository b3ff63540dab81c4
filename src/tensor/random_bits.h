// A small fast stream of pseudo-random bits for random weights; not for anything that must be hard to guess.
#pragma once

#include <cstdint>

namespace carpool {

// xorshift64* from a seed that was spread by splitmix64, so that neighbouring seeds give unrelated streams.
class RandomBits {
 public:
  explicit RandomBits(uint64_t seed) {
    uint64_t z = seed + 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    state_ = (z ^ z >> 31) | 1;
  }

  uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1du;
  }

  // 16 nibbles 1..15: a zero becomes 8, the middle, so that the mean of (nibble - 8) stays 0.
  uint64_t nibbles_without_zero() {
    const uint64_t bits = next();
    const uint64_t any = (bits | bits >> 1 | bits >> 2 | bits >> 3) & 0x1111111111111111u;
    return bits | (any ^ 0x1111111111111111u) << 3;
  }

 private:
  uint64_t state_;
};

}  // namespace carpool
