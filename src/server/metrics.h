// What /metrics says, in Prometheus' text format 0.0.4.
//
// Owns counters, gauges and histograms with the meanings and buckets of vLLM's (prefix carpool:), so that dashboards
// can be carried over, and the MoE set: experts loaded per layer before and after, re-routed and under-filled
// tokens, steps left plain by reason, bytes per token, share of the memory bandwidth, prefix reuse by reason. Thread-safe;
// recording takes no lock that scraping holds for long.
#pragma once

#include <memory>
#include <string>

#include "engine/engine.h"
#include "server/engine_loop.h"

namespace carpool {

// What a request took, seconds; negative = did not get there.
struct RequestTimes {
  double queue = -1;        // arrival to first admission
  double first_token = -1;  // arrival to first token
  double total = -1;
  double prefill = -1, decode = -1;
};

class Metrics {
 public:
  explicit Metrics(std::string model_name);
  ~Metrics();

  // On the engine thread, after every step. `read_gbps`: the machine's bandwidth as probed at start (0 = not).
  void step(const Engine& engine, const StepReport& report);
  void set_read_gbps(double gbps);
  // One token of a stream came `seconds` after the one before.
  void inter_token(double seconds);
  void finished(FinishReason reason, const RequestStats& stats, const RequestTimes& times);
  void http(const char* route, int status);   // route: the pattern of the table, or "other"
  void refused(const char* code);             // overloaded, key_queue_full, ...
  void connections(int delta);

  // The whole text; `state` for the gauges.
  std::string render(const LoopState& state) const;
  // totals for /server_info and responses of expert statistics
  RoutingCounters routing() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carpool
