// DeepSeek-V3 and R1: latent attention, usually with YaRN, and experts chosen by biased sigmoids out of the best
// groups.
//
// Maps config.json and tensor names of DeepseekV3ForCausalLM checkpoints; kimi_k2.cc reads those of another name.
#include <fmt/format.h>

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
const Family kFamily = {"deepseek_v3", "DeepseekV3ForCausalLM", read_config, take_weights};

}  // namespace carpool::deepseek_v3
