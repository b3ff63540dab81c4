// The engine: requests go in, steps are made, tokens come out.
//
// Owns the scheduler, the KV pool, the sampler and the routing counters. One thread owns an Engine and calls step().
// Submission validates everything a user can set; step() does not throw. Read next: scheduler.h, model/model.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "model/model.h"
#include "routing/policy.h"

namespace carpool {

struct EngineOptions {
  int max_batch = 64;     // sequences that run at once
  int chunk = 256;        // prompt rows per step, beside the decode rows
  int64_t kv_tokens = 0;  // positions in the KV pool; 0 = max_batch * context, at most 64 Ki
};

// What the last step did.
struct StepReport {
  std::vector<Event> events;
  int decode_rows = 0;
  int prefill_rows = 0;
  double seconds = 0;       // of the forward pass
  RoutingCounters routing;  // of this step
};

class Engine {
 public:
  // `tokenizer` may be null: events then carry no text. Both outlive the engine. Error{kConfig} when the policy does
  // not fit the model, kUsage for options out of range, kNoMemory for the pool.
  Engine(Model& model, const Tokenizer* tokenizer, std::unique_ptr<Policy> policy, const EngineOptions& options);

  // Queues a request. Error{kUsage} with one sentence when a value is out of range or the request could never
  // fit the context or the KV pool.
  RequestId submit(Request request);
  // Ends a request in any state; its last event comes with the next step. False for an unknown or finished id.
  bool cancel(RequestId id);
  // schedule -> forward -> sample -> emit. False when there was nothing to do.
  bool step();

  const StepReport& last_step() const { return report_; }
  const RoutingCounters& routing() const { return total_; }          // all steps
  const RoutingCounters& decode_routing() const { return decode_; }  // steps without prompt rows
  const Policy& policy() const { return *policy_; }
  int running() const { return scheduler_.running(); }
  int waiting() const { return scheduler_.waiting(); }
  int free_kv_blocks() const { return kv_.free_blocks(); }
  int total_kv_blocks() const { return kv_.total_blocks(); }
  size_t kv_bytes() const { return kv_.bytes(); }  // of the whole pool

 private:
  void emit(Sequence& s, int token);
  void finish(RequestId id, Event event);

  Model& model_;
  const Tokenizer* tokenizer_;
  std::unique_ptr<Policy> policy_;
  KvCache kv_;
  Scheduler scheduler_;
  Sampler sampler_;
  Batch batch_;
  StepReport report_;
  std::vector<Event> cancelled_;
  RoutingCounters total_, decode_;
  RequestId next_id_ = 1;
};

}  // namespace carpool
