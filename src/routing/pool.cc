#include "routing/pool.h"

#include <fmt/format.h>

namespace carpool {

PoolArguments read_pool_arguments(Arguments& arguments, const Budget& budget, bool has_guard) {
  PoolArguments a;
  a.budget = budget;
  a.guards.min_batch = arguments.integer("min_batch", 2, 1, kMaxArgument);
  a.guards.max_rows = arguments.integer("max_rows", kMaxArgument, 1, kMaxArgument);
  a.budget_guard = has_guard && arguments.choice("guard", {"on", "off"}) == 0;
  a.divisor = arguments.divisor("norm");
  a.kept = arguments.kept_experts("always");
  return a;
}

std::vector<ArgumentInfo> with_pool_arguments(std::vector<ArgumentInfo> own, bool has_guard) {
  const std::vector<ArgumentInfo> shared = {
      {"min_batch", "groups with fewer eligible rows stay plain", "2"},
      {"max_rows", "steps with more rows, pads aside, stay plain", "unlimited"},
      kNormArgument,
      {"always", "experts kept wherever a row's plain choice has them: 3+17, or 12.3 for layer 12 alone", "none"}};
  if (has_guard) {
    own.push_back(
        {"guard", "on: a group that plain routing serves within the budget stays plain; off: it does not", "on"});
  }
  own.insert(own.end(), shared.begin(), shared.end());
  return own;
}

// Sets [0, G) become the plain unions of eligible rows, sets [G, 2G) what must be in the pools; votes are summed.
void PoolPolicy::collect(const RouterInput& in, Scratch& scratch, int n_groups, ExpertSets& sets) const {
  const auto E = static_cast<size_t>(in.n_experts);
  scratch.votes.assign(E * static_cast<size_t>(n_groups), 0);
  for (int t = 0; t < in.rows(); ++t) {
    if (own_reason(in.tokens[t]) != PlainReason::kApplied) continue;
    const int g = scratch.group_of_row[t];
    const std::span<const int> best = best_ranked(in.rank_row(t), in.top_k, scratch);
    for (const int expert : best) sets.add(g, expert);
    const auto sure = static_cast<size_t>(std::max(0, protects(in, t, best)));
    for (const int expert : best.first(std::min(best.size(), sure))) sets.add(n_groups + g, expert);
    vote(in, t, best, std::span(scratch.votes).subspan(E * static_cast<size_t>(g), E));
  }
  for (const KeptExperts::One& kept : pool_.kept.list) {
    if (kept.expert >= in.n_experts || (kept.layer >= 0 && kept.layer != in.layer)) continue;
    for (int g = 0; g < n_groups; ++g) {
      if (sets.has(g, kept.expert)) sets.add(n_groups + g, kept.expert);
    }
  }
}

// Fills group g's pool up to its size with the experts of most votes, equal ones the lower id.
void PoolPolicy::choose(const RouterInput& in, int g, int n_groups, Scratch& scratch, ExpertSets& sets) const {
  const auto E = static_cast<size_t>(in.n_experts);
  const int64_t* votes = scratch.votes.data() + E * static_cast<size_t>(g);
  std::vector<int>& candidates = scratch.candidates;
  candidates.clear();
  for (int e = 0; e < in.n_experts; ++e) {
    if (votes[e] > 0 && !sets.has(n_groups + g, e)) candidates.push_back(e);
  }
  const int room = size(sets.size(g)) - sets.size(n_groups + g);
  const auto n = static_cast<size_t>(std::clamp<int64_t>(room, 0, std::ssize(candidates)));
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(n), candidates.end(),
                    [&](int a, int b) { return votes[a] > votes[b] || (votes[a] == votes[b] && a < b); });
  for (size_t i = 0; i < n; ++i) sets.add(n_groups + g, candidates[i]);
}

// A row that finds nothing in its pool runs its best expert, which joins the pool for all.
void PoolPolicy::admit_best_of_empty_rows(const RouterInput& in, int n_groups, Scratch& scratch,
                                          ExpertSets& sets) const {
  scratch.candidates.clear();  // pairs (set, expert), added when all rows have been looked at
  for (int t = 0; t < in.rows(); ++t) {
    const int g = scratch.group_of_row[t];
    if (own_reason(in.tokens[t]) != PlainReason::kApplied || scratch.verdict[g] != PlainReason::kApplied) continue;
    const auto in_pool = [&](int expert) { return sets.has(n_groups + g, expert); };
    if (!best_ranked(in.rank_row(t), 1, scratch, in_pool).empty()) continue;
    for (const int expert : best_ranked(in.rank_row(t), 1, scratch)) {
      scratch.candidates.push_back(n_groups + g);
      scratch.candidates.push_back(expert);
    }
  }
  for (size_t i = 0; i < scratch.candidates.size(); i += 2) sets.add(scratch.candidates[i], scratch.candidates[i + 1]);
}

void PoolPolicy::take(const RouterInput& in, int t, int pool, const ExpertSets& sets, Scratch& scratch,
                      Selection& out) const {
  const auto in_pool = [&](int expert) { return sets.has(pool, expert); };
  const std::span<const int> chosen = best_ranked(in.rank_row(t), in.top_k, scratch, in_pool);
  for (const int expert : chosen) out.push(expert);
  out.end_row(PlainReason::kApplied, pool_.divisor.of(in, t, chosen, scratch));
}

void PoolPolicy::select(const RouterInput& in, Scratch& scratch, Selection& out) const {
  if (!applies(in)) return select_plain(in, scratch, out);
  out.start(in.rows(), in.top_k);
  const int n_groups = number_groups(in, scratch);
  guard_batch(in, pool_.guards, scratch);
  scratch.candidates.reserve(static_cast<size_t>(std::max(in.n_experts, 2 * in.rows())));
  ExpertSets sets(scratch, 2 * n_groups, in.n_experts);
  collect(in, scratch, n_groups, sets);
  for (int g = 0; g < n_groups; ++g) {
    if (scratch.verdict[g] != PlainReason::kApplied) continue;
    if (pool_.budget_guard && sets.size(g) <= size(sets.size(g))) {
      scratch.verdict[g] = PlainReason::kBudget;
    } else {
      choose(in, g, n_groups, scratch, sets);
    }
  }
  admit_best_of_empty_rows(in, n_groups, scratch, sets);
  for (int t = 0; t < in.rows(); ++t) {
    PlainReason reason = own_reason(in.tokens[t]);
    const int g = scratch.group_of_row[t];
    if (reason == PlainReason::kApplied) reason = scratch.verdict[g];
    if (reason == PlainReason::kApplied) {
      take(in, t, n_groups + g, sets, scratch, out);
    } else {
      push_plain(in, t, reason, scratch, out);
    }
  }
}

void PoolPolicy::check(int n_experts, int) const {
  if (pool_.budget.experts > n_experts) {
    refuse(*this, fmt::format("a budget of {} is more than the layer's {} experts", pool_.budget.experts, n_experts));
  }
  for (const KeptExperts::One& kept : pool_.kept.list) {
    if (kept.expert >= n_experts) {
      refuse(*this, fmt::format("always names expert {}, the layer has {}", kept.expert, n_experts));
    }
  }
}

}  // namespace carpool
