// OLMoE: query and key norms over all heads together, softmax router whose weights are not renormalised, no shared
// expert.
//
// Maps config.json and tensor names of OlmoeForCausalLM checkpoints as published (1B-7B-0924). Semantics follow the
// reference implementation in transformers. The list of families is families.def.
#include <fmt/format.h>

#include "model/families/common.h"
#include "model/family.h"

namespace carpool::olmoe {
namespace {

ModelConfig read_config(const JsonObject& json) {
  ModelConfig c;
  const families::Defaults defaults{.context = 4096, .norm_eps = 1e-5};
  families::read_common(json, defaults, c);
  families::read_grouped_attention(json, defaults, c);
  c.qk_norm = ModelConfig::QkNorm::kWhole;
  c.qkv_bias = c.o_bias = json.boolean_or("attention_bias", false);
  if (json.has("clip_qkv")) families::unsupported(json, "clip_qkv", "clipped queries and keys are not supported");
  c.moe_layer.assign(static_cast<size_t>(c.layers), true);
  families::read_experts(json, {families::first_key(json, {"num_experts", "num_local_experts"}), "intermediate_size"},
                         c);
  c.scoring.kind = Scoring::Kind::kSoftmax;
  c.scoring.renormalize = json.boolean_or("norm_topk_prob", false);
  c.scoring.check(c.n_experts, c.top_k);
  return c;
}

void take_weights(const ModelConfig& c, TensorReader& reader, Weights& weights) {
  families::take_ends(c, reader, weights);
  for (int l = 0; l < c.layers; ++l) {
    const std::string p = fmt::format("model.layers.{}.", l);
    LayerWeights layer;
    families::take_norms(c, p, reader, layer);
    families::take_grouped_attention(c, p + "self_attn.", reader, layer);
    families::take_router(c, p + "mlp.gate.weight", reader, layer);
    families::take_experts(c, p + "mlp.experts.", {}, reader, layer);
    weights.layers.push_back(std::move(layer));
  }
}

}  // namespace

extern const Family kFamily;
const Family kFamily = {"olmoe", "OlmoeForCausalLM", read_config, take_weights};

}  // namespace carpool::olmoe
