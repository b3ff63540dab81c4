// Choices of the load from a seed: the same on every machine, so that a seed repeats what was sent.
#pragma once

#include <cstdint>
#include <random>

namespace carpool::soak {

class Random {
 public:
  Random(uint64_t seed, uint64_t stream) : engine_(seed * 0x9e3779b97f4a7c15u + stream * 0xbf58476d1ce4e5b9u + 1) {}

  // low..high, both possible.
  int between(int low, int high) { return low + static_cast<int>(engine_() % static_cast<uint64_t>(high - low + 1)); }
  double share() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }  // [0, 1)
  bool chance(double p) { return share() < p; }
  uint64_t number() { return engine_(); }

 private:
  std::mt19937_64 engine_;
};

}  // namespace carpool::soak
