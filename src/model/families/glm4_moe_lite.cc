// GLM-4.7-Flash: latent attention, experts chosen by biased sigmoids beside a shared one.
//
// Maps config.json and tensor names of Glm4MoeLiteForCausalLM checkpoints.
#include "model/families/latent.h"
#include "model/family.h"

namespace carpool::glm4_moe_lite {
namespace {

ModelConfig read_config(const JsonObject& json) {
  ModelConfig c;
  const families::Defaults defaults{.context = 202752, .norm_eps = 1e-5};
  families::read_common(json, defaults, c);
  families::read_latent_attention(json, defaults, c);
  c.moe_layer = families::moe_layers_after_dense(json, c.layers, 1);
  families::read_groups(json, 1, 1, c);
  families::read_biased_experts(json, c);
  families::read_prediction_layers(json, c);
  return c;
}

}  // namespace

extern const Family kFamily;
const Family kFamily = {"glm4_moe_lite", "Glm4MoeLiteForCausalLM", read_config, families::take_decoder};

}  // namespace carpool::glm4_moe_lite
