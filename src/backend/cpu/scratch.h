// Memory that grows to the largest use seen and stays, for the operations over the cache.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace carpool {

// The first of `floats` at a multiple of 64 bytes; grow() keeps 16 more than asked for.
inline float* aligned(std::vector<float>& floats) {
  const auto address = reinterpret_cast<uintptr_t>(floats.data());
  return floats.data() + ((address + 63) / 64 * 64 - address) / sizeof(float);
}

// Doubles, so that a growing context allocates a handful of times in its life.
inline void grow(std::vector<float>& floats, size_t n) {
  if (floats.size() < n + 16) floats.resize(std::bit_ceil(n + 16));
}

}  // namespace carpool
