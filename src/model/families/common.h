// What families have in common: the parts that config.json and the tensors of published decoders are made of.
//
// Owns one reader per feature of a configuration and one taker per part of a layer, by the names that most families
// use. A family is a list of these parts and of what it alone has; nothing here knows which family calls. Attention
// over latent vectors and the experts of DeepSeek-V3 and GLM are in latent.h.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "model/config.h"
#include "model/weights.h"

namespace carpool::families {

constexpr int64_t kMaxLayers = 1024, kMaxExperts = 4096, kMaxWidth = 1 << 17, kMaxVocab = 1 << 22,
                  kMaxContext = 1 << 24, kMaxHeads = 4096, kMaxHeadDim = 4096;

// Throws Error{kConfig}: the file is well-formed and asks for what there is not.
[[noreturn]] void unsupported(const JsonObject& json, std::string_view key, const std::string& what);
// Refuses a flag that asks for what there is not, and a text that is none of `supported`.
void require_false(const JsonObject& json, std::string_view key);
void require_text(const JsonObject& json, std::string_view key, std::initializer_list<std::string_view> supported);
// The first of `keys` that the file has, else the last.
const char* first_key(const JsonObject& json, std::initializer_list<const char*> keys);

// What a configuration means by leaving a value out.
struct Defaults {
  int64_t context = 32768;
  double norm_eps = 1e-6;
  double theta = 10000;
  double partial_rotary = 1;
};

// Vocabulary, width, layers, heads, context, norms, tied head. Refuses activations other than silu, and quantisation
// whose tensors are stored in ways that are not known.
void read_common(const JsonObject& json, const Defaults& defaults, ModelConfig& c);
// Attention whose heads have keys and values of their own: kv_heads, head_dim, scale, and the rotation with them.
void read_grouped_attention(const JsonObject& json, const Defaults& defaults, ModelConfig& c);
// The rotation of `head_dim` elements, or of their first part. Reads "rope_parameters", or "rope_scaling" and the keys
// beside it, as older files have it: default, linear, yarn and llama3. Leaves `interleaved` alone.
void read_rope(const JsonObject& json, const Defaults& defaults, int head_dim, ModelConfig& c);
// What YaRN for this factor does to the magnitude of attention; 1 for factors up to 1.
double yarn_magnitude(double factor, double weight);
// A number of the rope settings, wherever they are; `fallback` without them.
double rope_number_or(const JsonObject& json, std::string_view key, double fallback, double low, double high);

// Experts per layer, experts per token and their width, by the names that the family gives them, and the width of the
// dense blocks if some layer has one. Call after c.moe_layer is set.
struct ExpertKeys {
  const char* count;
  const char* width;
  const char* dense_width = "intermediate_size";
};
void read_experts(const JsonObject& json, const ExpertKeys& keys, ModelConfig& c);
// A model without routed experts: the width of the dense blocks.
void read_dense(const JsonObject& json, ModelConfig& c);
// "sliding_window", the same in every layer, when it is not null.
void read_window(const JsonObject& json, ModelConfig& c);
// Which layers have routed experts: every decoder_sparse_step-th one that mlp_only_layers does not name.
std::vector<bool> moe_layers_by_step(const JsonObject& json, int layers);

// Embedding, head and the norm before it.
void take_ends(const ModelConfig& c, TensorReader& reader, Weights& weights);
// input_layernorm and post_attention_layernorm; `p` = "model.layers.0.".
void take_norms(const ModelConfig& c, const std::string& p, TensorReader& reader, LayerWeights& layer);
// q_proj, k_proj, v_proj, o_proj, with the biases and norms that `c` says; `p` = "model.layers.0.self_attn.".
void take_grouped_attention(const ModelConfig& c, const std::string& p, TensorReader& reader, LayerWeights& layer);

struct ExpertNames {
  const char* gate = "gate_proj";
  const char* up = "up_proj";
  const char* down = "down_proj";
};
// The scoring rule and the router, "model.layers.0.mlp.gate.weight" being `gate`.
void take_router(const ModelConfig& c, const std::string& gate, TensorReader& reader, LayerWeights& layer);
// A tensor for each matrix of each expert, or two for all of them as transformers 5 has them itself: gate_up_proj
// [E, 2F, D], gate rows first, and down_proj [E, D, F]. `p` = "model.layers.0.mlp.experts.".
void take_experts(const ModelConfig& c, const std::string& p, const ExpertNames& names, TensorReader& reader,
                  LayerWeights& layer);
// `p` = "model.layers.0.mlp." and "model.layers.0.mlp.shared_experts.".
void take_dense(const ModelConfig& c, const std::string& p, TensorReader& reader, LayerWeights& layer);
void take_shared(const ModelConfig& c, const std::string& p, TensorReader& reader, LayerWeights& layer);

// All weights of a decoder without routed experts.
void take_dense_decoder(const ModelConfig& c, TensorReader& reader, Weights& weights);
// `p` and the first of `blocks` under which the source has a tensor `name`, else the first of them.
std::string first_block(const TensorReader& reader, const std::string& p, std::initializer_list<const char*> blocks,
                        const char* name);

}  // namespace carpool::families
