// The engine: requests go in, steps are made, tokens come out.
//
// Owns the scheduler, the KV pool, the sampler, the policies and the routing counters. One thread owns an Engine and
// calls step(). Submission validates everything a user can set; step() does not throw. What a request says is the same
// whether its prefix was cached, it was preempted or its prompt was cut: as long as its rows are plain, to the bit.
// Read next: scheduler.h, model/language_model.h.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "model/language_model.h"
#include "routing/policy.h"
#include "routing/policy_set.h"

namespace carpool {

struct EngineOptions {
  int max_batch = 64;     // sequences that run at once
  int chunk = 256;        // most prompt rows per step, beside the decode rows
  int64_t kv_tokens = 0;  // positions in the KV pool; 0 = max_batch * context, at most 64 Ki
  // Prompt rows of a step with decode rows are cut so that the step is expected to stay below this; 0 = not cut.
  double step_target_ms = 0;
  bool prefix_cache = false;  // keep computed blocks of prompts for requests of the same tenant
  bool preempt = false;       // admit before all blocks a request may need are free; the newest gives way when none are
  std::function<double()> clock{};  // seconds, for step_target_ms and StepReport; empty = now_seconds
};

// What the last step did.
struct StepReport {
  std::vector<Event> events;
  std::vector<RequestId> admitted;  // for the first time, by this step
  int decode_rows = 0;
  int prefill_rows = 0;              // what preempted requests compute once more included
  int preempted = 0;                 // requests that gave way
  double seconds = 0;                // of the forward pass
  RoutingCounters routing;           // of this step
  std::vector<LayerExperts> layers;  // [MoE layers] of this step
};

class Engine {
 public:
  // `tokenizer` may be null: events then carry no text. Both outlive the engine. Error{kConfig} when the policy does
  // not fit the model, kUsage for options out of range, kNoMemory for the pool.
  Engine(LanguageModel& model, const Tokenizer* tokenizer, std::unique_ptr<Policy> policy,
         const EngineOptions& options);
  // The same with several policies; Request::policy is an index of this list.
  Engine(LanguageModel& model, const Tokenizer* tokenizer, std::vector<std::unique_ptr<Policy>> policies,
         const EngineOptions& options);

  // Queues a request. RequestError when a value is out of range or the request could never fit the context or the
  // KV pool.
  RequestId submit(Request request);
  const RequestLimits& limits() const { return limits_; }
  // Ends a request in any state; its last event comes with the next step. False for an unknown or finished id.
  bool cancel(RequestId id);
  // schedule -> forward -> sample -> emit. False when there was nothing to do.
  bool step();

  const StepReport& last_step() const { return report_; }
  const RoutingCounters& routing() const { return total_; }          // all steps
  const RoutingCounters& decode_routing() const { return decode_; }  // steps without prompt rows
  const Policy& policy() const { return *policies_[0]; }
  // From the next step on, policy 0 is this one. Error{kConfig} when it does not fit the model; nothing changes then.
  void set_policy(std::unique_ptr<Policy> policy);
  // Forgets all cached prefixes. False, and nothing done, while anything runs or waits.
  bool flush_prefix_cache();
  // From now on every non-pad row adds the experts it uses to `counts` [L of MoE layers, E]; null stops that.
  void record_experts(std::vector<std::vector<int64_t>>* counts);

  // From now on `observer` is told of every step: its MoE layers and its rows, by request id; null stops that.
  void observe(StepObserver* observer) { observer_ = observer; }

  const LanguageModel& model() const { return model_; }
  int64_t preemptions() const { return scheduler_.preemptions(); }  // since the start
  // Of requests whose first row ran. For the operator: kOtherTenant speaks of what other people's prompts are like, so
  // RequestStats never says it.
  const std::array<int64_t, kPrefixReasons>& prefix_reasons() const { return scheduler_.prefix_reasons(); }
  int64_t prefix_queries() const { return scheduler_.prefix_queries(); }  // prompt tokens looked up in the cache ...
  int64_t prefix_hits() const { return scheduler_.prefix_hits(); }        // ... and found
  int cached_kv_blocks() const { return scheduler_.prefix_cache().unheld(); }  // held by the prefix cache alone
  int running() const { return scheduler_.running(); }
  int waiting() const { return scheduler_.waiting(); }
  int free_kv_blocks() const { return kv_.free_blocks(); }
  int total_kv_blocks() const { return kv_.total_blocks(); }
  size_t kv_bytes() const { return kv_.bytes(); }            // of the whole pool
  const Scheduler& scheduler() const { return scheduler_; }  // who runs, and with which blocks

 private:
  const Policy& active() const;
  void unite_policies();
  // What a step brought, logit row by logit row.
  void take(const Matrix& logits);
  void account_decodes();
  void show_rows(const Matrix& logits);
  void score_prompt(Sequence& s, int position, std::span<const float> logits);
  void emit(Sequence& s, std::span<float> logits);
  static Event event_of(Sequence& s);
  static Event last_event(Sequence& s, FinishReason reason);
  static std::shared_ptr<const RequestStats> stats_of(Sequence& s);
  void finish(Sequence& s, Event event);

  LanguageModel& model_;
  const Tokenizer* tokenizer_;
  std::vector<std::unique_ptr<Policy>> policies_;
  std::optional<PolicySet> set_;  // of all policies, when there are several
  KvCache kv_;
  RequestLimits limits_;
  Scheduler scheduler_;
  Sampler sampler_;
  std::function<double()> clock_;
  Batch batch_;
  std::vector<RowRouting> row_routing_;  // [T] of the step
  std::vector<std::vector<int64_t>>* expert_counts_ = nullptr;
  StepObserver* observer_ = nullptr;
  StepReport report_;
  std::vector<Event> pending_;  // last events of requests that ended between steps
  RoutingCounters total_, decode_;
  RequestId next_id_ = 1;
};

}  // namespace carpool
