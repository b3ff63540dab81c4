// How many experts a group of rows may load, and what a row's weights are divided by: two arguments that many policies
// have.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "routing/types.h"

namespace carpool {

// "32": so many experts; "50%": that share of what plain routing loads for the group, rounded up.
struct Budget {
  int experts = 0;
  double share = 0;  // 0: `experts` counts

  int of(int plain_union) const {
    if (share <= 0) return experts;
    // A little less than the product, so that 50 % of 12 is 6 whatever 0.5 * 12 is in floating point.
    const double n = share * plain_union - 1e-9;
    return std::max(1, static_cast<int>(n) + (n > static_cast<int>(n) ? 1 : 0));
  }
};

// What the weights of an applied row are divided by (stage 4 of the routing specification). A policy changes which
// experts run; whether their weights should again sum to what the model's rule says is a question of its own.
struct Divisor {
  enum class Kind {
    kModel,  // the model's own rule
    kFinal,  // the sum over the experts that run
    kTopK,   // the sum over the row's K best, run or not
    kBest,   // the sum over its `best` best
    kNone,   // 1
  };
  Kind kind = Kind::kModel;
  int best = 0;

  // For Selection::end_row. `chosen` may lie in scratch.order, which is overwritten.
  float of(const RouterInput& in, int t, std::span<const int> chosen, Scratch& scratch) const;
};

// Experts that are never left out where plain routing would use them: "5" in every layer, "12.5" expert 5 of layer 12.
struct KeptExperts {
  struct One {
    int layer = -1;  // -1: every layer
    int expert = 0;
  };
  std::vector<One> list;

  bool empty() const { return list.empty(); }
};

}  // namespace carpool
