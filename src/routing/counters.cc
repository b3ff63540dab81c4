// Counting what routing did in one layer of one step. See counters.h.
#include "routing/counters.h"

#include "routing/scope.h"

namespace carpool {
namespace {

bool contains(std::span<const int> row, int expert) { return std::find(row.begin(), row.end(), expert) != row.end(); }

bool subset(std::span<const int> a, std::span<const int> b) {
  return std::all_of(a.begin(), a.end(), [&](int expert) { return contains(b, expert); });
}

size_t distinct(std::span<const int> row) {
  size_t n = 0;
  for (size_t i = 0; i < row.size(); ++i) n += contains(row.first(i), row[i]) ? 0 : 1;
  return n;
}

int count_distinct(const Selection& selection, int n_experts, Scratch& scratch) {
  ExpertSets used(scratch, 1, n_experts);
  for (int expert : selection.experts()) used.add(0, expert);
  return used.size(0);
}

// How well a row's reason stands for its group: eligible decode rows first, then any decode row, then any row.
int standing(const TokenInfo& token) {
  if (token.phase != Phase::kDecode) return 1;
  return token.isolated ? 2 : 3;
}

void count_groups(const RouterInput& in, const Selection& chosen, Scratch& scratch, RoutingCounters& counters) {
  const int n_groups = number_groups(in, scratch);
  scratch.verdict.assign(static_cast<size_t>(n_groups), PlainReason::kPhase);
  std::vector<int>& best = scratch.group_rows;  // the standing of the row whose reason the group has so far
  best.assign(static_cast<size_t>(n_groups), 0);
  constexpr int kAnyApplied = 4;
  for (int t = 0; t < in.rows(); ++t) {
    const int g = scratch.group_of_row[t];
    if (g < 0) continue;
    const PlainReason reason = chosen.reason(t);
    const int rank = reason == PlainReason::kApplied ? kAnyApplied : standing(in.tokens[t]);
    if (rank > best[g]) {
      best[g] = rank;
      scratch.verdict[g] = reason;
    }
  }
  for (int g = 0; g < n_groups; ++g) {
    if (best[g] != kAnyApplied) ++counters.plain_steps[static_cast<size_t>(scratch.verdict[g])];
  }
}

}  // namespace

void RoutingCounters::add(const RoutingCounters& other) {
  layers += other.layers;
  distinct_experts += other.distinct_experts;
  distinct_plain += other.distinct_plain;
  slots += other.slots;
  rerouted_tokens += other.rerouted_tokens;
  underfilled_tokens += other.underfilled_tokens;
  for (size_t i = 0; i < plain_rows.size(); ++i) {
    plain_rows[i] += other.plain_rows[i];
    plain_steps[i] += other.plain_steps[i];
  }
}

void count(const RouterInput& in, const Selection& plain, const Selection& chosen, Scratch& scratch,
           RoutingCounters& counters) {
  ++counters.layers;
  counters.distinct_plain += count_distinct(plain, in.n_experts, scratch);
  counters.distinct_experts += count_distinct(chosen, in.n_experts, scratch);
  counters.slots += chosen.size();
  for (int t = 0; t < in.rows(); ++t) {
    if (in.tokens[t].phase == Phase::kPad) continue;
    const std::span<const int> own = plain.row(t);
    const std::span<const int> got = chosen.row(t);
    if (!subset(own, got) || !subset(got, own)) ++counters.rerouted_tokens;
    if (distinct(got) < own.size()) ++counters.underfilled_tokens;
    ++counters.plain_rows[static_cast<size_t>(chosen.reason(t))];
  }
  count_groups(in, chosen, scratch, counters);
}

}  // namespace carpool
