// GLM-4.5, 4.5-Air, 4.6 and 4.7: grouped-query attention with a partly rotated head, biases and, in some, per-head
// norms; experts chosen by biased sigmoids beside a shared one.
//
// Maps config.json and tensor names of Glm4MoeForCausalLM checkpoints.
#include "model/families/latent.h"
#include "model/family.h"

namespace carpool::glm4_moe {
namespace {

ModelConfig read_config(const JsonObject& json) {
  ModelConfig c;
  const families::Defaults defaults{.context = 131072, .norm_eps = 1e-5, .partial_rotary = 0.5};
  families::read_common(json, defaults, c);
  families::read_grouped_attention(json, defaults, c);
  c.qkv_bias = json.boolean_or("attention_bias", false);  // not of o_proj
  if (json.boolean_or("use_qk_norm", false)) c.qk_norm = ModelConfig::QkNorm::kHead;
  c.moe_layer = families::moe_layers_after_dense(json, c.layers, 1);
  families::read_groups(json, 1, 1, c);
  families::read_biased_experts(json, c);
  families::read_prediction_layers(json, c);
  return c;
}

}  // namespace

extern const Family kFamily;
const Family kFamily = {"glm4_moe", "Glm4MoeForCausalLM", read_config, families::take_decoder};

}  // namespace carpool::glm4_moe
