// Llama cut into experts: a dense decoder whose blocks' neurons were sorted into experts, each of which counts whole.
//
// A family of our own, written by python/train/moefy.py. The neurons of a dense block are a sum, so experts of weight 1
// are that block when all of them run, whatever the router says; with fewer, the router's scores say which parts of the
// sum matter most (MoEfication, arXiv 2110.01786). config.json is that of LlamaForCausalLM, with num_experts,
// num_experts_per_tok and moe_intermediate_size, the neurons of an expert; tensors are named as in Qwen3-MoE, and the
// router is linear with bias. The list of families is families.def.
#include <fmt/format.h>

#include "model/families/common.h"
#include "model/family.h"

namespace carpool::llama_moefied {
namespace {

ModelConfig read_config(const JsonObject& json) {
  ModelConfig c;
  const families::Defaults defaults{.context = 2048, .norm_eps = 1e-6};
  families::read_common(json, defaults, c);
  families::read_grouped_attention(json, defaults, c);
  c.rope.interleaved = json.boolean_or("rope_interleave", false);  // as the rows of GGUF files want it
  c.qkv_bias = c.o_bias = json.boolean_or("attention_bias", false);
  families::require_false(json, "mlp_bias");
  c.moe_layer.assign(static_cast<size_t>(c.layers), true);
  families::read_experts(json, {"num_experts", "moe_intermediate_size"}, c);
  const int64_t neurons = int64_t{c.n_experts} * c.expert_width;
  if (json.integer("intermediate_size", 1, families::kMaxWidth * 8) != neurons) {
    json.fail("intermediate_size",
              fmt::format("must be the neurons of all experts, {} x {} = {}", c.n_experts, c.expert_width, neurons));
  }
  c.router_bias = true;
  c.scoring.kind = Scoring::Kind::kSoftmax;
  c.scoring.renormalize = false;
  c.scoring.unit_weights = true;
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
    layer.router_bias = reader.vector(p + "mlp.gate.bias", c.n_experts);
    families::take_experts(c, p + "mlp.experts.", {}, reader, layer);
    weights.layers.push_back(std::move(layer));
  }
}

}  // namespace

extern const Family kFamily;
const Family kFamily = {"llama_moefied", "LlamaMoefiedForCausalLM", read_config, take_weights};

}  // namespace carpool::llama_moefied
