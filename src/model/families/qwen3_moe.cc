// Qwen3-MoE: grouped-query attention with per-head q/k norm, softmax router, SwiGLU experts, no shared expert.
//
// Maps config.json and tensor names of Qwen3MoeForCausalLM checkpoints as published (30B-A3B, 235B-A22B, Coder).
// Semantics follow the reference implementation in transformers. The list of families is families.def.
#include <fmt/format.h>

#include "model/families/common.h"
#include "model/family.h"

namespace carpool::qwen3_moe {
namespace {

ModelConfig read_config(const JsonObject& json) {
  ModelConfig c;
  const families::Defaults defaults;
  families::read_common(json, defaults, c);
  families::read_grouped_attention(json, defaults, c);
  c.qk_norm = ModelConfig::QkNorm::kHead;
  c.qkv_bias = c.o_bias = json.boolean_or("attention_bias", false);
  families::require_false(json, "use_sliding_window");
  c.moe_layer = families::moe_layers_by_step(json, c.layers);
  // transformers 5 writes the number of experts under its generic name.
  const char* count = families::first_key(json, {"num_experts", "num_local_experts"});
  families::read_experts(json, {count, "moe_intermediate_size"}, c);
  if (c.moe_layers() > 0) {
    c.scoring.kind = Scoring::Kind::kSoftmax;
    c.scoring.renormalize = json.boolean_or("norm_topk_prob", false);
    c.scoring.check(c.n_experts, c.top_k);
  }
  return c;
}

void take_weights(const ModelConfig& c, TensorReader& reader, Weights& weights) {
  families::take_ends(c, reader, weights);
  for (int l = 0; l < c.layers; ++l) {
    const std::string p = fmt::format("model.layers.{}.", l);
    LayerWeights layer;
    families::take_norms(c, p, reader, layer);
    families::take_grouped_attention(c, p + "self_attn.", reader, layer);
    if (c.moe_layer[static_cast<size_t>(l)]) {
      families::take_router(c, p + "mlp.gate.weight", reader, layer);
      families::take_experts(c, p + "mlp.experts.", {}, reader, layer);
    } else {
      families::take_dense(c, p + "mlp.", reader, layer);
    }
    weights.layers.push_back(std::move(layer));
  }
}

}  // namespace

extern const Family kFamily;
const Family kFamily = {"qwen3_moe", "Qwen3MoeForCausalLM", read_config, take_weights};

}  // namespace carpool::qwen3_moe
