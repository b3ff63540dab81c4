// MiniMax-M2: query and key norms over all heads together, a rotated part of each head, sigmoid router with a bias for
// choosing, no shared expert.
//
// Maps config.json and tensor names of MiniMaxM2ForCausalLM checkpoints as published (block_sparse_moe, w1, w3, w2) and
// as transformers 5 writes them under its own names. Semantics follow the reference implementation in transformers.
// Does not run the multi-token prediction modules. The list of families is families.def.
#include <fmt/format.h>

#include "model/families/common.h"
#include "model/family.h"

namespace carpool::minimax_m2 {
namespace {

ModelConfig read_config(const JsonObject& json) {
  ModelConfig c;
  families::Defaults defaults{.context = 196608, .norm_eps = 1e-6, .theta = 5e6};
  families::read_common(json, defaults, c);
  const auto head_dim = json.integer_or("head_dim", 128, 2, families::kMaxHeadDim);
  defaults.partial_rotary =
      static_cast<double>(json.integer_or("rotary_dim", head_dim, 2, head_dim)) / static_cast<double>(head_dim);
  families::read_grouped_attention(json, defaults, c);
  families::require_text(json, "qk_norm_type", {"per_layer"});
  if (!json.boolean_or("use_qk_norm", true)) families::unsupported(json, "use_qk_norm", "false is not supported");
  c.qk_norm = ModelConfig::QkNorm::kWhole;
  families::read_window(json, c);
  if (json.integer_or("shared_intermediate_size", 0, 0, INT32_MAX) != 0) {
    families::unsupported(json, "shared_intermediate_size", "shared experts are not supported here, must be 0");
  }
  c.moe_layer.assign(static_cast<size_t>(c.layers), true);
  families::read_experts(json, {families::first_key(json, {"num_local_experts", "num_experts"}), "intermediate_size"},
                         c);
  families::require_text(json, "scoring_func", {"sigmoid"});
  c.scoring.kind = Scoring::Kind::kSigmoid;
  c.scoring.renormalize = true;
  c.selection_bias = json.boolean_or("use_routing_bias", true);
  c.scoring.check(c.n_experts, c.top_k);
  if (const auto modules = json.integer_or("num_mtp_modules", 0, 0, families::kMaxLayers); modules > 0) {
    c.unused_layers = static_cast<int>(modules);
    c.notes.push_back(fmt::format("{} modules of multi-token prediction are not used", modules));
  }
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
    if (c.selection_bias) {
      layer.scoring.selection_bias = reader.vector(moe + "e_score_correction_bias", c.n_experts);
    }
    families::take_experts(c, moe + "experts.", {"w1", "w3", "w2"}, reader, layer);
    weights.layers.push_back(std::move(layer));
  }
  for (int l = c.layers; l < c.layers + c.unused_layers; ++l) reader.ignore(fmt::format("model.layers.{}.", l));
}

}  // namespace

extern const Family kFamily;
const Family kFamily = {"minimax_m2", "MiniMaxM2ForCausalLM", read_config, take_weights};

}  // namespace carpool::minimax_m2
