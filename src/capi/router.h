// One policy and one model's rule, ready to route batches for any number of threads.
//
// Owns Router: what a handle of the C API is. It keeps idle workspaces (everything that select, score and the counters
// reuse) in a list, so that concurrent calls share nothing but that list and the counters. Reports by exceptions;
// routing_c.cc turns them into statuses. Read next: routing_c.cc.
#pragma once

#include <carpool/routing.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "routing/counters.h"
#include "routing/policy.h"
#include "routing/scoring.h"

namespace carpool::capi {

// What one call works in; grows to the largest batch.
struct Workspace {
  Scoring scoring;             // the model's, with the bias of the call
  std::vector<float> logits;   // [T, E] when they need converting or are not contiguous
  std::vector<float> rank;     // [T, E]
  std::vector<float> mix;      // [T, E]
  std::vector<float> weights;  // one per slot
  std::vector<TokenInfo> tokens;
  Scratch scratch;
  Selection plain, chosen;
  RoutingCounters counters;  // of this call
};

class Router {
 public:
  // Throws Error{kConfig} when the policy is unknown or does not fit, Error{kMalformed} when the model contradicts
  // itself.
  Router(const char* policy, const carpool_routing_model& model);

  // Throws Error{kMalformed} before anything is written.
  void route(const carpool_routing_batch& batch);

  const char* spec() const { return spec_.c_str(); }
  int columns() const { return routed_columns_ + n_shared_; }
  void read_counters(carpool_routing_counters& out);  // all fields but `size`
  void reset_counters();

 private:
  std::unique_ptr<Workspace> borrow();
  void give_back(std::unique_ptr<Workspace> workspace);
  void check(const carpool_routing_batch& batch) const;
  void read_rows(const carpool_routing_batch& batch, Workspace& w) const;
  std::span<const float> read_logits(const carpool_routing_batch& batch, Workspace& w) const;
  void write(const carpool_routing_batch& batch, const Workspace& w) const;

  std::unique_ptr<Policy> policy_;
  std::string spec_;
  Scoring scoring_;
  int n_experts_, top_k_, n_shared_;
  int routed_columns_ = 0;  // max(K, k_max)
  float shared_weight_;
  bool repeat_;  // CARPOOL_ROUTING_FILL_REPEAT

  std::mutex mutex_;  // of what follows
  std::vector<std::unique_ptr<Workspace>> idle_;
  int64_t calls_ = 0;
  RoutingCounters counters_;
};

}  // namespace carpool::capi
