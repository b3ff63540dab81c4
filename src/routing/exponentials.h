// The exponentials of one row of router logits, the costly part of scoring, for the vectors that the processor has.
//
// Owns ExponentialSet: the same few loops compiled for several widths of vector. Everything is plain C++ without fused
// operations, so every set gives the same bits, and the first, which needs no more than the compiler's target, is the
// oracle of the others. Knows nothing of experts or groups. Read next: scoring.h.
#pragma once

#include <span>

namespace carpool {

struct ExponentialSet {
  const char* isa;  // "baseline", "avx2", "avx512"

  // mix[e] = 1 / (1 + exp(-logits[e])); NaN gives 0. Spans of equal size that do not overlap.
  void (*sigmoid)(std::span<const float> logits, std::span<float> mix);

  // mix[e] = exp(logits[e] - top) for the greatest logit `top`, which must be finite; NaN and -inf give 0. Returns the
  // sum of mix over the row, rounded.
  float (*softmax_terms)(std::span<const float> logits, float top, std::span<float> mix);
};

// The sets that this processor runs, the widest last. May be called from any thread.
std::span<const ExponentialSet> exponential_sets();

}  // namespace carpool
