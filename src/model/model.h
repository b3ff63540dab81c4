// A loaded model that turns a batch of rows into logits: the LanguageModel that people serve.
//
// Owns the weights, the backend, and the buffers of one step. The layers are in forward.cc, attention.cc,
// latent_attention.cc and moe.cc; moe_block is where the routing policy decides. One caller at a time. After the
// largest batch has been seen (see reserve) forward() allocates nothing and throws nothing.
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
#include "model/language_model.h"
#include "model/step_times.h"
#include "model/weights.h"
#include "routing/counters.h"
#include "routing/policy.h"

namespace carpool {

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

class Model final : public LanguageModel {
 public:
  // Loads a Hugging Face directory or a GGUF file, or makes a dummy model (dummy.h). Errors as in config.h,
  // weight_source.h, dummy.h and TensorReader::finish; kNoMemory with both numbers, before anything large is allocated,
  // when the machine cannot hold it.
  static Model load(const std::string& model, const LoadOptions& options);

  const ModelConfig& config() const override { return config_; }
  const Weights& weights() const { return weights_; }
  // Where the weights are, for people: "repacked into 17.3 GB, 17.2 GB of it in huge pages".
  std::string memory_text() const;
  Ops& ops() { return *ops_; }
  KvFormat kv_format() const override { return kv_format_; }
  void set_cold_copies(int n) { weights_.set_cold_copies(n); }

  uint64_t step_bytes(int rows, int logit_rows) const override;
  void reserve(int rows, int logit_rows) override;

  // From now on every step adds the seconds of its phases to `times`; null stops that.
  void time_steps(StepTimes* times) { times_ = times; }

  Matrix forward(const Rows& rows, KvCache& kv, const Policy& policy, const StepRecord& record) override;

  // out [T, D] = what one expert of a MoE layer makes of every row of x [T, D], unweighted. For work outside of a step,
  // or for an observer within one.
  void expert_output(int layer, int expert, Matrix x, Matrix out);

 private:
  Model(ModelConfig config, Weights weights, std::unique_ptr<Ops> ops, std::optional<KvFormat> kv_format);
  // Adds the time since the last call to one phase of times_.
  void lap(double StepTimes::* phase);
  // Floats per row of the buffers whose sizes depend on the kind of attention.
  struct RowSizes {
    int q = 0, k = 0, v = 0, attended = 0, low_rank = 0, heads = 0;
    int indexer_q = 0, indexer_k = 0, indexer_heads = 0;
  };
  RowSizes row_sizes() const;
  void attention_block(int l, const Rows& rows, KvCache& kv);
  void grouped_attention(int l, const RowPlaces& places, KvCache& kv);
  void latent_attention(int l, const RowPlaces& places, KvCache& kv);
  void choose_positions(int l, const RowPlaces& places, KvCache& kv, Matrix low_rank);
  AttentionShape attention_shape(int l) const;
  // `m` counts the MoE layers before layer l.
  void moe_block(int l, int m, const Rows& rows, const Policy& policy, const StepRecord& record);
  ExpertWeights expert_weights(const ExpertSet& set) const;
  void dense_block(int l);
  Matrix view(std::vector<float>& buffer, int cols) const;  // [T of this step, cols]

  ModelConfig config_;
  Weights weights_;
  std::unique_ptr<Ops> ops_;
  KvFormat kv_format_;
  std::vector<float> rope_cos_, rope_sin_;  // [context, rope.dims / 2]

  StepTimes* times_ = nullptr;
  double lap_started_ = 0;
  int rows_ = 0;      // T of this step
  int64_t step_ = 0;  // counts forward calls, for the rotation of cold copies
  std::vector<float> x_, normed_, q_, k_, v_, attended_, projected_;  // [T, ...]
  std::vector<float> low_rank_, heads_;                               // of latent attention
  std::vector<float> indexer_q_, indexer_k_, indexer_heads_;
  PositionSets positions_;  // what the last indexer chose
  std::vector<float> router_logits_, rank_, mix_, weights_of_slots_;
  std::vector<float> last_, logits_;
  Selection chosen_, plain_;
  Scratch scratch_;
};

}  // namespace carpool
