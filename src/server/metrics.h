// What /metrics says, in Prometheus' text format 0.0.4.
//
// Owns counters, gauges and histograms with the meanings and buckets of vLLM's (prefix carpool:), so that dashboards
// can be carried over, and the MoE set: experts loaded per layer before and after, re-routed and under-filled
// tokens, steps left plain by reason, bytes per token, share of the memory bandwidth, prefix reuse by reason.
// Thread-safe; recording takes no lock that scraping holds for long.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/engine_loop.h"

namespace carpool {

// Bytes that steps read and what the machine can read, for bytes per token and the share of the bandwidth.
struct MemorySizes {
  double bytes_per_expert = 0;  // of one routed expert of one layer
  double dense_bytes = 0;       // of all other weights, per step
  double read_gbps = 0;         // as probed at start; 0 = not
};

// Since the start, for /server_info.
struct RoutingTotals {
  RoutingCounters decode, all;  // steps without prompt rows, all steps
  int64_t decode_steps = 0, steps = 0;
  double decode_seconds = 0;  // of the forward passes of decode_steps
};

// Means over about the last ten decode-only steps, for GET /live. All zero and `layers` empty before the first.
struct LiveRouting {
  struct Layer {
    double loaded = 0, plain = 0;  // distinct experts per step
  };
  int64_t steps = 0;             // decode-only, since the start
  double rows = 0;               // of a step
  double loaded = 0, plain = 0;  // distinct experts per MoE layer and step
  double rerouted_share = 0;     // of (row, layer) pairs
  std::vector<Layer> layers;     // [MoE layers]
};

class Metrics {
 public:
  explicit Metrics(std::string model_name);
  ~Metrics();

  // What one step reads beside routing: sizes of the model and the machine. Once, before the first step.
  void set_sizes(const MemorySizes& sizes);
  // On the engine thread, after every step. Service::ready connects the next three with the loop.
  void step(const Engine& engine, const StepReport& report);
  // One token of a stream came `seconds` after the one before.
  void inter_token(double seconds);
  void finished(FinishReason reason, const RequestStats& stats, const RequestTimes& times);
  void http(const char* route, int status);  // route: the pattern of the table, or "other"
  void refused(const char* code);            // overloaded, key_queue_full, ...
  void connections(int delta);

  // The whole text; `state` for the gauges. What would say what prompts other tenants send is for operators alone.
  std::string render(const LoopState& state, bool operators = true) const;
  RoutingTotals routing() const;
  LiveRouting live() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carpool
