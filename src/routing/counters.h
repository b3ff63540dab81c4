// It ran: what routing did in a step, counted. Promise 1 of the project.
//
// Owns RoutingCounters and the function that fills them from what was chosen and what plain routing would have
// chosen. Knows no policy.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "routing/types.h"

namespace carpool {

// What routing did to one row, summed over the MoE layers of a step.
struct RowRouting {
  int rerouted = 0, underfilled = 0;         // layers; as in RoutingCounters
  std::array<int, kPlainReasons> reasons{};  // layers by reason
};

// Pads are counted nowhere.
struct RoutingCounters {
  int64_t layers = 0;              // (step, MoE layer) pairs counted
  int64_t distinct_experts = 0;    // sum over them of distinct experts loaded, all non-pad rows
  int64_t distinct_plain = 0;      // what plain routing would have loaded
  int64_t slots = 0;               // (row, expert) pairs that ran
  int64_t rerouted_tokens = 0;     // (row, layer) pairs whose set differs from the plain one
  int64_t underfilled_tokens = 0;  // (row, layer) pairs with fewer distinct experts than plain routing gives the row,
                                   // which is min(K, experts with a finite or +inf score)
  // (row, layer) pairs by reason; [kApplied] = rows that the policy decided, whether their set changed or not.
  std::array<int64_t, kPlainReasons> plain_rows{};
  // (step, layer, group) triples in which no row was applied - rows of one group that different policies decide count
  // as different groups - by the reason of the group's first decode row that is not isolated; without such a row, of
  // its first decode row; without decode rows, of its first row.
  std::array<int64_t, kPlainReasons> plain_steps{};

  void add(const RoutingCounters& other);
};

// Adds one layer of one step. `plain` is select_plain of the same input. `rows` is empty or [T]: each row's share of
// the same is added there.
void count(const RouterInput& in, const Selection& plain, const Selection& chosen, Scratch& scratch,
           RoutingCounters& counters, std::span<RowRouting> rows = {});

}  // namespace carpool
