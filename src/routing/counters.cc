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

// Rows that a policy sees together: those of one group that it decides.
int64_t party_of(const TokenInfo& token) { return (int64_t{token.policy} << 32) | static_cast<uint32_t>(token.group); }

// As number_groups, for parties: fills scratch.parties and scratch.group_of_row.
int number_parties(const RouterInput& in, Scratch& scratch) {
  std::vector<int64_t>& parties = scratch.parties;
  parties.clear();
  for (const TokenInfo& token : in.tokens) {
    const bool repeats_last = !parties.empty() && parties.back() == party_of(token);
    if (token.phase != Phase::kPad && !repeats_last) parties.push_back(party_of(token));
  }
  std::sort(parties.begin(), parties.end());
  parties.erase(std::unique(parties.begin(), parties.end()), parties.end());
  ensure(scratch.group_of_row, in.tokens.size());
  for (int t = 0; t < in.rows(); ++t) {
    const TokenInfo& token = in.tokens[t];
    const auto found = std::lower_bound(parties.begin(), parties.end(), party_of(token));
    scratch.group_of_row[t] = token.phase == Phase::kPad ? -1 : static_cast<int>(found - parties.begin());
  }
  return static_cast<int>(parties.size());
}

void count_groups(const RouterInput& in, const Selection& chosen, Scratch& scratch, RoutingCounters& counters) {
  const int n_groups = number_parties(in, scratch);
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
           RoutingCounters& counters, std::span<RowRouting> rows) {
  ++counters.layers;
  counters.distinct_plain += count_distinct(plain, in.n_experts, scratch);
  counters.distinct_experts += count_distinct(chosen, in.n_experts, scratch);
  counters.slots += chosen.size();
  for (int t = 0; t < in.rows(); ++t) {
    if (in.tokens[t].phase == Phase::kPad) continue;
    const std::span<const int> own = plain.row(t);
    const std::span<const int> got = chosen.row(t);
    const bool rerouted = !subset(own, got) || !subset(got, own);
    const bool underfilled = distinct(got) < own.size();
    const auto reason = static_cast<size_t>(chosen.reason(t));
    counters.rerouted_tokens += rerouted;
    counters.underfilled_tokens += underfilled;
    ++counters.plain_rows[reason];
    if (rows.empty()) continue;
    RowRouting& row = rows[static_cast<size_t>(t)];
    row.rerouted += rerouted;
    row.underfilled += underfilled;
    ++row.reasons[reason];
  }
  count_groups(in, chosen, scratch, counters);
}

}  // namespace carpool
