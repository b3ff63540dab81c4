// DeepSeek-V2 and V2-Lite: latent attention, experts chosen by a softmax out of the groups with the best single ones,
// weighed without renormalisation.
//
// Maps config.json and tensor names of DeepseekV2ForCausalLM checkpoints.
#include <fmt/format.h>

#include "model/families/latent.h"
#include "model/family.h"

namespace carpool::deepseek_v2 {
namespace {

ModelConfig read_config(const JsonObject& json) {
  ModelConfig c;
  const families::Defaults defaults{.context = 2048};
  families::read_common(json, defaults, c);
  families::read_latent_attention(json, defaults, c);
  c.moe_layer = families::moe_layers_after_dense(json, c.layers, 0);
  families::read_experts(json, {"n_routed_experts", "moe_intermediate_size"}, c);
  families::require_text(json, "scoring_func", {"softmax"});
  families::require_text(json, "topk_method", {"greedy", "group_limited_greedy"});
  families::require_false(json, "norm_topk_prob");
  if (c.moe_layers() > 0) {
    families::read_shared_experts(json, c);
    c.scoring.kind = Scoring::Kind::kSoftmax;
    c.scoring.renormalize = false;
    c.scoring.group_score = Scoring::GroupScore::kMax;
    if (json.string_or("topk_method", "greedy") == "group_limited_greedy") families::read_groups(json, 1, 1, c);
    c.scoring.routed_scaling_factor = static_cast<float>(json.number_or("routed_scaling_factor", 1, 1e-6, 1e6));
    c.scoring.check(c.n_experts, c.top_k);
  }
  families::read_prediction_layers(json, c);
  return c;
}

void take_weights(const ModelConfig& c, TensorReader& reader, Weights& weights) {
  families::take_ends(c, reader, weights);
  for (int l = 0; l < c.layers; ++l) {
    const std::string p = fmt::format("model.layers.{}.", l);
    LayerWeights layer;
    families::take_norms(c, p, reader, layer);
    families::take_latent_attention(c, p + "self_attn.", reader, layer);
    families::take_mlp(c, l, p + "mlp.", reader, layer);
    weights.layers.push_back(std::move(layer));
  }
  families::pass_prediction_layers(c, reader);
}

}  // namespace

extern const Family kFamily;
const Family kFamily = {"deepseek_v2", "DeepseekV2ForCausalLM", read_config, take_weights};

}  // namespace carpool::deepseek_v2
