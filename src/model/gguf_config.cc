// Keys of an architecture, one line each way; see gguf_config.h.
#include "model/gguf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "model/gguf_names.h"

namespace carpool {
namespace {

constexpr int64_t kMaxCount = int64_t{1} << 24;  // of anything the metadata counts; families have narrower bounds
constexpr int64_t kMaxLayers = 65'536;
constexpr int64_t kSoftmax = 1;  // expert_gating_func
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

void add_rope(const Keys& keys, int64_t head_dim, json::object& c) {
  if (keys.has("rope.freq_base")) c["rope_theta"] = keys.number("rope.freq_base");
  if (keys.has("rope.dimension_count") && keys.count("rope.dimension_count") != head_dim) {
    keys.unsupported("rope.dimension_count",
                     fmt::format("{} of {} values of a head are rotated, supported: all of them",
                                 keys.count("rope.dimension_count"), head_dim));
  }
  if (!keys.has("rope.scaling.type")) return;
  const std::string type(keys.metadata().string(keys.full("rope.scaling.type")));
  if (type != "none") {
    keys.unsupported("rope.scaling.type", fmt::format("\"{}\" is not supported; supported: none", escape(type)));
  }
}

// What an expert key must be where the model's rule has no such feature.
void require(const Keys& keys, std::string_view key, int64_t value) {
  if (!keys.has(key)) return;
  const int64_t found = keys.metadata().integer(keys.full(key), 0, kMaxCount);
  if (found != value) keys.unsupported(key, fmt::format("{} is not supported here, must be {}", found, value));
}

json::object qwen3_moe(const Keys& keys, const GgufSet& files) {
  const std::set<std::string_view> names = tensor_names(files);
  json::object c;
  const int64_t layers = keys.count("block_count", kMaxLayers), heads = keys.count("attention.head_count");
  c["hidden_size"] = keys.count("embedding_length");
  c["num_hidden_layers"] = layers;
  c["num_attention_heads"] = heads;
  c["num_key_value_heads"] = keys.has("attention.head_count_kv") ? keys.count("attention.head_count_kv") : heads;
  const int64_t head_dim =
      keys.has("attention.key_length") ? keys.count("attention.key_length") : keys.count("embedding_length") / heads;
  c["head_dim"] = head_dim;
  if (keys.has("attention.value_length") && keys.count("attention.value_length") != head_dim) {
    keys.unsupported("attention.value_length", fmt::format("{}, but keys have {}: must be equal",
                                                           keys.count("attention.value_length"), head_dim));
  }
  c["max_position_embeddings"] = keys.count("context_length");
  c["rms_norm_eps"] = keys.number("attention.layer_norm_rms_epsilon");
  add_rope(keys, head_dim, c);
  c["num_experts"] = keys.count("expert_count");
  c["num_experts_per_tok"] = keys.count("expert_used_count");
  keys.copy_count(c, "moe_intermediate_size", "expert_feed_forward_length");
  keys.copy_count(c, "intermediate_size", "feed_forward_length");
  require(keys, "expert_gating_func", kSoftmax);
  require(keys, "expert_shared_count", 0);
  c["norm_topk_prob"] = keys.boolean_or("expert_weights_norm", true);
  json::array dense;
  for (int64_t l = 0; l < layers; ++l) {
    if (!names.contains(fmt::format("blk.{}.ffn_gate_inp.weight", l))) dense.push_back(l);
  }
  c["mlp_only_layers"] = std::move(dense);
  c["attention_bias"] = names.contains("blk.0.attn_q.bias");
  c["tie_word_embeddings"] = !names.contains("output.weight");
  return c;
}

}  // namespace

json::object gguf_config(const GgufSet& files) {
  const GgufMetadata& m = files.metadata();
  const GgufArchitecture& architecture = gguf_architecture(m);
  json::object c = qwen3_moe(Keys(m, architecture.name), files);
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

void add_gguf_config(const ModelConfig& c, std::optional<int> first_end, GgufWriter& out) {
  const GgufArchitecture* architecture = gguf_architecture_of(c.family);
  CARPOOL_CHECK(architecture != nullptr);
  out.add_string("general.architecture", architecture->name);
  const auto key = [&](std::string_view name) { return fmt::format("{}.{}", architecture->name, name); };
  const auto add = [&](std::string_view name, int value) { out.add_u32(key(name), static_cast<uint32_t>(value)); };
  add("vocab_size", c.vocab);
  add("block_count", c.layers);
  add("context_length", c.context);
  add("embedding_length", c.width);
  if (c.dense_width > 0) add("feed_forward_length", c.dense_width);
  add("attention.head_count", c.heads);
  add("attention.head_count_kv", c.kv_heads);
  add("attention.key_length", c.head_dim);
  add("attention.value_length", c.head_dim);
  out.add_f32(key("attention.layer_norm_rms_epsilon"), c.norm_eps);
  out.add_f32(key("rope.freq_base"), static_cast<float>(c.rope.theta));
  add("expert_count", c.n_experts);
  add("expert_used_count", c.top_k);
  add("expert_feed_forward_length", c.expert_width);
  out.add_bool(key("expert_weights_norm"), c.scoring.renormalize);
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
