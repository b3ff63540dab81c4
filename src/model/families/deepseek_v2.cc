// DeepSeek-V2 and V2-Lite: latent attention, experts chosen by a softmax out of the groups with the best single ones,
// weighed without renormalisation.
//
// Maps config.json and tensor names of DeepseekV2ForCausalLM checkpoints.
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

}  // namespace

extern const Family kFamily;
const Family kFamily = {"deepseek_v2", "DeepseekV2ForCausalLM", read_config, families::take_decoder};

}  // namespace carpool::deepseek_v2
