// One row whose slots are run by other experts than they were chosen for: slots of one expert become one slot.
//
// An expert's output is multiplied by its weight, so two slots of it are exactly one with the sum of their weights; the
// row then reads and computes the expert once. Used by policies that substitute experts (sere.cc, exfold.cc).
#pragma once

#include "routing/budget.h"
#include "routing/rank.h"

namespace carpool {

class MergedRow {
 public:
  // Row t of `in`. Uses scratch.shares and scratch.merged until end().
  MergedRow(const RouterInput& in, int t, Scratch& scratch);

  // `expert` takes a slot that counts `mix` (not negative). Slots of one expert are summed in float32, in the order of
  // the calls.
  void add(int expert, float mix);
  bool empty() const { return scratch_.merged.empty(); }
  // Writes the row: its experts best first, with what their slots count together. `plain_sum`: the sum over the row's
  // plain choice, by which the model's rule divides if it divides at all. `divisor` says otherwise. Overwrites
  // scratch.order.
  void end(const Divisor& divisor, float plain_sum, Selection& out);

 private:
  const RouterInput& in_;
  int t_;
  Scratch& scratch_;
};

}  // namespace carpool
