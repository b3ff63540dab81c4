#include "routing/budget.h"

#include "routing/rank.h"

namespace carpool {
namespace {

// In the row's order, in float32, as the model's own rule sums.
float sum_of(std::span<const float> weights, std::span<const int> experts) {
  float sum = 0;
  for (const int e : experts) {
    const float w = weights[static_cast<size_t>(e)];
    sum += w > 0 ? w : 0.0f;
  }
  return sum < std::numeric_limits<float>::infinity() ? sum : 0.0f;
}

}  // namespace

float Divisor::of(const RouterInput& in, int t, std::span<const int> chosen, Scratch& scratch) const {
  switch (kind) {
    case Kind::kModel:
      return 0;
    case Kind::kFinal:
      return sum_of(in.weight_row(t), chosen);
    case Kind::kTopK:
      return sum_of(in.weight_row(t), best_ranked(in.rank_row(t), in.top_k, scratch));
    case Kind::kBest:
      return sum_of(in.weight_row(t), best_ranked(in.rank_row(t), best, scratch));
    case Kind::kNone:
      break;
  }
  return 1;
}

}  // namespace carpool
