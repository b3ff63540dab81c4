// Replays routing policies on recorded traces: how many distinct experts a batch would have loaded, exactly where the
// policy depends on ranks alone, and how much of the router's own weight it would have kept.
//
// A batch is B rows of different sequences. `kIndependent` draws the sequences uniformly and then one position in each,
// uniformly; `kAligned` takes the same position in all of them, as when requests start together. Numbers are means over
// batches and layers. Read next: trace.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "measure/bench_report.h"
#include "measure/result.h"
#include "measure/trace.h"

namespace carpool {

struct ReplayOptions {
  std::vector<std::string> policies = {"topk"};
  std::vector<int> batches = {8};
  enum class Sampling { kIndependent, kAligned } sampling = Sampling::kIndependent;
  bool with_replacement = false;  // more rows than sequences
  int draws = 2000;               // batches
  uint64_t seed = 1;
  std::vector<int> ranks;  // expert-parallel plans, beside the single machine
  std::vector<std::string> placements = {"round_robin"};
  std::optional<double> base_us, expert_us;  // a layer's time: base + expert * (experts of the busiest rank)
};

// One (policy, batch, placement).
struct ReplayRow {
  std::string policy;
  int batch = 0, ranks = 1;
  std::string placement;              // "" on one rank
  Estimate distinct, distinct_plain;  // mean and 95 % interval over batches
  double ratio = 0;                   // of the means
  double slots = 0;                   // experts per row
  std::optional<double> kept_mass;    // share of the weight of each row's plain choice that runs
  double busiest = 0, imbalance = 0;  // distinct experts of the busiest rank; that over the mean of the ranks
  std::optional<double> layer_us;
};

// Error{kConfig}: a policy that needs what the trace does not have (ranks, weights), more rows than sequences without
// with_replacement, a policy that does not fit the model.
std::vector<ReplayRow> replay(const Trace& trace, const ReplayOptions& options, const BenchProgress& progress = {});

// What a trace says by itself: tokens, reuse by the next token, skew, unions by batch size beside uniform routing.
struct TraceStats {
  double reuse = 0;             // share of a token's experts that the token before it had, same layer
  double busiest_share = 0;     // of a layer's slots, by its most used expert; mean over layers
  double even_experts = 0;      // exp of the entropy of a layer's use; mean over layers
  double used_experts = 0;      // of a layer, by any token; mean over layers
  std::optional<double> ties;   // share of rows in which two neighbouring ranks weigh the same
  std::vector<double> profile;  // mean share of weight by rank, where weights are known
};
TraceStats trace_stats(const Trace& trace);

}  // namespace carpool
