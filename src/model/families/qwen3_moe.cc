// Qwen3-MoE: grouped-query attention with per-head q/k norm, softmax router, SwiGLU experts, no shared expert.
//
// Maps config.json and tensor names of Qwen3MoeForCausalLM checkpoints as published (30B-A3B, 235B-A22B, Coder).
// Semantics follow the reference implementation in transformers. The list of families is families.def.
#include <fmt/format.h>

#include <cmath>

#include "model/family.h"
#include "model/stored_matrix.h"

namespace carpool::qwen3_moe {
namespace {

constexpr int64_t kMaxLayers = 1024, kMaxExperts = 4096, kMaxWidth = 1 << 17, kMaxVocab = 1 << 22,
                  kMaxContext = 1 << 24;

// Which layers have routed experts: every decoder_sparse_step-th one that mlp_only_layers does not name.
std::vector<bool> moe_layers(const JsonObject& json, int layers, int experts) {
  const auto step = json.integer_or("decoder_sparse_step", 1, 1, kMaxLayers);
  std::vector<bool> moe(static_cast<size_t>(layers));
  for (int l = 0; l < layers; ++l) moe[static_cast<size_t>(l)] = experts > 0 && (l + 1) % step == 0;
  if (json.has("mlp_only_layers")) {
    for (const json::value& v : json.array("mlp_only_layers")) {
      if (!v.is_int64() || v.as_int64() < 0 || v.as_int64() >= layers) {
        json.fail("mlp_only_layers",
                  fmt::format("must be layers of 0 to {}, found {}", layers - 1, escape(json::serialize(v), 60)));
      }
      moe[static_cast<size_t>(v.as_int64())] = false;
    }
  }
  return moe;
}

// rope_theta stands at the top level, or in rope_parameters in files of transformers 5.
double rope_theta(const JsonObject& json) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!json.has(key)) continue;
    const JsonObject rope = json.object(key);
    const std::string type = rope.string_or("rope_type", rope.string_or("type", "default"));
    if (type != "default") {
      throw Error(ErrorKind::kConfig,
                  fmt::format("{}: \"{}\": rotary scaling of type \"{}\" is not supported; supported: default",
                              json.where(), key, escape(type)));
    }
    if (rope.has("rope_theta")) return rope.number("rope_theta", 1, 1e12);
  }
  return json.number_or("rope_theta", 10000, 1, 1e12);
}

ModelConfig read_config(const JsonObject& json) {
  ModelConfig c;
  c.vocab = static_cast<int>(json.integer("vocab_size", 1, kMaxVocab));
  c.width = static_cast<int>(json.integer("hidden_size", 1, kMaxWidth));
  c.layers = static_cast<int>(json.integer("num_hidden_layers", 1, kMaxLayers));
  c.heads = static_cast<int>(json.integer("num_attention_heads", 1, 4096));
  c.kv_heads = static_cast<int>(json.integer_or("num_key_value_heads", c.heads, 1, 4096));
  if (c.heads % c.kv_heads != 0) {
    json.fail("num_key_value_heads", fmt::format("{} does not divide num_attention_heads {}", c.kv_heads, c.heads));
  }
  c.head_dim = static_cast<int>(json.integer_or("head_dim", c.width / c.heads, 1, 4096));
  // Without the key it follows from two others, which may not fit each other.
  if (c.head_dim < 2 || c.head_dim > 4096 || c.head_dim % 2 != 0) {
    json.fail("head_dim", fmt::format("must be even for rotary embedding, 2 to 4096, got {}{}", c.head_dim,
                                      json.has("head_dim") ? "" : " (hidden_size / num_attention_heads)"));
  }
  c.context = static_cast<int>(json.integer_or("max_position_embeddings", 32768, 1, kMaxContext));
  c.norm_eps = static_cast<float>(json.number_or("rms_norm_eps", 1e-6, 1e-12, 1));
  c.value_dim = c.head_dim;
  c.attention_scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  c.rope.theta = rope_theta(json);
  c.rope.dims = c.head_dim;
  c.qk_norm = ModelConfig::QkNorm::kHead;
  c.qkv_bias = c.o_bias = json.boolean_or("attention_bias", false);
  c.tied_head = json.boolean_or("tie_word_embeddings", false);
  // transformers 5 writes the number of experts under its generic name.
  const char* experts_key = json.has("num_experts") ? "num_experts" : "num_local_experts";
  c.n_experts = static_cast<int>(json.integer(experts_key, 1, kMaxExperts));
  c.moe_layer = moe_layers(json, c.layers, c.n_experts);
  if (c.moe_layers() < c.layers) c.dense_width = static_cast<int>(json.integer("intermediate_size", 1, kMaxWidth * 8));
  if (c.moe_layers() > 0) {
    c.expert_width = static_cast<int>(json.integer("moe_intermediate_size", 1, kMaxWidth * 8));
    c.top_k = static_cast<int>(json.integer("num_experts_per_tok", 1, c.n_experts));
    c.scoring.kind = Scoring::Kind::kSoftmax;
    c.scoring.renormalize = json.boolean_or("norm_topk_prob", false);
    c.scoring.check(c.n_experts, c.top_k);
  }
  if (const std::string act = json.string_or("hidden_act", "silu"); act != "silu") {
    throw Error(ErrorKind::kConfig,
                fmt::format("{}: \"hidden_act\": \"{}\" is not supported; supported: silu", json.where(), escape(act)));
  }
  if (json.boolean_or("use_sliding_window", false)) {
    throw Error(ErrorKind::kConfig, fmt::format("{}: \"use_sliding_window\": true is not supported", json.where()));
  }
  check_quantization_config(json);
  return c;
}

void take_attention(const ModelConfig& c, const std::string& p, TensorReader& reader, LayerWeights& layer) {
  const int64_t q = c.q_width(), kv = c.kv_width();
  GroupedWeights& w = layer.grouped;
  w.q = reader.matrix(p + "q_proj.weight", q, c.width);
  w.k = reader.matrix(p + "k_proj.weight", kv, c.width);
  w.v = reader.matrix(p + "v_proj.weight", kv, c.width);
  layer.o = reader.matrix(p + "o_proj.weight", c.width, q);
  if (c.qkv_bias) {
    w.q_bias = reader.vector(p + "q_proj.bias", q);
    w.k_bias = reader.vector(p + "k_proj.bias", kv);
    w.v_bias = reader.vector(p + "v_proj.bias", kv);
  }
  if (c.o_bias) layer.o_bias = reader.vector(p + "o_proj.bias", c.width);
  w.q_norm = reader.vector(p + "q_norm.weight", c.head_dim);
  w.k_norm = reader.vector(p + "k_norm.weight", c.head_dim);
}

void take_weights(const ModelConfig& c, TensorReader& reader, Weights& weights) {
  weights.embed = reader.rows("model.embed_tokens.weight", c.vocab, c.width);
  weights.final_norm = reader.vector("model.norm.weight", c.width);
  weights.head = reader.matrix(c.tied_head ? "model.embed_tokens.weight" : "lm_head.weight", c.vocab, c.width);
  for (int l = 0; l < c.layers; ++l) {
    const std::string p = fmt::format("model.layers.{}.", l);
    LayerWeights layer;
    layer.input_norm = reader.vector(p + "input_layernorm.weight", c.width);
    layer.post_norm = reader.vector(p + "post_attention_layernorm.weight", c.width);
    take_attention(c, p + "self_attn.", reader, layer);
    if (c.moe_layer[static_cast<size_t>(l)]) {
      layer.scoring = c.scoring;
      layer.router = reader.matrix_f32(p + "mlp.gate.weight", c.n_experts, c.width);
      for (int e = 0; e < c.n_experts; ++e) {
        const std::string x = fmt::format("{}mlp.experts.{}.", p, e);
        layer.experts.gate_up.push_back(
            reader.pair(x + "gate_proj.weight", x + "up_proj.weight", c.expert_width, c.width));
        layer.experts.down.push_back(reader.matrix(x + "down_proj.weight", c.width, c.expert_width));
      }
      reader.check_one_format(layer.experts, p + "mlp.experts");
    } else {
      layer.dense_gate_up = reader.pair(p + "mlp.gate_proj.weight", p + "mlp.up_proj.weight", c.dense_width, c.width);
      layer.dense_down = reader.matrix(p + "mlp.down_proj.weight", c.width, c.dense_width);
    }
    weights.layers.push_back(std::move(layer));
  }
}

}  // namespace

extern const Family kFamily;
const Family kFamily = {"qwen3_moe", "Qwen3MoeForCausalLM", read_config, take_weights};

}  // namespace carpool::qwen3_moe
