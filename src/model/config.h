// What a model is: features and sizes, no behaviour.
//
// Owns ModelConfig, filled by a Family (family.h) from config.json and generation_config.json. Code branches on these
// features, never on a model's name. Symbols as everywhere: D width, H heads, G kv heads, E experts, K per token.
#pragma once

#include <string>
#include <vector>

#include "routing/scoring.h"

namespace carpool {

struct ModelConfig {
  std::string family;  // "qwen3_moe", for messages
  int vocab = 0;       // V, rows of the embedding
  int width = 0;       // D
  int layers = 0;      // L
  int heads = 0;       // H
  int kv_heads = 0;    // G
  int head_dim = 0;
  int context = 0;  // positions the model was made for
  float norm_eps = 0;
  double rope_theta = 0;
  bool qk_norm = false;         // RMSNorm of each query and key head
  bool attention_bias = false;  // q, k, v and o have biases
  bool tied_head = false;       // logits use the embedding matrix

  std::vector<bool> moe_layer;  // [L] routed experts, else a dense SwiGLU block
  int dense_width = 0;          // of the dense blocks
  int expert_width = 0;         // F
  int n_experts = 0;            // E
  int top_k = 0;                // K
  Scoring scoring;              // the rule all MoE layers share

  std::vector<int> eos_ids;  // union of config.json and generation_config.json
  struct SamplingDefaults {
    float temperature = 0;  // 0 = greedy
    int top_k = 0;
    float top_p = 1;
  } sampling;

  int moe_layers() const;
  int kv_width() const { return kv_heads * head_dim; }  // floats per position and layer, keys alone
};

// Reads config.json (and generation_config.json when present) of a Hugging Face directory, or the metadata of a .gguf
// file. Error{kMissing} without the file, kMalformed with the key path for wrong values or violated relations, kConfig
// for an unsupported architecture or feature (lists what is supported).
ModelConfig read_model_config(const std::string& model);

}  // namespace carpool
