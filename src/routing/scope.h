// Who takes part in a batch-aware choice: eligible rows, their groups, and sets of experts per group.
//
// Owns ExpertSets (one bit per expert, one set per group), the numbering of groups, the group guards (min_batch,
// max_rows) and the plain choice that every row falls back to. Policies are short because of these; they decide only
// what goes into a set and what a row takes out of it. Read next: oea.cc, the shortest full use.
#pragma once

#include <bit>
#include <cstdint>

#include "routing/rank.h"
#include "routing/types.h"

namespace carpool {

// [G, words] bits in scratch.sets. Valid until the next ExpertSets on the same scratch.
class ExpertSets {
 public:
  // `count` empty sets over experts 0..n_experts-1.
  ExpertSets(Scratch& scratch, int count, int n_experts);

  void add(int set, int expert) { word(set, expert) |= bit(expert); }
  bool has(int set, int expert) const { return (word(set, expert) & bit(expert)) != 0; }
  int size(int set) const;

 private:
  static uint64_t bit(int expert) { return uint64_t{1} << (expert & 63); }
  uint64_t& word(int set, int expert) const {
    return bits_[static_cast<size_t>(set) * words_ + static_cast<size_t>(expert >> 6)];
  }
  size_t words_;
  uint64_t* bits_;
};

// Why the row by itself stays plain whatever the batch: kPhase for pads, else kIsolated, else kPhase for prefill;
// kApplied when a batch-aware policy may re-route it (the row is eligible).
PlainReason own_reason(const TokenInfo& token);

// Numbers the groups of the non-pad rows in ascending order of their value: fills scratch.groups, scratch.group_of_row
// (-1 for pads) and scratch.group_rows (eligible rows of each group). Returns the number of groups.
int number_groups(const RouterInput& in, Scratch& scratch);

struct BatchGuards {
  int min_batch = 1;                               // fewer eligible rows in a group: the group stays plain
  int max_rows = std::numeric_limits<int>::max();  // more non-pad rows in the step: every group stays plain
};
// After number_groups: fills scratch.verdict [G] with kMinBatch, kMaxRows or kApplied, the first that holds.
void guard_batch(const RouterInput& in, const BatchGuards& guards, Scratch& scratch);

// The base set of row t: its best k0 experts, or as few of them as hold the share p of all weight of the row (n_i =
// min(k0, t_i) of arXiv 2511.02237). The weight scores of softmax routers sum to 1, those of sigmoid routers do not,
// hence a share. p >= 1 never cuts: a float32 sum need not reach 1. The result lies in scratch.order.
std::span<const int> base_set(const RouterInput& in, int t, int k0, double p, Scratch& scratch);

// Ends row t with the model's own choice (none for a pad). The only way any row becomes plain.
void push_plain(const RouterInput& in, int t, PlainReason reason, Scratch& scratch, Selection& out);

// Every row plain, non-pad rows with `reason`.
void select_all_plain(const RouterInput& in, PlainReason reason, Scratch& scratch, Selection& out);

}  // namespace carpool
