// See common.h. Semantics follow the reference implementations in transformers.
#include "model/families/common.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "model/quantization_config.h"

namespace carpool::families {

void unsupported(const JsonObject& json, std::string_view key, const std::string& what) {
  throw Error(ErrorKind::kConfig, fmt::format("{}: \"{}\": {}", json.where(), key, what));
}

void require_false(const JsonObject& json, std::string_view key) {
  if (json.boolean_or(key, false)) unsupported(json, key, "true is not supported");
}

void require_text(const JsonObject& json, std::string_view key, std::initializer_list<std::string_view> supported) {
  if (!json.has(key)) return;
  const std::string found = json.string(key);
  if (std::find(supported.begin(), supported.end(), found) != supported.end()) return;
  unsupported(json, key,
              fmt::format("\"{}\" is not supported; supported: {}", escape(found), fmt::join(supported, ", ")));
}

const char* first_key(const JsonObject& json, std::initializer_list<const char*> keys) {
  const auto* found = std::find_if(keys.begin(), keys.end(), [&](const char* key) { return json.has(key); });
  return found == keys.end() ? *std::prev(keys.end()) : *found;
}

void read_common(const JsonObject& json, const Defaults& defaults, ModelConfig& c) {
  c.vocab = static_cast<int>(json.integer("vocab_size", 1, kMaxVocab));
  c.width = static_cast<int>(json.integer("hidden_size", 1, kMaxWidth));
  c.layers = static_cast<int>(json.integer("num_hidden_layers", 1, kMaxLayers));
  c.heads = static_cast<int>(json.integer("num_attention_heads", 1, kMaxHeads));
  c.context = static_cast<int>(json.integer_or("max_position_embeddings", defaults.context, 1, kMaxContext));
  c.norm_eps = static_cast<float>(json.number_or("rms_norm_eps", defaults.norm_eps, 1e-12, 1));
  c.tied_head = json.boolean_or("tie_word_embeddings", false);
  require_text(json, "hidden_act", {"silu"});
  check_quantization_config(json);
}

void read_grouped_attention(const JsonObject& json, const Defaults& defaults, ModelConfig& c) {
  c.kv_heads = static_cast<int>(json.integer_or("num_key_value_heads", c.heads, 1, kMaxHeads));
  if (c.heads % c.kv_heads != 0) {
    json.fail("num_key_value_heads", fmt::format("{} does not divide num_attention_heads {}", c.kv_heads, c.heads));
  }
  c.head_dim = static_cast<int>(json.integer_or("head_dim", c.width / c.heads, 1, kMaxHeadDim));
  // Without the key it follows from two others, which may not fit each other.
  if (c.head_dim < 2 || c.head_dim > kMaxHeadDim || c.head_dim % 2 != 0) {
    json.fail("head_dim", fmt::format("must be even for rotary embedding, 2 to {}, got {}{}", kMaxHeadDim, c.head_dim,
                                      json.has("head_dim") ? "" : " (hidden_size / num_attention_heads)"));
  }
  c.value_dim = c.head_dim;
  c.attention_scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  read_rope(json, defaults, c.head_dim, c);
}

namespace {

// "rope_parameters" is what transformers 5 writes; "rope_scaling" comes first where a file has both, as there.
constexpr const char* kRopeObjects[] = {"rope_scaling", "rope_parameters"};

// Calls `use` with the settings that a rope object has for `key`, or that stand beside it.
template <class Use>
bool with_rope_key(const JsonObject& json, std::string_view key, Use use) {
  for (const char* name : kRopeObjects) {
    if (!json.has(name)) continue;
    const JsonObject rope = json.object(name);
    if (!rope.has(key)) continue;
    use(rope);
    return true;
  }
  if (!json.has(key)) return false;
  use(json);
  return true;
}

Rope::Scaling rope_scaling(const JsonObject& json) {
  Rope::Scaling scaling = Rope::Scaling::kNone;
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    if (!json.has(name)) continue;
    const JsonObject rope = json.object(name);
    const std::string type = rope.string_or("rope_type", rope.string_or("type", "default"));
    if (type == "default") {
      scaling = Rope::Scaling::kNone;
    } else if (type == "linear") {
      scaling = Rope::Scaling::kLinear;
    } else if (type == "yarn") {
      scaling = Rope::Scaling::kYarn;
    } else if (type == "llama3") {
      scaling = Rope::Scaling::kLlama3;
    } else {
      unsupported(
          json, name,
          fmt::format("rotary scaling of type \"{}\" is not supported; supported: default, linear, yarn, llama3",
                      escape(type)));
    }
  }
  return scaling;
}

double yarn_attention_factor(const JsonObject& json, double factor) {
  const double weight = rope_number_or(json, "mscale", 0, 0, 100),
               all_weight = rope_number_or(json, "mscale_all_dim", 0, 0, 100);
  const double usual = weight > 0 && all_weight > 0
                           ? yarn_magnitude(factor, weight) / yarn_magnitude(factor, all_weight)
                           : yarn_magnitude(factor, 1);
  return rope_number_or(json, "attention_factor", usual, 1e-6, 1e6);
}

std::vector<float> positive_numbers(const JsonObject& json, std::string_view key, int count) {
  std::vector<float> out;
  for (const json::value& v : json.array(key)) {
    const double number = v.is_number() ? v.to_number<double>() : 0;
    if (!(number > 0) || number > 1e6) {
      json.fail(key, fmt::format("must be above 0 and at most 1e6, found {}", escape(json::serialize(v), 60)));
    }
    out.push_back(static_cast<float>(number));
  }
  if (out.size() != static_cast<size_t>(count)) json.fail(key, fmt::format("{} numbers for {}", out.size(), count));
  return out;
}

}  // namespace

double yarn_magnitude(double factor, double weight) { return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1; }

double rope_number_or(const JsonObject& json, std::string_view key, double fallback, double low, double high) {
  double value = fallback;
  with_rope_key(json, key, [&](const JsonObject& from) { value = from.number(key, low, high); });
  return value;
}

void read_rope(const JsonObject& json, const Defaults& defaults, int head_dim, ModelConfig& c) {
  Rope& rope = c.rope;
  rope.theta = rope_number_or(json, "rope_theta", defaults.theta, 1.0001, 1e12);
  const double part = rope_number_or(json, "partial_rotary_factor", defaults.partial_rotary, 0, 1);
  rope.dims = static_cast<int>(head_dim * part);
  if (rope.dims < 2 || rope.dims % 2 != 0) {
    json.fail("partial_rotary_factor",
              fmt::format("{} of heads of {} elements: the rotated part must be even and at least 2, got {}", part,
                          head_dim, rope.dims));
  }
  if (json.has("rope_divisors")) rope.divisors = positive_numbers(json, "rope_divisors", rope.dims / 2);
  rope.scaling = rope_scaling(json);
  if (rope.scaling == Rope::Scaling::kNone) return;
  rope.factor = rope_number_or(json, "factor", 0, 1, 1e6);
  if (rope.scaling == Rope::Scaling::kLinear && rope.factor == 0) json.fail("factor", "is missing");
  if (rope.scaling == Rope::Scaling::kLinear) return;
  rope.original_context = rope_number_or(json, "original_max_position_embeddings", c.context, 1, kMaxContext);
  if (rope.factor == 0) rope.factor = std::max(1.0, c.context / rope.original_context);
  rope.low_frequency = rope_number_or(json, "low_freq_factor", rope.low_frequency, 1e-6, 1e6);
  rope.high_frequency = rope_number_or(json, "high_freq_factor", rope.high_frequency, 1e-6, 1e6);
  if (rope.scaling == Rope::Scaling::kLlama3 && rope.high_frequency <= rope.low_frequency) {
    json.fail("high_freq_factor",
              fmt::format("{} must be above low_freq_factor {}", rope.high_frequency, rope.low_frequency));
  }
  if (rope.scaling != Rope::Scaling::kYarn) return;
  rope.beta_fast = rope_number_or(json, "beta_fast", rope.beta_fast, 1e-6, 1e6);
  rope.beta_slow = rope_number_or(json, "beta_slow", rope.beta_slow, 1e-6, 1e6);
  with_rope_key(json, "truncate", [&](const JsonObject& from) { rope.truncate = from.boolean_or("truncate", true); });
  rope.attention_factor = yarn_attention_factor(json, rope.factor);
}

void read_experts(const JsonObject& json, const ExpertKeys& keys, ModelConfig& c) {
  c.n_experts = static_cast<int>(json.integer(keys.count, 1, kMaxExperts));
  if (c.moe_layers() < c.layers) c.dense_width = static_cast<int>(json.integer(keys.dense_width, 1, kMaxWidth * 8));
  if (c.moe_layers() == 0) return;
  c.expert_width = static_cast<int>(json.integer(keys.width, 1, kMaxWidth * 8));
  c.top_k = static_cast<int>(json.integer("num_experts_per_tok", 1, c.n_experts));
}

void read_dense(const JsonObject& json, ModelConfig& c) {
  c.moe_layer.assign(static_cast<size_t>(c.layers), false);
  c.dense_width = static_cast<int>(json.integer("intermediate_size", 1, kMaxWidth * 8));
}

void read_window(const JsonObject& json, ModelConfig& c) {
  if (!json.has("sliding_window")) return;
  c.window.assign(static_cast<size_t>(c.layers), static_cast<int>(json.integer("sliding_window", 1, kMaxContext)));
}

std::vector<bool> moe_layers_by_step(const JsonObject& json, int layers) {
  const auto step = json.integer_or("decoder_sparse_step", 1, 1, kMaxLayers);
  std::vector<bool> moe(static_cast<size_t>(layers));
  for (int l = 0; l < layers; ++l) moe[static_cast<size_t>(l)] = (l + 1) % step == 0;
  if (!json.has("mlp_only_layers")) return moe;
  for (const json::value& v : json.array("mlp_only_layers")) {
    if (!v.is_int64() || v.as_int64() < 0 || v.as_int64() >= layers) {
      json.fail("mlp_only_layers",
                fmt::format("must be layers of 0 to {}, found {}", layers - 1, escape(json::serialize(v), 60)));
    }
    moe[static_cast<size_t>(v.as_int64())] = false;
  }
  return moe;
}

void take_ends(const ModelConfig& c, TensorReader& reader, Weights& weights) {
  weights.embed = reader.rows("model.embed_tokens.weight", c.vocab, c.width);
  weights.final_norm = reader.vector("model.norm.weight", c.width);
  weights.head = reader.matrix(c.tied_head ? "model.embed_tokens.weight" : "lm_head.weight", c.vocab, c.width);
  reader.ignore("rope_freqs.");  // of GGUF files, read with the configuration
}

void take_norms(const ModelConfig& c, const std::string& p, TensorReader& reader, LayerWeights& layer) {
  layer.input_norm = reader.vector(p + "input_layernorm.weight", c.width);
  layer.post_norm = reader.vector(p + "post_attention_layernorm.weight", c.width);
}

void take_grouped_attention(const ModelConfig& c, const std::string& p, TensorReader& reader, LayerWeights& layer) {
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
  if (c.qk_norm == ModelConfig::QkNorm::kNone) return;
  const bool whole = c.qk_norm == ModelConfig::QkNorm::kWhole;
  w.q_norm = reader.vector(p + "q_norm.weight", whole ? q : c.head_dim);
  w.k_norm = reader.vector(p + "k_norm.weight", whole ? kv : c.head_dim);
}

void take_router(const ModelConfig& c, const std::string& gate, TensorReader& reader, LayerWeights& layer) {
  layer.scoring = c.scoring;
  layer.router = reader.matrix_f32(gate, c.n_experts, c.width);
}

namespace {

void take_fused_experts(const ModelConfig& c, const std::string& p, TensorReader& reader, ExpertSet& experts) {
  const ExpertShape up{c.n_experts, c.expert_width, c.width}, down{c.n_experts, c.width, c.expert_width};
  for (int e = 0; e < c.n_experts; ++e) {
    experts.gate_up.push_back(reader.expert_pair(p + "gate_up_proj", e, up, Order::kHalves));
    experts.down.push_back(reader.expert(p + "down_proj", e, down));
  }
}

}  // namespace

void take_experts(const ModelConfig& c, const std::string& p, const ExpertNames& names, TensorReader& reader,
                  LayerWeights& layer) {
  if (reader.has(p + "gate_up_proj")) return take_fused_experts(c, p, reader, layer.experts);
  for (int e = 0; e < c.n_experts; ++e) {
    const auto name = [&](const char* matrix) { return fmt::format("{}{}.{}.weight", p, e, matrix); };
    layer.experts.gate_up.push_back(reader.pair(name(names.gate), name(names.up), c.expert_width, c.width));
    layer.experts.down.push_back(reader.matrix(name(names.down), c.width, c.expert_width));
  }
  reader.check_one_format(layer.experts, p.substr(0, p.size() - 1));
}

void take_dense(const ModelConfig& c, const std::string& p, TensorReader& reader, LayerWeights& layer) {
  layer.dense_gate_up = reader.pair(p + "gate_proj.weight", p + "up_proj.weight", c.dense_width, c.width);
  layer.dense_down = reader.matrix(p + "down_proj.weight", c.width, c.dense_width);
}

void take_shared(const ModelConfig& c, const std::string& p, TensorReader& reader, LayerWeights& layer) {
  layer.shared_gate_up = reader.pair(p + "gate_proj.weight", p + "up_proj.weight", c.shared_width, c.width);
  layer.shared_down = reader.matrix(p + "down_proj.weight", c.width, c.shared_width);
}

void take_dense_decoder(const ModelConfig& c, TensorReader& reader, Weights& weights) {
  take_ends(c, reader, weights);
  for (int l = 0; l < c.layers; ++l) {
    const std::string p = fmt::format("model.layers.{}.", l);
    LayerWeights layer;
    take_norms(c, p, reader, layer);
    take_grouped_attention(c, p + "self_attn.", reader, layer);
    take_dense(c, p + "mlp.", reader, layer);
    weights.layers.push_back(std::move(layer));
  }
}

std::string first_block(const TensorReader& reader, const std::string& p, std::initializer_list<const char*> blocks,
                        const char* name) {
  const auto* found =
      std::find_if(blocks.begin(), blocks.end(), [&](const char* block) { return reader.has(p + block + name); });
  return p + (found == blocks.end() ? *blocks.begin() : *found);
}

}  // namespace carpool::families
