// Mixtral: grouped-query attention without norms, softmax over the chosen experts, no shared expert.
//
// Maps config.json and tensor names of MixtralForCausalLM checkpoints as published (8x7B, 8x22B; block_sparse_moe, w1,
// w3, w2) and as transformers 5 writes them under its own names. Semantics follow the reference implementation in
// transformers. The list of families is families.def.
#include <fmt/format.h>

#include "model/families/common.h"
#include "model/family.h"

namespace carpool::mixtral {
namespace {

ModelConfig read_config(const JsonObject& json) {
  ModelConfig c;
  const families::Defaults defaults{.context = 131072, .norm_eps = 1e-5, .theta = 1e6};
  families::read_common(json, defaults, c);
  families::read_grouped_attention(json, defaults, c);
  c.rope.interleaved = json.boolean_or("rope_interleave", false);  // as the rows of GGUF files want it
  families::read_window(json, c);
  c.moe_layer.assign(static_cast<size_t>(c.layers), true);
  families::read_experts(json, {families::first_key(json, {"num_local_experts", "num_experts"}), "intermediate_size"},
                         c);
  c.scoring.kind = Scoring::Kind::kSoftmax;
  c.scoring.renormalize = true;
  c.scoring.check(c.n_experts, c.top_k);
  return c;
}

void take_weights(const ModelConfig& c, TensorReader& reader, Weights& weights) {
  families::take_ends(c, reader, weights);
  for (int l = 0; l < c.layers; ++l) {
    const std::string p = fmt::format("model.layers.{}.", l);
    const std::string moe = families::first_block(reader, p, {"block_sparse_moe.", "mlp."}, "gate.weight");
    LayerWeights layer;
    families::take_norms(c, p, reader, layer);
    families::take_grouped_attention(c, p + "self_attn.", reader, layer);
    families::take_router(c, moe + "gate.weight", reader, layer);
    families::take_experts(c, moe + "experts.", {"w1", "w3", "w2"}, reader, layer);
    weights.layers.push_back(std::move(layer));
  }
}

}  // namespace

extern const Family kFamily;
const Family kFamily = {"mixtral", "MixtralForCausalLM", read_config, take_weights};

}  // namespace carpool::mixtral
