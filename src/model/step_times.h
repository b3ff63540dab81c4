// Where the time of a step went: seconds by phase, for benches.
//
// Model::forward adds to one of these while somebody asked for it. Phases follow one another on the calling thread, so
// they add up to the step less what the model does not time. Owns no clock.
#pragma once

namespace carpool {

struct StepTimes {
  double attention = 0;    // keys and values stored, scores and their sums
  double projections = 0;  // q, k, v and o, dense blocks
  double routing = 0;      // router logits, scores, policy, counters
  double experts = 0;      // routed experts
  double head = 0;         // last norm and logits
  double other = 0;        // embedding, norms, residual sums
  // Not a phase: the part of all of them in which the calling thread waited for the others to finish.
  double waiting = 0;

  double sum() const { return attention + projections + routing + experts + head + other; }
  void add(const StepTimes& t) {
    attention += t.attention;
    projections += t.projections;
    routing += t.routing;
    experts += t.experts;
    head += t.head;
    other += t.other;
    waiting += t.waiting;
  }
};

}  // namespace carpool
