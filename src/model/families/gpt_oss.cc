// gpt-oss: attention sinks, windows in some layers, biases everywhere, a clamped activation, softmax over the chosen
// experts.
//
// Maps config.json and tensor names of GptOssForCausalLM checkpoints: experts of a layer in one tensor, MXFP4 blocks as
// published or BF16, gate and up rows in turns; or a tensor for each expert and matrix, as GGUF files are read.
// Semantics follow the reference implementation in transformers. The list of families is families.def.
#include <fmt/format.h>

#include <cmath>

#include "model/families/common.h"
#include "model/family.h"

namespace carpool::gpt_oss {
namespace {

constexpr double kAlpha = 1.702;  // of Activation::kClampedSwiglu

// Layers with a window: those that "layer_types" names, else every second one from the first on.
void read_windows(const JsonObject& json, ModelConfig& c) {
  const int window = static_cast<int>(json.integer_or("sliding_window", 128, 1, families::kMaxContext));
  c.window.assign(static_cast<size_t>(c.layers), 0);
  if (!json.has("layer_types")) {
    for (size_t l = 0; l < c.window.size(); l += 2) c.window[l] = window;
    return;
  }
  const json::array& types = json.array("layer_types");
  if (types.size() != c.window.size()) {
    json.fail("layer_types", fmt::format("{} entries for {} layers", types.size(), c.layers));
  }
  for (size_t l = 0; l < types.size(); ++l) {
    const bool text = types[l].is_string();
    if (text && types[l].as_string() == "sliding_attention") {
      c.window[l] = window;
    } else if (!text || types[l].as_string() != "full_attention") {
      json.fail("layer_types", fmt::format("must be \"sliding_attention\" or \"full_attention\", found {}",
                                           escape(json::serialize(types[l]), 60)));
    }
  }
}

ModelConfig read_config(const JsonObject& json) {
  ModelConfig c;
  const families::Defaults defaults{.context = 131072, .norm_eps = 1e-5, .theta = 150000};
  families::read_common(json, defaults, c);
  families::read_grouped_attention(json, defaults, c);
  if (!json.has("rope_scaling") && !json.has("rope_parameters")) json.fail("rope_scaling", "is missing");
  c.qkv_bias = c.o_bias = json.boolean_or("attention_bias", true);
  c.sinks = true;
  read_windows(json, c);
  c.moe_layer.assign(static_cast<size_t>(c.layers), true);
  families::read_experts(json, {families::first_key(json, {"num_local_experts", "num_experts"}), "intermediate_size"},
                         c);
  c.scoring.kind = Scoring::Kind::kSoftmaxTopk;
  c.scoring.check(c.n_experts, c.top_k);
  c.router_bias = c.expert_bias = true;
  c.activation = Activation::kClampedSwiglu;
  c.activation_limit = static_cast<float>(json.number_or("swiglu_limit", 7, 1e-6, 1e6));
  if (const double alpha = json.number_or("swiglu_alpha", kAlpha, 0, 1e6); std::abs(alpha - kAlpha) > 1e-6) {
    families::unsupported(json, "swiglu_alpha", fmt::format("{} is not supported, must be {}", alpha, kAlpha));
  }
  return c;
}

// Biases of gate and up [E, F] each, or [E, 2F] in turns, to the order of the panels' outputs.
void take_expert_biases(const ModelConfig& c, const std::string& p, TensorReader& reader, ExpertSet& experts) {
  const auto E = static_cast<size_t>(c.n_experts), F = static_cast<size_t>(c.expert_width);
  const bool fused = reader.has(p + "gate_up_proj_bias");
  std::vector<float> gate, up;
  if (fused) {
    gate = reader.values(p + "gate_up_proj_bias", c.n_experts, 2 * int64_t{c.expert_width});
  } else {
    gate = reader.values(p + "gate_proj_bias", c.n_experts, c.expert_width);
    up = reader.values(p + "up_proj_bias", c.n_experts, c.expert_width);
  }
  experts.down_bias = reader.values(p + "down_proj_bias", c.n_experts, c.width);
  if (gate.empty() || (!fused && up.empty())) return;  // reported
  constexpr size_t kPanel = kPanelRows;
  const size_t padded = (F + kPanel - 1) / kPanel * kPanel;
  experts.gate_up_bias.assign(E * 2 * padded, 0.0f);
  for (size_t e = 0; e < E; ++e) {
    for (size_t f = 0; f < F; ++f) {
      float* at = experts.gate_up_bias.data() + e * 2 * padded + f / kPanel * 2 * kPanel + f % kPanel;
      at[0] = fused ? gate[(e * F + f) * 2] : gate[e * F + f];
      at[kPanel] = fused ? gate[(e * F + f) * 2 + 1] : up[e * F + f];
    }
  }
}

void take_experts(const ModelConfig& c, const std::string& p, TensorReader& reader, LayerWeights& layer) {
  ExpertSet& experts = layer.experts;
  if (reader.has(p + "gate_up_proj")) {
    const ExpertShape up{c.n_experts, c.expert_width, c.width, true}, down{c.n_experts, c.width, c.expert_width, true};
    for (int e = 0; e < c.n_experts; ++e) {
      experts.gate_up.push_back(reader.expert_pair(p + "gate_up_proj", e, up, Order::kInterleaved));
      experts.down.push_back(reader.expert(p + "down_proj", e, down));
    }
  } else {
    families::take_experts(c, p, {}, reader, layer);
  }
  take_expert_biases(c, p, reader, experts);
}

void take_weights(const ModelConfig& c, TensorReader& reader, Weights& weights) {
  families::take_ends(c, reader, weights);
  for (int l = 0; l < c.layers; ++l) {
    const std::string p = fmt::format("model.layers.{}.", l);
    LayerWeights layer;
    families::take_norms(c, p, reader, layer);
    families::take_grouped_attention(c, p + "self_attn.", reader, layer);
    layer.grouped.sinks = reader.vector(p + "self_attn.sinks", c.heads);
    families::take_router(c, p + "mlp.router.weight", reader, layer);
    layer.router_bias = reader.vector(p + "mlp.router.bias", c.n_experts);
    take_experts(c, p + "mlp.experts.", reader, layer);
    weights.layers.push_back(std::move(layer));
  }
}

}  // namespace

extern const Family kFamily;
const Family kFamily = {"gpt_oss", "GptOssForCausalLM", read_config, take_weights};

}  // namespace carpool::gpt_oss
