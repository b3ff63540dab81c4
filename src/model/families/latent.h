// What DeepSeek-V2, DeepSeek-V3, Kimi-K2 and the GLM models made after them have in common.
//
// Owns the parts of configurations and layers that those families share: attention over latent vectors, the indexer of
// sparse attention, experts that are chosen by biased sigmoids, shared experts, dense layers before the first MoE
// layer, and multi-token prediction layers behind the last one. See common.h for the rest.
#pragma once

#include <string>
#include <vector>

#include "model/families/common.h"

namespace carpool::families {

// Attention over latent vectors, the rotation and YaRN's part of the scale with it.
void read_latent_attention(const JsonObject& json, const Defaults& defaults, ModelConfig& c);
// The indexer, and which layers have one of their own: "indexer_types", else "index_topk_pattern", else every
// index_topk_freq-th from index_skip_topk_offset on.
void read_indexer(const JsonObject& json, ModelConfig& c);

// Which layers have routed experts: what "mlp_layer_types" says, else those from "first_k_dense_replace" on that
// "moe_layer_freq" divides.
std::vector<bool> moe_layers_after_dense(const JsonObject& json, int layers, int dense_by_default);
// Routed and shared experts, and the rule that chooses by sigmoid and bias. Call after c.moe_layer is set.
void read_biased_experts(const JsonObject& json, ModelConfig& c);
void read_shared_experts(const JsonObject& json, ModelConfig& c);
// Groups of experts, of which a row uses the best.
void read_groups(const JsonObject& json, int groups_by_default, int kept_by_default, ModelConfig& c);
void read_prediction_layers(const JsonObject& json, ModelConfig& c);

// `p` = "model.layers.0.self_attn.".
void take_latent_attention(const ModelConfig& c, const std::string& p, TensorReader& reader, LayerWeights& layer);
void take_indexer(const ModelConfig& c, int l, const std::string& p, TensorReader& reader, LayerWeights& layer);
// The dense block or the experts of layer l; `p` = "model.layers.0.mlp.".
void take_mlp(const ModelConfig& c, int l, const std::string& p, TensorReader& reader, LayerWeights& layer);
// The tensors of prediction layers belong to the model and are not read. Whether there are any is a note.
void pass_prediction_layers(const ModelConfig& c, TensorReader& reader);
// All of a decoder whose layers are attention, latent or grouped, and such a feed-forward half.
void take_decoder(const ModelConfig& c, TensorReader& reader, Weights& weights);

}  // namespace carpool::families
