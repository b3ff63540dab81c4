// The arithmetic of the A/B, apart from running it: from steps to a row.
//
// Owns what is summed per (policy, concurrency) and kind of step, the median of each repeat, the bytes of a step and
// the memory floor. Internal to measure; measures nothing. Read next: ab.cc, which fills it; result.h, what comes out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "measure/result.h"

namespace carpool {

// What a model's decode step reads.
struct StepSizes {
  int moe_layers = 0;
  double expert_bytes = 0;       // one expert of one layer
  double dense_bytes = 0;        // weights of every step whatever was routed
  double kv_position_bytes = 0;  // keys and values of one position, all layers
};

// The steps of one kind (full-batch decode, or mixed) of one policy at one concurrency.
struct Tally {
  std::vector<double> repeat_ms;   // median step of each repeat
  std::vector<double> current_ms;  // steps of the repeat under way
  RoutingCounters routing;
  int64_t steps = 0;
  double positions = 0;  // sum over steps and decode rows of positions attended to

  // `attended`: positions that the step's decode rows attended to, together.
  void add(const StepReport& report, double attended);
  void end_repeat();
};

// Follows the sequences of one run: how many positions the decode rows of a step attended to.
class Positions {
 public:
  // The next request; ids count from 1 in this order.
  void add_prompt(size_t tokens) { length_.push_back(tokens); }
  // The positions behind the tokens that a step brought: a token that follows n others attended to n positions. Call
  // for every step.
  double attend(const std::vector<Event>& events);

 private:
  std::vector<size_t> length_;  // tokens known so far, by request
};

// A row without quality, speedup and floor. Decode rows claim a speed and bytes, mixed rows do not. Pre: steps > 0.
ResultRow make_row(const StepSizes& sizes, const Tally& tally, bool decode, int concurrency);
// `read_gbps` for any row, and for a decode row the share of its step that reading its bytes once would take.
void set_floor(ResultRow& row, double read_gbps);
// Step time of `first` over that of `other`, repeat by repeat.
Estimate paired_speedup(const Tally& first, const Tally& other);

// Copies of experts of `expert_bytes` together that make four caches; 0 when one set is as large, or there is none.
int cold_copies_for(size_t expert_bytes, size_t cache_bytes);

}  // namespace carpool
