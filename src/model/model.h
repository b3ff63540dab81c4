// A loaded model that turns a batch of rows into logits.
//
// Owns the weights, the backend, and the buffers of one step. The layers are in forward.cc, attention.cc and moe.cc;
// moe_block is where the routing policy decides. One caller at a time. After the largest batch has been seen (see
// reserve) forward() allocates nothing and throws nothing.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/ops.h"
#include "model/config.h"
#include "model/kv_cache.h"
#include "model/step_times.h"
#include "model/weights.h"
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

struct LoadOptions {
  int threads = 0;  // 0 = default_threads()
  std::string isa = "auto";
  Activations activations = Activations::kInt8;
  HugePages huge_pages = HugePages::kAuto;     // for the private copy of the weights
  std::string repack_cache;                    // folder where repacked weights are kept and mapped from; "" = none
  std::optional<KvFormat> kv_format;           // of the caches to be made for the model; default: default_kv_format
  bool check_finite = true;                    // refuse NaN and Inf in any tensor
  std::function<void(double share)> progress;  // 0..1
};

class Model {
 public:
  // Loads a Hugging Face directory or a GGUF file, or makes a dummy model (dummy.h). Errors as in config.h,
  // weight_source.h, dummy.h and TensorReader::finish; kNoMemory with both numbers, before anything large is allocated,
  // when the machine cannot hold it.
  static Model load(const std::string& model, const LoadOptions& options);

  const ModelConfig& config() const { return config_; }
  const Weights& weights() const { return weights_; }
  // Where the weights are, for people: "repacked into 17.3 GB, 17.2 GB of it in huge pages".
  std::string memory_text() const;
  Ops& ops() { return *ops_; }
  // The element format of key-value caches for this model.
  KvFormat kv_format() const { return kv_format_; }
  void set_cold_copies(int n) { weights_.set_cold_copies(n); }

  // Bytes of the buffers that reserve(rows, logit_rows) makes.
  uint64_t step_bytes(int rows, int logit_rows) const;
  // Grows the buffers for steps of up to `rows` rows, `logit_rows` of them with logits.
  void reserve(int rows, int logit_rows);

  // From now on every step adds the seconds of its phases to `times`; null stops that.
  void time_steps(StepTimes* times) { times_ = times; }

  // Computes the step: stores keys and values of every non-pad row, adds the routing of all MoE layers to `counters`,
  // and returns logits [logit_rows, V], valid until the next call.
  Matrix forward(const Rows& rows, KvCache& kv, const Policy& policy, RoutingCounters& counters);

 private:
  Model(ModelConfig config, Weights weights, std::unique_ptr<Ops> ops, std::optional<KvFormat> kv_format);
  // Adds the time since the last call to one phase of times_.
  void lap(double StepTimes::* phase);
  void attention_block(int l, const Rows& rows, KvCache& kv);
  void moe_block(int l, const Rows& rows, const Policy& policy, RoutingCounters& counters);
  void dense_block(int l);
  Matrix view(std::vector<float>& buffer, int cols) const;  // [T of this step, cols]

  ModelConfig config_;
  Weights weights_;
  std::unique_ptr<Ops> ops_;
  KvFormat kv_format_;
  std::vector<float> rope_cos_, rope_sin_;  // [context, head_dim / 2]

  StepTimes* times_ = nullptr;
  double lap_started_ = 0;
  int rows_ = 0;      // T of this step
  int64_t step_ = 0;  // counts forward calls, for the rotation of cold copies
  std::vector<float> x_, normed_, q_, k_, v_, attended_, projected_;  // [T, ...]
  std::vector<float> router_logits_, rank_, mix_, weights_of_slots_;
  std::vector<float> last_, logits_;
  Selection chosen_, plain_;
  Scratch scratch_;
};

}  // namespace carpool
