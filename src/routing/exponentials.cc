// Exponentials in double, rounded once to float32, compiled for several widths of vector. See exponentials.h.
#include "routing/exponentials.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace carpool {
namespace {

// exp(x) to about one unit in the last place of a double; garbage for |x| > 700. Without branches or calls, so that
// compilers make vectors of it: 2^n as bits, times the Taylor polynomial of the rest, which is at most ln(2)/2.
// Exponentials and their sums are taken in double and rounded once: the float32 result is then the same whatever
// library computed it and in whatever order it was summed, but for one value in some 2^28.
[[gnu::always_inline]] inline double exponential(double x) {
  constexpr double kLog2E = 0x1.71547652b82fep+0, kShift = 0x1.8p52;
  constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;  // n * kLn2High is exact
  const double shifted = x * kLog2E + kShift;                                    // its last bits are n
  const double n = shifted - kShift;
  const double rest = (x - n * kLn2High) - n * kLn2Low;
  double p = 1.0 / 6227020800;
  p = p * rest + 1.0 / 479001600;
  p = p * rest + 1.0 / 39916800;
  p = p * rest + 1.0 / 3628800;
  p = p * rest + 1.0 / 362880;
  p = p * rest + 1.0 / 40320;
  p = p * rest + 1.0 / 5040;
  p = p * rest + 1.0 / 720;
  p = p * rest + 1.0 / 120;
  p = p * rest + 1.0 / 24;
  p = p * rest + 1.0 / 6;
  p = p * rest + 1.0 / 2;
  p = p * rest + 1.0 / 1;
  p = p * rest + 1.0 / 1;
  return p * std::bit_cast<double>((std::bit_cast<uint64_t>(shifted) + 1023) << 52);
}

constexpr float kVanishes = 128;  // exp(-128) is 0 in float32

// Two loops each, because compilers make vectors of either but not of both in one.

// In double a sigmoid keeps its digits down to the smallest float32 number.
[[gnu::always_inline]] inline void sigmoid(std::span<const float> logits, std::span<float> mix) {
  for (size_t e = 0; e < logits.size(); ++e) {
    mix[e] = static_cast<float>(1 / (1 + exponential(-double{logits[e]})));
  }
  for (size_t e = 0; e < logits.size(); ++e) {
    const float far = logits[e] > 0 ? 1.0f : 0.0f;  // NaN: 0
    mix[e] = std::abs(logits[e]) < kVanishes ? mix[e] : far;
  }
}

[[gnu::always_inline]] inline float softmax_terms(std::span<const float> logits, float top, std::span<float> mix) {
  constexpr size_t kStrands = 8;  // of the sum; one alone would wait for each addition
  for (size_t e = 0; e < logits.size(); ++e) mix[e] = static_cast<float>(exponential(double{logits[e] - top}));
  for (size_t e = 0; e < logits.size(); ++e) mix[e] = logits[e] - top > -kVanishes ? mix[e] : 0.0f;  // NaN: 0
  std::array<double, kStrands> strands{};
  const size_t whole = logits.size() / kStrands * kStrands;
  for (size_t e = 0; e < whole; e += kStrands) {
    for (size_t i = 0; i < kStrands; ++i) strands[i] += double{mix[e + i]};
  }
  double total = 0;
  for (const double s : strands) total += s;
  for (size_t e = whole; e < logits.size(); ++e) total += double{mix[e]};
  return static_cast<float>(total);
}

void sigmoid_baseline(std::span<const float> logits, std::span<float> mix) { sigmoid(logits, mix); }
float softmax_terms_baseline(std::span<const float> logits, float top, std::span<float> mix) {
  return softmax_terms(logits, top, mix);
}
constexpr ExponentialSet kBaseline{"baseline", sigmoid_baseline, softmax_terms_baseline};

#ifdef __x86_64__
#define CARPOOL_AVX2 __attribute__((target("avx2")))
#define CARPOOL_AVX512 __attribute__((target("avx512f,avx512dq,avx512vl")))
CARPOOL_AVX2 void sigmoid_avx2(std::span<const float> logits, std::span<float> mix) { sigmoid(logits, mix); }
CARPOOL_AVX2 float softmax_terms_avx2(std::span<const float> logits, float top, std::span<float> mix) {
  return softmax_terms(logits, top, mix);
}
CARPOOL_AVX512 void sigmoid_avx512(std::span<const float> logits, std::span<float> mix) { sigmoid(logits, mix); }
CARPOOL_AVX512 float softmax_terms_avx512(std::span<const float> logits, float top, std::span<float> mix) {
  return softmax_terms(logits, top, mix);
}
#undef CARPOOL_AVX2
#undef CARPOOL_AVX512
constexpr ExponentialSet kSets[] = {
    kBaseline, {"avx2", sigmoid_avx2, softmax_terms_avx2}, {"avx512", sigmoid_avx512, softmax_terms_avx512}};

size_t sets_here() {
  if (!__builtin_cpu_supports("avx2")) return 1;
  const bool avx512 =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return avx512 ? 3 : 2;
}
#else
constexpr ExponentialSet kSets[] = {kBaseline};
size_t sets_here() { return 1; }
#endif

}  // namespace

std::span<const ExponentialSet> exponential_sets() { return std::span(kSets).first(sets_here()); }

}  // namespace carpool
