// DeepSeek-V3 and R1: latent attention, usually with YaRN, and experts chosen by biased sigmoids out of the best
// groups.
//
// Maps config.json and tensor names of DeepseekV3ForCausalLM checkpoints; kimi_k2.cc reads those of another name.
#include "model/families/latent.h"
#include "model/family.h"

namespace carpool::deepseek_v3 {
namespace {

ModelConfig read_config(const JsonObject& json) {
  ModelConfig c;
  const families::Defaults defaults{.context = 4096};
  families::read_common(json, defaults, c);
  families::read_latent_attention(json, defaults, c);
  c.moe_layer = families::moe_layers_after_dense(json, c.layers, 3);
  families::read_groups(json, 8, 4, c);
  families::read_biased_experts(json, c);
  families::read_prediction_layers(json, c);
  return c;
}

}  // namespace

extern const Family kFamily;
const Family kFamily = {"deepseek_v3", "DeepseekV3ForCausalLM", read_config, families::take_decoder};

}  // namespace carpool::deepseek_v3
