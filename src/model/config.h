// What a model is: features and sizes, no behaviour.
//
// Owns ModelConfig, filled by a Family (family.h) from config.json and generation_config.json. Code branches on these
// features, never on a model's name. Symbols as everywhere: D width, H heads, G kv heads, E experts, K per token.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/ops.h"
#include "routing/scoring.h"

namespace carpool {

// Rotary embedding of positions: the angle of pair i at position p is p * frequency(i).
struct Rope {
  enum class Scaling { kNone, kLinear, kYarn, kLlama3 };
  double theta = 10000;
  int dims = 0;              // elements of a head that are rotated, even; pairs (i, i + dims / 2),
  bool interleaved = false;  // or (2i, 2i + 1)
  Scaling scaling = Scaling::kNone;
  double factor = 1;                             // of the context: kLinear, kYarn, kLlama3
  double original_context = 0;                   // kYarn, kLlama3: positions the model was first made for
  double beta_fast = 32, beta_slow = 1;          // kYarn: rotations over that context between which frequencies blend
  bool truncate = true;                          // kYarn: the ends of that range are whole dimensions
  double attention_factor = 1;                   // kYarn: on cosines and sines
  double low_frequency = 1, high_frequency = 4;  // kLlama3: wavelengths of original_context / these blend
  std::vector<float> divisors;                   // [dims / 2] of each frequency, from files that have them, or empty

  // [dims / 2] radians per position, float32 as the reference implementations have them.
  std::vector<float> frequencies() const;
};

// Multi-head latent attention (DeepSeek-V2): keys and values of all heads are made of one vector per position.
struct Latent {
  int q_rank = 0;          // of the queries' own low-rank step; 0 = one matrix
  int kv_rank = 0;         // elements of the latent vector, a multiple of 16
  int nope = 0;            // elements of a head's key that come from it
  int rope = 0;            // elements of the rotated key that all heads share
  int value = 0;           // elements of a head's value, a multiple of 16
  float norm_eps = 1e-6f;  // of the norms in between, whatever the other norms have
};

// Sparse attention (DSA): small heads of their own choose the positions that a row attends to.
struct Indexer {
  int heads = 0;
  int head_dim = 0;          // the first rope.dims of them are rotated
  int top = 0;               // positions; a row that has no more attends to all of them
  bool interleaved = false;  // pairs of the rotation
  float scale = 0;           // of q.k, the weight that all heads share included
  float norm_eps = 1e-6f;    // of the LayerNorm of its keys
  std::vector<bool> own;     // [L] chooses for itself, else takes the choice of the last layer that did
};

struct ModelConfig {
  std::string family;  // "qwen3_moe", for messages
  int vocab = 0;       // V, rows of the embedding
  int width = 0;       // D
  int layers = 0;      // L
  int heads = 0;       // H
  int kv_heads = 0;    // G
  int head_dim = 0;    // of queries and keys, as they are compared; with `latent` kv_rank + rope
  int value_dim = 0;   // of a head's value in the cache; with `latent` kv_rank, and values are the start of the keys
  int context = 0;     // positions the model was made for
  float norm_eps = 0;
  Rope rope;
  float attention_scale = 0;  // of q.k
  enum class QkNorm { kNone, kHead, kWhole };
  QkNorm qk_norm = QkNorm::kNone;  // RMSNorm of each query and key head, or of all heads together
  bool qkv_bias = false, o_bias = false;
  bool sinks = false;       // each head has a logit without a position
  std::vector<int> window;  // [L] positions a row sees, itself included, 0 = all before it; empty = 0 everywhere
  std::optional<Latent> latent;
  std::optional<Indexer> indexer;
  bool tied_head = false;  // logits use the embedding matrix

  std::vector<bool> moe_layer;  // [L] routed experts, else a dense gated block
  int dense_width = 0;          // of the dense blocks
  int expert_width = 0;         // F
  int shared_width = 0;         // of the shared experts of an MoE layer, taken as one dense block; 0 = none
  int n_experts = 0;            // E, 0 in a dense model
  int top_k = 0;                // K
  Scoring scoring;              // the rule all MoE layers share; selection biases are the layers' own
  bool selection_bias = false;  // layers have one
  bool router_bias = false;     // the router is a linear layer with bias
  bool expert_bias = false;     // so are the experts' matrices
  Activation activation = Activation::kSilu;  // of routed experts
  float activation_limit = 0;                 // kClampedSwiglu

  int unused_layers = 0;  // multi-token prediction layers behind the last one, which are not run

  std::vector<int> eos_ids;  // union of config.json and generation_config.json
  struct SamplingDefaults {
    float temperature = 0;  // 0 = greedy
    int top_k = 0;
    float top_p = 1;
  } sampling;
  std::vector<std::string> notes;  // sentences for whoever loads the model: what of it is not used

  int moe_layers() const;
  int q_width() const { return heads * head_dim; }      // floats per row of what is compared with keys
  int kv_width() const { return kv_heads * head_dim; }  // floats per position and layer, keys alone
  int window_of(int layer) const { return window.empty() ? 0 : window[static_cast<size_t>(layer)]; }
  // Whether some row can have more positions than the indexer chooses, so that it must be run.
  bool sparse() const { return indexer && context > indexer->top; }
};

// Reads config.json (and generation_config.json when present) of a Hugging Face directory, or the metadata of a .gguf
// file. Error{kMissing} without the file, kMalformed with the key path for wrong values or violated relations, kConfig
// for an unsupported architecture or feature (lists what is supported).
ModelConfig read_model_config(const std::string& model);

}  // namespace carpool
