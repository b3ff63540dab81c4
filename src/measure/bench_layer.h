// One full-size MoE layer with random weights: what routing and experts cost at a batch.
//
// Owns the timing loop of `carpool bench layer`. A step is router product, scores and policy, experts, each timed
// apart; the router's product is computed and its result replaced by drawn logits (bench_routing.h), so that the
// routing is what was asked for. All rows run once per repeat, policies of one batch on the same logits, and copies of
// the layer are used in turn, so that experts come from memory. No shared expert, no norms. Read next: bench_weights.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "measure/bench_report.h"
#include "measure/bench_routing.h"
#include "model/dummy.h"
#include "routing/counters.h"

namespace carpool {

struct LayerOptions {
  ModelShape shape;
  Format format = Format::kQ4_0;
  std::vector<std::string> policies = {"topk"};  // the first is the one that ratios refer to
  std::vector<int> batches = {1, 4, 16, 64};
  RoutingSource routing;
  int steps = 8;  // of a row and repeat
  int repeats = 5;
  int cold_copies = 0;  // copies of the layer used in turn; 0 = as many as make four last-level caches
  uint64_t seed = 1;
  size_t probe_bytes = 0;  // of BenchProbe
  BenchProgress progress;
};

// One (policy, batch), or one forced routing.
struct LayerRow {
  std::string policy;                                  // "forced" for forced routing
  int batch = 0;                                       // tokens
  Estimate step_ms, router_ms, policy_ms, experts_ms;  // the first is the sum of the others, step by step
  Estimate ratio;                                      // step time over the first policy's at this batch
  RoutingCounters routing;                             // zeros for forced routing
  double distinct = 0, plain = 0, uniform = 0;         // experts per step; uniform 0 = no simple expectation
  double rows_per_expert = 0;
  double expert_bytes = 0, router_bytes = 0;  // per step
  Estimate read_gbps;                         // probe before each repeat: median, least, most
  Estimate floor_share;                       // of the step, what reading its bytes once takes
  double experts_gbps() const { return expert_bytes / (experts_ms.value * 1e6); }
};

// ms = fixed + expert * U + row * U * (R - 1), by least squares of the relative errors.
struct RowCost {
  double fixed = 0, expert = 0, row = 0;  // ms
  double relative_error = 0;              // root mean square
  int points = 0;
};
struct CostPoint {
  int experts = 0, rows = 0;
  double ms = 0;
};
// Nothing when the points do not decide the three numbers.
std::optional<RowCost> fit_row_cost(const std::vector<CostPoint>& points);

// Bytes of one copy of the layer's experts.
size_t layer_bytes(const LayerOptions& options);
// `cold_copies`, or what 0 stands for.
int layer_copies(const LayerOptions& options);

// Error{kUsage} for options out of range, kConfig for policies, formats or forced routing that do not fit the shape.
void check_layer(const LayerOptions& options);

// check_layer, one warm-up step of the first row, then the rows, in the order (batch, policy) or of the forced list.
// Error{kNoMemory} when the copies do not fit.
std::vector<LayerRow> run_layer(Ops& ops, const LayerOptions& options);

// Sets the tables, rows and sentences of `report`.
void report_layer(const std::vector<LayerRow>& rows, const LayerOptions& options, BenchReport& report);

}  // namespace carpool
