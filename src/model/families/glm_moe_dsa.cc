// GLM-5, 5.1 and 5.2: latent attention to positions that an indexer chooses, which later layers may share, and experts
// chosen by biased sigmoids beside a shared one.
//
// Maps config.json and tensor names of GlmMoeDsaForCausalLM checkpoints. "head_dim" is not read: files disagree about
// what it means, and the other sizes say all.
#include "model/families/latent.h"
#include "model/family.h"

namespace carpool::glm_moe_dsa {
namespace {

ModelConfig read_config(const JsonObject& json) {
  ModelConfig c;
  const families::Defaults defaults{.context = 202752, .norm_eps = 1e-5, .theta = 1e6};
  families::read_common(json, defaults, c);
  families::read_latent_attention(json, defaults, c);
  families::read_indexer(json, c);
  c.moe_layer = families::moe_layers_after_dense(json, c.layers, 3);
  families::read_groups(json, 1, 1, c);
  families::read_biased_experts(json, c);
  families::read_prediction_layers(json, c);
  return c;
}

}  // namespace

extern const Family kFamily;
const Family kFamily = {"glm_moe_dsa", "GlmMoeDsaForCausalLM", read_config, families::take_decoder};

}  // namespace carpool::glm_moe_dsa
