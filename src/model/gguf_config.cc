// Keys of an architecture, one line each way; see gguf_config.h.
#include "model/gguf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <span>

#include "base/error.h"
#include "model/gguf_names.h"

namespace carpool {
namespace {

constexpr int64_t kMaxCount = int64_t{1} << 24;  // of anything the metadata counts; families have narrower bounds
constexpr int64_t kMaxLayers = 65'536;
constexpr int64_t kSoftmax = 1, kSigmoid = 2;  // expert_gating_func
constexpr const char* kSwigluLimit = "carpool.swiglu_limit";
constexpr const char* kEndKeys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                    "tokenizer.ggml.eom_token_id"};
constexpr const char* kAllEnds = "carpool.end_token_ids";  // of a model with more end tokens than there are keys

// The names of all tensors, for what the metadata does not say.
std::set<std::string_view> tensor_names(const GgufSet& files) {
  std::set<std::string_view> names;
  for (const GgufFile& file : files.files()) {
    for (const GgufTensor& t : file.tensors()) names.insert(t.name);
  }
  return names;
}

// A vector of float32, empty when there is none of this name.
std::vector<float> float_values(const GgufSet& files, std::string_view name) {
  std::vector<float> out;
  for (const GgufFile& file : files.files()) {
    for (const GgufTensor& t : file.tensors()) {
      if (t.name != name) continue;
      if (t.format != Format::kF32 || t.shape.size() != 1 || t.shape[0] > kMaxCount) {
        throw Error(ErrorKind::kMalformed, fmt::format("{}: \"{}\" must be a vector of float32", files.where(), name));
      }
      out.resize(static_cast<size_t>(t.shape[0]));
      std::memcpy(out.data(), t.bytes.data(), out.size() * sizeof(float));
    }
  }
  return out;
}

int64_t vocabulary(const GgufSet& files) {
  for (const GgufFile& file : files.files()) {
    for (const GgufTensor& t : file.tensors()) {
      if (t.name == "token_embd.weight" && t.shape.size() == 2) return t.shape[0];
    }
  }
  throw Error(ErrorKind::kMalformed, fmt::format("{}: there is no matrix \"token_embd.weight\"", files.where()));
}

// Reads "ARCHITECTURE.key".
class Keys {
 public:
  Keys(const GgufMetadata& metadata, std::string_view architecture) : m_(metadata), prefix_(architecture) {}
  std::string full(std::string_view key) const { return fmt::format("{}.{}", prefix_, key); }
  bool has(std::string_view key) const { return m_.has(full(key)); }
  int64_t count(std::string_view key, int64_t high = kMaxCount) const { return m_.integer(full(key), 1, high); }
  void copy_count(json::object& to, const char* name, std::string_view key) const {
    if (has(key)) to[name] = count(key);
  }
  double number(std::string_view key) const { return m_.number(full(key)); }
  bool boolean_or(std::string_view key, bool fallback) const { return m_.boolean_or(full(key), fallback); }
  [[noreturn]] void unsupported(std::string_view key, const std::string& what) const {
    throw Error(ErrorKind::kConfig, fmt::format("{}: key \"{}\": {}", m_.where(), full(key), what));
  }
  const GgufMetadata& metadata() const { return m_; }

 private:
  const GgufMetadata& m_;
  std::string prefix_;
};

// What an expert key must be where the model's rule has no such feature.
void require(const Keys& keys, std::string_view key, int64_t value) {
  if (!keys.has(key)) return;
  const int64_t found = keys.metadata().integer(keys.full(key), 0, kMaxCount);
  if (found != value) keys.unsupported(key, fmt::format("{} is not supported here, must be {}", found, value));
}

// Numbers that somebody typed, of which the file has only the float32.
double as_typed(double value) { return std::round(value * 1e6) / 1e6; }

// A key that is copied under another name.
struct CopyRow {
  std::string_view gguf;
  const char* json;
  enum { kCount, kNumber } kind = kCount;
};
void copy(const Keys& keys, std::span<const CopyRow> rows, json::object& to) {
  for (const CopyRow& row : rows) {
    if (!keys.has(row.gguf)) continue;
    if (row.kind == CopyRow::kCount) {
      to[row.json] = keys.metadata().integer(keys.full(row.gguf), 0, kMaxCount);
    } else {
      to[row.json] = keys.number(row.gguf);
    }
  }
}

constexpr CopyRow kScaling[] = {
    {"rope.scaling.factor", "factor", CopyRow::kNumber},
    {"rope.scaling.original_context_length", "original_max_position_embeddings"},
    {"rope.scaling.yarn_beta_fast", "beta_fast", CopyRow::kNumber},
    {"rope.scaling.yarn_beta_slow", "beta_slow", CopyRow::kNumber},
    {"rope.scaling.yarn_attn_factor", "attention_factor", CopyRow::kNumber},
};

// The rotation's base and scaling. "rope_freqs" divides single frequencies, as Llama 3 wants it.
void add_rope(const Keys& keys, const GgufSet& files, bool yarn_truncates, json::object& c) {
  if (keys.has("rope.freq_base")) c["rope_theta"] = keys.number("rope.freq_base");
  if (const std::vector<float> divisors = float_values(files, kGgufRopeDivisors); !divisors.empty()) {
    c["rope_divisors"] = json::array(divisors.begin(), divisors.end());
  }
  const std::string type =
      keys.has("rope.scaling.type") ? std::string(keys.metadata().string(keys.full("rope.scaling.type"))) : "none";
  json::object scaling;
  if (type == "none") {
    scaling["rope_type"] = "default";
  } else {
    scaling["rope_type"] = type;  // the family says whether it can
    copy(keys, kScaling, scaling);
    if (type == "yarn") scaling["truncate"] = yarn_truncates;
    if (keys.has("rope.scaling.yarn_log_multiplier")) {
      // 0.1 times both weights of the magnitude, which published configurations have alike.
      scaling["mscale"] = scaling["mscale_all_dim"] = as_typed(keys.number("rope.scaling.yarn_log_multiplier") / 0.1);
    }
  }
  c["rope_scaling"] = std::move(scaling);
}

// Heads that have keys and values of their own.
void add_heads(const Keys& keys, const std::set<std::string_view>& names, json::object& c) {
  const int64_t heads = keys.count("attention.head_count");
  c["num_key_value_heads"] = keys.has("attention.head_count_kv") ? keys.count("attention.head_count_kv") : heads;
  const int64_t head_dim =
      keys.has("attention.key_length") ? keys.count("attention.key_length") : keys.count("embedding_length") / heads;
  c["head_dim"] = head_dim;
  if (keys.has("attention.value_length") && keys.count("attention.value_length") != head_dim) {
    keys.unsupported("attention.value_length", fmt::format("{}, but keys have {}: must be equal",
                                                           keys.count("attention.value_length"), head_dim));
  }
  if (keys.has("rope.dimension_count")) {
    const int64_t rotated = keys.count("rope.dimension_count", head_dim);
    // A little more than the quotient: what it gives is cut to a whole number.
    if (rotated < head_dim) {
      c["partial_rotary_factor"] = (static_cast<double>(rotated) + 0.25) / static_cast<double>(head_dim);
    }
  }
  c["attention_bias"] = names.contains("blk.0.attn_q.bias");
}

struct ExpertKeys {
  const char* count = "num_experts";
  const char* width = "moe_intermediate_size";
  int64_t gating = kSoftmax;
};
void add_experts(const Keys& keys, const ExpertKeys& as, json::object& c) {
  c[as.count] = keys.count("expert_count");
  c["num_experts_per_tok"] = keys.count("expert_used_count");
  const bool own_width = keys.has("expert_feed_forward_length");
  c[as.width] = keys.count(own_width ? "expert_feed_forward_length" : "feed_forward_length");
  require(keys, "expert_gating_func", as.gating);
}

// Routed experts beside shared ones, behind dense layers, in groups.
constexpr CopyRow kGroupedExperts[] = {
    {"feed_forward_length", "intermediate_size"},
    {"leading_dense_block_count", "first_k_dense_replace"},
    {"expert_shared_count", "n_shared_experts"},
    {"expert_weights_scale", "routed_scaling_factor", CopyRow::kNumber},
    {"nextn_predict_layers", "num_nextn_predict_layers"},
};
void add_grouped_experts(const Keys& keys, int64_t gating, json::object& c) {
  add_experts(keys, {"n_routed_experts", "moe_intermediate_size", gating}, c);
  copy(keys, kGroupedExperts, c);
  const auto groups = [&](std::string_view key) { return keys.has(key) ? keys.count(key) : 1; };
  c["n_group"] = groups("expert_group_count");
  c["topk_group"] = groups("expert_group_used_count");
  c["norm_topk_prob"] = keys.boolean_or("expert_weights_norm", false);
  if (!c.contains("first_k_dense_replace")) c["first_k_dense_replace"] = 0;
  // Such layers are counted among the blocks.
  if (c.contains("num_nextn_predict_layers")) {
    c["num_hidden_layers"] = c["num_hidden_layers"].as_int64() - c["num_nextn_predict_layers"].as_int64();
  }
}

void qwen3_moe(const Keys& keys, const std::set<std::string_view>& names, json::object& c) {
  add_heads(keys, names, c);
  add_experts(keys, {}, c);
  keys.copy_count(c, "intermediate_size", "feed_forward_length");
  require(keys, "expert_shared_count", 0);
  c["norm_topk_prob"] = keys.boolean_or("expert_weights_norm", true);
  json::array dense;
  for (int64_t l = 0; l < c["num_hidden_layers"].as_int64(); ++l) {
    if (!names.contains(fmt::format("blk.{}.ffn_gate_inp.weight", l))) dense.push_back(l);
  }
  c["mlp_only_layers"] = std::move(dense);
}

void dense_decoder(const Keys& keys, const std::set<std::string_view>& names, json::object& c) {
  add_heads(keys, names, c);
  c["intermediate_size"] = keys.count("feed_forward_length");
}

void llama(const Keys& keys, const std::set<std::string_view>& names, json::object& c) {
  dense_decoder(keys, names, c);
  c["rope_interleave"] = true;
}

void mixtral(const Keys& keys, const std::set<std::string_view>& names, json::object& c) {
  add_heads(keys, names, c);
  add_experts(keys, {"num_local_experts", "intermediate_size"}, c);
  keys.copy_count(c, "sliding_window", "attention.sliding_window");
  c["rope_interleave"] = true;
}

void olmoe(const Keys& keys, const std::set<std::string_view>& names, json::object& c) {
  add_heads(keys, names, c);
  add_experts(keys, {"num_experts", "intermediate_size"}, c);
  c["norm_topk_prob"] = keys.boolean_or("expert_weights_norm", false);
  if (keys.has("attention.clamp_kqv") && keys.number("attention.clamp_kqv") != 0) {
    c["clip_qkv"] = keys.number("attention.clamp_kqv");
  }
}

void minimax_m2(const Keys& keys, const std::set<std::string_view>& names, json::object& c) {
  add_heads(keys, names, c);
  add_experts(keys, {"num_local_experts", "intermediate_size", kSigmoid}, c);
  c["use_routing_bias"] = names.contains("blk.0.exp_probs_b.bias");
}

void gpt_oss(const Keys& keys, const std::set<std::string_view>& names, json::object& c) {
  add_heads(keys, names, c);
  add_experts(keys, {"num_local_experts", "intermediate_size"}, c);
  keys.copy_count(c, "sliding_window", "attention.sliding_window");
  constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  if (keys.has(kPattern)) {  // of each layer; a single number, as in other architectures, is said by convention here
    json::array types;
    for (const int64_t windowed : keys.metadata().integers(keys.full(kPattern))) {
      types.push_back(windowed ? "sliding_attention" : "full_attention");
    }
    c["layer_types"] = std::move(types);
  }
  if (keys.metadata().has(kSwigluLimit)) c["swiglu_limit"] = keys.metadata().number(kSwigluLimit);
}

void glm4_moe(const Keys& keys, const std::set<std::string_view>& names, json::object& c) {
  add_heads(keys, names, c);
  add_grouped_experts(keys, kSigmoid, c);
  c["use_qk_norm"] = names.contains("blk.0.attn_q_norm.weight");
}

// Files have the sizes of the heads as they are compared, of one key for all, and apart those of the heads that the
// model speaks of; older ones have only the latter.
void add_latent(const Keys& keys, json::object& c) {
  const bool new_form = keys.has("attention.key_length_mla");
  const int64_t rope = keys.count("rope.dimension_count");
  const int64_t key = keys.count(new_form ? "attention.key_length_mla" : "attention.key_length");
  if (key <= rope) keys.unsupported("rope.dimension_count", fmt::format("{} of {} elements of a key", rope, key));
  keys.copy_count(c, "q_lora_rank", "attention.q_lora_rank");
  c["kv_lora_rank"] = keys.count("attention.kv_lora_rank");
  c["qk_rope_head_dim"] = rope;
  c["qk_nope_head_dim"] = key - rope;
  c["v_head_dim"] = keys.count(new_form ? "attention.value_length_mla" : "attention.value_length");
  c["rope_interleave"] = true;
}

void deepseek_v3(const Keys& keys, const std::set<std::string_view>&, json::object& c) {
  add_latent(keys, c);
  add_grouped_experts(keys, kSigmoid, c);
}

void deepseek_v2(const Keys& keys, const std::set<std::string_view>&, json::object& c) {
  add_latent(keys, c);
  add_grouped_experts(keys, kSoftmax, c);
  if (c["n_group"].as_int64() > 1) c["topk_method"] = "group_limited_greedy";
}

constexpr CopyRow kIndexer[] = {
    {"attention.indexer.head_count", "index_n_heads"},
    {"attention.indexer.key_length", "index_head_dim"},
    {"attention.indexer.top_k", "index_topk"},
};
void glm_moe_dsa(const Keys& keys, const std::set<std::string_view>& names, json::object& c) {
  deepseek_v3(keys, names, c);
  copy(keys, kIndexer, c);
  // A layer without an indexer of its own shares what an earlier one chose.
  json::array types;
  for (int64_t l = 0; l < c["num_hidden_layers"].as_int64(); ++l) {
    types.push_back(names.contains(fmt::format("blk.{}.indexer.attn_k.weight", l)) ? "full" : "shared");
  }
  c["indexer_types"] = std::move(types);
}

// How the metadata of a model type is read.
struct ReaderRow {
  std::string_view model_type;
  void (*read)(const Keys& keys, const std::set<std::string_view>& names, json::object& config);
};
constexpr ReaderRow kReaders[] = {
    {"qwen3_moe", qwen3_moe},     {"qwen3", dense_decoder}, {"llama", llama},
    {"mixtral", mixtral},         {"olmoe", olmoe},         {"minimax_m2", minimax_m2},
    {"gpt_oss", gpt_oss},         {"glm4_moe", glm4_moe},   {"glm4_moe_lite", deepseek_v3},
    {"deepseek_v3", deepseek_v3}, {"kimi_k2", deepseek_v3}, {"deepseek_v2", deepseek_v2},
    {"glm_moe_dsa", glm_moe_dsa},
};

json::object read_keys(const GgufArchitecture& architecture, const GgufSet& files) {
  const Keys keys(files.metadata(), architecture.name);
  const std::set<std::string_view> names = tensor_names(files);
  json::object c;
  c["hidden_size"] = keys.count("embedding_length");
  c["num_hidden_layers"] = keys.count("block_count", kMaxLayers);
  c["num_attention_heads"] = keys.count("attention.head_count");
  c["max_position_embeddings"] = keys.count("context_length");
  c["rms_norm_eps"] = keys.number("attention.layer_norm_rms_epsilon");
  c["tie_word_embeddings"] = !names.contains("output.weight");
  add_rope(keys, files, architecture.yarn_truncates, c);
  const auto* row = std::find_if(std::begin(kReaders), std::end(kReaders),
                                 [&](const ReaderRow& r) { return r.model_type == architecture.model_type; });
  CARPOOL_CHECK(row != std::end(kReaders));
  row->read(keys, names, c);
  return c;
}

}  // namespace

json::object gguf_config(const GgufSet& files) {
  const GgufMetadata& m = files.metadata();
  const GgufArchitecture& architecture = gguf_architecture(m);
  json::object c = read_keys(architecture, files);
  const int64_t vocab = vocabulary(files);
  c["model_type"] = architecture.model_type;
  c["vocab_size"] = vocab;
  json::array ends;
  const auto add_end = [&](const char* key, int64_t id) {
    if (id < 0 || id >= vocab) m.fail(key, fmt::format("must be ids of 0 to {}, found {}", vocab - 1, id));
    if (std::find(ends.begin(), ends.end(), json::value(id)) == ends.end()) ends.push_back(id);
  };
  for (const char* key : kEndKeys) {
    if (m.has(key)) add_end(key, m.integer(key, INT64_MIN, INT64_MAX));
  }
  if (m.has(kAllEnds)) {
    for (const int64_t id : m.integers(kAllEnds)) add_end(kAllEnds, id);
  }
  if (!ends.empty()) c["eos_token_id"] = std::move(ends);
  return c;
}

json::object gguf_generation_config(const GgufMetadata& m) {
  json::object g;
  if (m.has("general.sampling.temp")) {
    const double temperature = m.number("general.sampling.temp");
    g["do_sample"] = temperature > 0;
    g["temperature"] = temperature;
  }
  if (m.has("general.sampling.top_p")) g["top_p"] = m.number("general.sampling.top_p");
  if (m.has("general.sampling.top_k")) g["top_k"] = m.integer("general.sampling.top_k", -1, INT32_MAX);
  return g;
}

namespace {

// Dense layers before all others, or -1 when they lie elsewhere too.
int leading_dense(const ModelConfig& c) {
  const auto first = std::find(c.moe_layer.begin(), c.moe_layer.end(), true);
  if (std::find(first, c.moe_layer.end(), false) != c.moe_layer.end()) return -1;
  return static_cast<int>(first - c.moe_layer.begin());
}

// The weight of YaRN's magnitude in the scale of attention (mscale_all_dim); 0 without.
double all_dims_weight(const ModelConfig& c) {
  if (!c.latent || c.rope.scaling != Rope::Scaling::kYarn || c.rope.factor <= 1) return 0;
  const double plain = 1 / std::sqrt(static_cast<double>(c.latent->nope + c.latent->rope));
  const double magnitude = std::sqrt(static_cast<double>(c.attention_scale) / plain);
  return std::round((magnitude - 1) / (0.1 * std::log(c.rope.factor)) * 1e4) / 1e4;
}

// Adds "ARCHITECTURE.key".
class KeyWriter {
 public:
  KeyWriter(GgufWriter& out, std::string_view architecture) : out_(out), prefix_(architecture) {}
  void count(std::string_view key, int value) { out_.add_u32(full(key), static_cast<uint32_t>(value)); }
  void number(std::string_view key, double value) { out_.add_f32(full(key), static_cast<float>(value)); }
  void flag(std::string_view key, bool value) { out_.add_bool(full(key), value); }
  void text(std::string_view key, std::string_view value) { out_.add_string(full(key), value); }
  void counts(std::string_view key, std::span<const int32_t> values) { out_.add_i32s(full(key), values); }

 private:
  std::string full(std::string_view key) const { return fmt::format("{}.{}", prefix_, key); }
  GgufWriter& out_;
  std::string prefix_;
};

void write_attention(const ModelConfig& c, KeyWriter& out) {
  out.count("attention.head_count", c.heads);
  out.count("attention.head_count_kv", c.kv_heads);
  out.count("attention.key_length", c.head_dim);
  out.count("attention.value_length", c.value_dim);
  if (c.latent) {
    if (c.latent->q_rank > 0) out.count("attention.q_lora_rank", c.latent->q_rank);
    out.count("attention.kv_lora_rank", c.latent->kv_rank);
    out.count("attention.key_length_mla", c.latent->nope + c.latent->rope);
    out.count("attention.value_length_mla", c.latent->value);
  }
  if (c.indexer) {
    out.count("attention.indexer.head_count", c.indexer->heads);
    out.count("attention.indexer.key_length", c.indexer->head_dim);
    out.count("attention.indexer.top_k", c.indexer->top);
  }
  const auto widest = std::max_element(c.window.begin(), c.window.end());
  if (widest == c.window.end() || *widest == 0) return;
  out.count("attention.sliding_window", *widest);
  if (!c.sinks) return;  // the same in every layer, which needs no pattern
  std::vector<int32_t> pattern;
  for (const int window : c.window) pattern.push_back(window > 0);
  bool usual = true;
  for (size_t l = 0; l < pattern.size(); ++l) usual = usual && pattern[l] == (l % 2 == 0);
  if (!usual) out.counts("attention.sliding_window_pattern", pattern);
}

void write_rope(const ModelConfig& c, KeyWriter& out) {
  const Rope& rope = c.rope;
  out.number("rope.freq_base", rope.theta);
  out.count("rope.dimension_count", rope.dims);
  const bool yarn = rope.scaling == Rope::Scaling::kYarn;
  if (!yarn && rope.scaling != Rope::Scaling::kLinear) return;
  out.text("rope.scaling.type", yarn ? "yarn" : "linear");
  out.number("rope.scaling.factor", rope.factor);
  if (!yarn) return;
  out.count("rope.scaling.original_context_length", static_cast<int>(rope.original_context));
  out.number("rope.scaling.yarn_beta_fast", rope.beta_fast);
  out.number("rope.scaling.yarn_beta_slow", rope.beta_slow);
  const double weight = all_dims_weight(c);
  if (weight > 0) out.number("rope.scaling.yarn_log_multiplier", 0.1 * weight);
  const double usual = weight > 0 ? 1 : 0.1 * std::log(rope.factor) + 1;
  if (std::abs(rope.attention_factor - usual) > 1e-6) {
    out.number("rope.scaling.yarn_attn_factor", rope.attention_factor);
  }
}

void write_experts(const ModelConfig& c, KeyWriter& out) {
  if (c.n_experts == 0) return;
  out.count("expert_count", c.n_experts);
  out.count("expert_used_count", c.top_k);
  out.count("expert_feed_forward_length", c.expert_width);
  if (c.scoring.kind == Scoring::Kind::kSoftmaxTopk) return;  // nothing more is left open
  out.flag("expert_weights_norm", c.scoring.renormalize);
  out.count("expert_gating_func", static_cast<int>(c.scoring.kind == Scoring::Kind::kSigmoid ? kSigmoid : kSoftmax));
  if (c.shared_width > 0) out.count("expert_shared_count", c.shared_width / c.expert_width);
  if (c.scoring.n_group > 1) {
    out.count("expert_group_count", c.scoring.n_group);
    out.count("expert_group_used_count", c.scoring.topk_group);
  }
  if (c.scoring.routed_scaling_factor != 1) out.number("expert_weights_scale", c.scoring.routed_scaling_factor);
  if (leading_dense(c) > 0) out.count("leading_dense_block_count", leading_dense(c));
}

}  // namespace

std::string not_in_gguf(const ModelConfig& c, const GgufArchitecture& architecture) {
  const Rope& rope = c.rope;
  if (rope.scaling == Rope::Scaling::kYarn && rope.truncate != architecture.yarn_truncates) {
    return "there is no key for \"truncate\" of YaRN";
  }
  if (c.latent && !rope.interleaved) return "the rotation of neighbouring elements is implied";
  if (c.indexer && !c.indexer->interleaved) return "the indexer's rotation of neighbouring elements is implied";
  const bool told_by_names = c.family == "qwen3_moe";  // which layers have a router
  if (c.moe_layers() > 0 && leading_dense(c) < 0 && !told_by_names) {
    return "dense layers can only be the first ones";
  }
  return "";
}

std::vector<float> gguf_rope_divisors(const ModelConfig& c) {
  if (c.rope.scaling != Rope::Scaling::kLlama3) return {};
  Rope plain = c.rope;
  plain.scaling = Rope::Scaling::kNone;
  std::vector<float> divisors = plain.frequencies();
  const std::vector<float> wanted = c.rope.frequencies();
  for (size_t i = 0; i < divisors.size(); ++i) divisors[i] /= wanted[i];
  return divisors;
}

void add_gguf_config(const ModelConfig& c, std::optional<int> first_end, GgufWriter& out) {
  const GgufArchitecture* architecture = gguf_architecture_of(c.family);
  CARPOOL_CHECK(architecture != nullptr);
  out.add_string("general.architecture", architecture->name);
  out.add_string(kGgufModelType, architecture->model_type);
  KeyWriter keys(out, architecture->name);
  keys.count("vocab_size", c.vocab);
  keys.count("block_count", c.layers);
  keys.count("context_length", c.context);
  keys.count("embedding_length", c.width);
  keys.count("feed_forward_length", c.dense_width > 0 ? c.dense_width : c.expert_width);
  keys.number("attention.layer_norm_rms_epsilon", c.norm_eps);
  write_attention(c, keys);
  write_rope(c, keys);
  write_experts(c, keys);
  if (c.activation == Activation::kClampedSwiglu) out.add_f32(kSwigluLimit, c.activation_limit);
  std::vector<int32_t> ends(c.eos_ids.begin(), c.eos_ids.end());
  const auto first = std::find(ends.begin(), ends.end(), first_end.value_or(-1));
  if (first != ends.end()) std::rotate(ends.begin(), first, first + 1);
  for (size_t i = 0; i < std::min(ends.size(), std::size(kEndKeys)); ++i) {
    out.add_u32(kEndKeys[i], static_cast<uint32_t>(ends[i]));
  }
  if (ends.size() > std::size(kEndKeys)) out.add_i32s(kAllEnds, ends);
  if (c.sampling.temperature > 0) {
    out.add_f32("general.sampling.temp", c.sampling.temperature);
    out.add_f32("general.sampling.top_p", c.sampling.top_p);
    if (c.sampling.top_k > 0) out.add_u32("general.sampling.top_k", static_cast<uint32_t>(c.sampling.top_k));
  }
}

}  // namespace carpool
