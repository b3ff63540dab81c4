// The one rank order of carpool, and the best experts of a row under it.
//
// Owns: what "choosable" and "better" mean (score descending, expert id ascending, NaN and -inf never, -0 equals +0)
// and best_ranked(), the partial selection that every policy, plain routing and every fill is made of. Knows nothing
// of batches. Read next: scope.h (who takes part), oea.cc.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "routing/types.h"

namespace carpool {

// Experts scored NaN or -inf are never chosen; the comparison is false for both.
inline bool choosable(float score) { return score > -std::numeric_limits<float>::infinity(); }

// Grows `v` to at least n entries and never shrinks it: no allocation after warm-up.
template <class T>
void ensure(std::vector<T>& v, size_t n) {
  if (v.size() < n) v.resize(n);
}

// The best `limit` choosable experts of one row among those that `may_use(expert)` admits, best first. The result lies
// in scratch.order until the next call. O(E * limit) worst case for short lists, O(E log E) for long ones; E compares
// and few moves in the usual case.
template <class MayUse>
std::span<const int> best_ranked(std::span<const float> scores, int limit, Scratch& scratch, MayUse&& may_use) {
  constexpr int kShortList = 32;  // insertion beats a heap while the list stays within two cache lines
  const int n_experts = static_cast<int>(scores.size());
  ensure(scratch.order, scores.size());
  int* order = scratch.order.data();
  int n = 0;
  if (limit <= 0) return {};
  if (limit > kShortList) {
    for (int e = 0; e < n_experts; ++e) {
      if (choosable(scores[e]) && may_use(e)) order[n++] = e;
    }
    const auto better = [&](int a, int b) { return scores[a] > scores[b] || (scores[a] == scores[b] && a < b); };
    limit = std::min(limit, n);
    std::partial_sort(order, order + limit, order + n, better);
    return {order, static_cast<size_t>(limit)};
  }
  // Experts come in ascending id, so an equal score never displaces: strict comparisons make the tie rule.
  float bar = -std::numeric_limits<float>::infinity();
  for (int e = 0; e < n_experts; ++e) {
    const float s = scores[e];
    if (!(s > bar) || !may_use(e)) continue;
    int at = n < limit ? n++ : limit - 1;
    for (; at > 0 && s > scores[order[at - 1]]; --at) order[at] = order[at - 1];
    order[at] = e;
    if (n == limit) bar = scores[order[limit - 1]];
  }
  return {order, static_cast<size_t>(n)};
}

inline std::span<const int> best_ranked(std::span<const float> scores, int limit, Scratch& scratch) {
  return best_ranked(scores, limit, scratch, [](int) { return true; });
}

}  // namespace carpool
