// The lanes and how they are folded; see checksum.h.
#include "base/checksum.h"

#include <bit>
#include <cstring>

namespace carpool {
namespace {

// Odd, with about half of the bits set and no pattern.
constexpr uint64_t kA = 0x9e3779b97f4a7c15, kB = 0xbc6ef372fe94f82b;

// The second product spreads what the first leaves in the top bits alone: one product and a rotation would let a flip
// there be undone by one flip in the next word of the lane.
uint64_t step(uint64_t lane, uint64_t word) { return std::rotl((lane ^ word) * kA, 31) * kB; }

// Every bit of the result depends on every bit of x; a bijection.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 32)) * kA;
  x = (x ^ (x >> 29)) * kB;
  return x ^ (x >> 32);
}

uint64_t word_at(const std::byte* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

}  // namespace

uint64_t checksum64(std::span<const std::byte> bytes) {
  constexpr size_t kWord = sizeof(uint64_t), kLanes = 4;
  uint64_t lanes[kLanes] = {1, 2, 3, 4};
  const std::byte* p = bytes.data();
  size_t left = bytes.size();
  for (; left >= kLanes * kWord; left -= kLanes * kWord, p += kLanes * kWord) {
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = step(lanes[i], word_at(p + i * kWord));
  }
  for (size_t i = 0; left > 0; ++i) {  // at most three whole words and a part, padded with zeros
    const size_t taken = left < kWord ? left : kWord;
    uint64_t word = 0;
    std::memcpy(&word, p, taken);
    lanes[i] = step(lanes[i], word);
    left -= taken;
    p += taken;
  }
  uint64_t sum = mix(bytes.size());  // tells padding from zeros that are there
  for (const uint64_t lane : lanes) sum = mix(sum ^ lane) + kB;
  return sum;
}

}  // namespace carpool
