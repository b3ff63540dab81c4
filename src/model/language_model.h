// What the engine asks of a model: rows of tokens in, rows of logits out.
//
// Owns Rows and the interface LanguageModel. Model (model.h) is the real one; CanaryModel (canary.h) computes its next
// token from what lies in the key-value blocks it was given, so that tests see at once when two requests are mixed up.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/ops.h"
#include "model/config.h"
#include "model/kv_cache.h"
#include "routing/counters.h"
#include "routing/policy.h"

namespace carpool {

// The rows of one step. Rows of one sequence are consecutive positions in ascending order.
struct Rows {
  std::vector<int> tokens;               // [T] -1 for padding
  std::vector<int> positions;            // [T] -1 for padding
  std::vector<const int*> block_tables;  // [T] null for padding
  std::vector<TokenInfo> info;           // [T]
  std::vector<int> logit_rows;           // rows whose logits are wanted, ascending

  int size() const { return static_cast<int>(tokens.size()); }
  void clear();
  void push(int token, int position, const int* block_table, TokenInfo row_info, bool wants_logits);
};

// Distinct experts of one MoE layer in one step: what was loaded, and what plain routing would have loaded.
struct LayerExperts {
  int64_t loaded = 0, plain = 0;
};

// A MoE layer on its way: routed, its experts not yet run. Valid during the call.
struct RoutedLayer {
  int m;                     // which MoE layer, from 0; in.layer is the model's number
  const RouterInput& in;     // what was scored
  const Selection& chosen;   // what the policy chose
  std::span<float> weights;  // of chosen's slots, finished; who replays a trace replaces them
  Matrix normed;             // [T, D] what the experts are given
};

// Sees a step: its MoE layers on the way, and its rows. Called on the thread of the step. Must not throw.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void routed(const RoutedLayer& layer) = 0;
  // After the step, by whoever made it and tells rows at all, for each non-pad row in order: the sequence it belongs
  // to, by number, its position and token, and its logits where they were wanted, else none.
  virtual void row(int /*row*/, uint64_t /*sequence*/, int /*position*/, int /*token*/,
                   std::span<const float> /*logits*/) {}
};

// What a step may record beside its logits; null members are not recorded.
struct StepRecord {
  RoutingCounters* routing = nullptr;                          // of all MoE layers together
  std::vector<RowRouting>* rows = nullptr;                     // [T] resized; sums over the MoE layers
  std::vector<std::vector<int64_t>>* expert_counts = nullptr;  // [MoE layers, E] slots of non-pad rows are added
  std::vector<LayerExperts>* layers = nullptr;                 // [MoE layers] resized; of this step
  StepObserver* observer = nullptr;                            // told of every MoE layer

  // For models. Sizes the members for a step of `n_rows` rows; allocates only when they grow.
  void start(int n_rows, const ModelConfig& config) const;
  // Records what was chosen in the m-th MoE layer, m counted from 0. `plain` is working memory.
  void add_layer(int m, const RouterInput& in, const Selection& chosen, Selection& plain, Scratch& scratch) const;
};

class LanguageModel {
 public:
  virtual ~LanguageModel() = default;
  virtual const ModelConfig& config() const = 0;
  virtual KvFormat kv_format() const = 0;
  // Bytes of the buffers that reserve(rows, logit_rows) makes.
  virtual uint64_t step_bytes(int rows, int logit_rows) const = 0;
  // Grows the buffers for steps of up to `rows` rows, `logit_rows` of them with logits.
  virtual void reserve(int rows, int logit_rows) = 0;
  // Computes the step: stores keys and values of every non-pad row, fills `record`, and returns logits
  // [logit_rows, V], valid until the next call. Does not throw; allocates nothing within what was reserved.
  virtual Matrix forward(const Rows& rows, KvCache& kv, const Policy& policy, const StepRecord& record) = 0;
};

}  // namespace carpool
