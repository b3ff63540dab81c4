// See latent.h. Semantics follow the reference implementations in transformers.
#include "model/families/latent.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace carpool::families {
namespace {

constexpr int64_t kMaxRank = 1 << 15, kMaxTop = 1 << 24;
constexpr int64_t kHeadRows = 16;  // Ops::matmul_heads wants whole panels of each head

void require_whole_panels(const JsonObject& json, std::string_view key, int value) {
  if (value % kHeadRows == 0) return;
  unsupported(json, key, fmt::format("{} is not supported; supported: multiples of {}", value, kHeadRows));
}

// A list of L texts, each `yes` or `no`.
std::vector<bool> flags(const JsonObject& json, std::string_view key, int layers, std::string_view yes,
                        std::string_view no) {
  const json::array& list = json.array(key);
  if (list.size() != static_cast<size_t>(layers)) {
    json.fail(key, fmt::format("must have an entry for each of {} layers, has {}", layers, list.size()));
  }
  std::vector<bool> out;
  for (const json::value& v : list) {
    if (!v.is_string() || (v.as_string() != yes && v.as_string() != no)) {
      json.fail(key, fmt::format("must be \"{}\" or \"{}\", found {}", yes, no, escape(json::serialize(v), 60)));
    }
    out.push_back(v.as_string() == yes);
  }
  return out;
}

// "FSSF": a letter for each layer.
std::vector<bool> letters(const JsonObject& json, std::string_view key, int layers) {
  const std::string text = json.string(key);
  if (text.size() != static_cast<size_t>(layers) || text.find_first_not_of("FS") != text.npos) {
    json.fail(key, fmt::format("must be an F or S for each of {} layers, found \"{}\"", layers, escape(text, 60)));
  }
  std::vector<bool> out;
  for (const char letter : text) out.push_back(letter == 'F');
  return out;
}

// Which layers choose positions for themselves, and the key that says so.
std::pair<std::vector<bool>, const char*> own_indexers(const JsonObject& json, int layers) {
  if (json.has("indexer_types")) return {flags(json, "indexer_types", layers, "full", "shared"), "indexer_types"};
  constexpr const char* kPattern = "index_topk_pattern";
  if (json.has(kPattern)) {
    const bool text = json.value(kPattern).is_string();
    return {text ? letters(json, kPattern, layers) : flags(json, kPattern, layers, "full", "shared"), kPattern};
  }
  const int64_t every = std::max<int64_t>(json.integer_or("index_topk_freq", 1, 0, kMaxLayers), 1);
  const int64_t offset = json.integer_or("index_skip_topk_offset", 2, 0, kMaxLayers);
  std::vector<bool> own;
  for (int64_t l = 0; l < layers; ++l) own.push_back(std::max<int64_t>(l - offset + 1, 0) % every == 0);
  return {own, "index_skip_topk_offset"};
}

}  // namespace

void read_latent_attention(const JsonObject& json, const Defaults& defaults, ModelConfig& c) {
  Latent n;
  n.q_rank = static_cast<int>(json.integer_or("q_lora_rank", 0, 1, kMaxRank));
  n.kv_rank = static_cast<int>(json.integer("kv_lora_rank", 1, kMaxRank));
  n.nope = static_cast<int>(json.integer("qk_nope_head_dim", 1, kMaxHeadDim));
  n.rope = static_cast<int>(json.integer("qk_rope_head_dim", 2, kMaxHeadDim));
  n.value = static_cast<int>(json.integer("v_head_dim", 1, kMaxHeadDim));
  require_whole_panels(json, "kv_lora_rank", n.kv_rank);
  require_whole_panels(json, "v_head_dim", n.value);
  require_false(json, "attention_bias");
  read_rope(json, defaults, n.rope, c);
  c.rope.interleaved = json.boolean_or("rope_interleave", true);
  c.kv_heads = 1;
  c.head_dim = n.kv_rank + n.rope;
  c.value_dim = n.kv_rank;
  double scale = 1 / std::sqrt(static_cast<double>(n.nope + n.rope));
  if (c.rope.scaling != Rope::Scaling::kNone) {
    const double weight = rope_number_or(json, "mscale_all_dim", 0, 0, 100);
    if (weight > 0) scale *= std::pow(yarn_magnitude(c.rope.factor, weight), 2);
  }
  c.attention_scale = static_cast<float>(scale);
  c.latent = n;
}

void read_indexer(const JsonObject& json, ModelConfig& c) {
  if (c.latent->q_rank == 0) json.fail("q_lora_rank", "is missing; the indexer reads what it makes");
  Indexer n;
  n.heads = static_cast<int>(json.integer("index_n_heads", 1, kMaxHeads));
  n.head_dim = static_cast<int>(json.integer("index_head_dim", 2, kMaxHeadDim));
  n.top = static_cast<int>(json.integer("index_topk", 1, kMaxTop));
  if (n.head_dim < c.latent->rope) {
    json.fail("index_head_dim", fmt::format("{} is less than qk_rope_head_dim {}", n.head_dim, c.latent->rope));
  }
  n.interleaved = json.boolean_or("indexer_rope_interleave", true);
  n.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(n.head_dim) * n.heads));
  const auto [own, key] = own_indexers(json, c.layers);
  if (!own.front()) json.fail(key, "the first layer has no earlier layer to share the positions of");
  n.own = own;
  c.indexer = std::move(n);
}

std::vector<bool> moe_layers_after_dense(const JsonObject& json, int layers, int dense_by_default) {
  if (json.has("mlp_layer_types")) return flags(json, "mlp_layer_types", layers, "sparse", "dense");
  const int64_t dense = json.integer_or("first_k_dense_replace", dense_by_default, 0, kMaxLayers);
  const int64_t every = json.integer_or("moe_layer_freq", 1, 1, kMaxLayers);
  std::vector<bool> moe;
  for (int64_t l = 0; l < layers; ++l) moe.push_back(l >= dense && l % every == 0);
  return moe;
}

void read_groups(const JsonObject& json, int groups_by_default, int kept_by_default, ModelConfig& c) {
  c.scoring.n_group = static_cast<int>(json.integer_or("n_group", groups_by_default, 1, kMaxExperts));
  c.scoring.topk_group = static_cast<int>(json.integer_or("topk_group", kept_by_default, 1, kMaxExperts));
}

void read_shared_experts(const JsonObject& json, ModelConfig& c) {
  const int64_t shared = json.integer_or("n_shared_experts", 0, 0, 64);
  if (shared * c.expert_width > kMaxWidth * 8) {
    json.fail("n_shared_experts", fmt::format("{} of {} each are too wide", shared, c.expert_width));
  }
  c.shared_width = static_cast<int>(shared) * c.expert_width;
}

void read_biased_experts(const JsonObject& json, ModelConfig& c) {
  const char* count = first_key(json, {"num_local_experts", "n_routed_experts"});
  read_experts(json, {count, "moe_intermediate_size"}, c);
  require_text(json, "scoring_func", {"sigmoid"});
  require_text(json, "topk_method", {"noaux_tc"});
  if (c.moe_layers() == 0) return;
  read_shared_experts(json, c);
  c.scoring.kind = Scoring::Kind::kSigmoid;
  c.scoring.group_score = Scoring::GroupScore::kTop2;
  c.scoring.renormalize = json.boolean_or("norm_topk_prob", true);
  c.scoring.routed_scaling_factor = static_cast<float>(json.number_or("routed_scaling_factor", 1, 1e-6, 1e6));
  c.selection_bias = true;
  c.scoring.check(c.n_experts, c.top_k);
}

void read_prediction_layers(const JsonObject& json, ModelConfig& c) {
  const char* key = first_key(json, {"num_mtp_layers", "num_nextn_predict_layers"});
  c.unused_layers = static_cast<int>(json.integer_or(key, 0, 0, kMaxLayers));
  if (c.unused_layers == 0) return;
  c.notes.push_back(fmt::format("{} multi-token prediction layer{} not run", c.unused_layers,
                                c.unused_layers == 1 ? " is" : "s are"));
}

void take_latent_attention(const ModelConfig& c, const std::string& p, TensorReader& reader, LayerWeights& layer) {
  const Latent& n = *c.latent;
  LatentWeights& w = layer.latent;
  const int64_t H = c.heads, queries = H * (n.nope + n.rope);
  if (n.q_rank > 0) {
    w.q_a = reader.matrix(p + "q_a_proj.weight", n.q_rank, c.width);
    w.q_a_norm = reader.vector(p + "q_a_layernorm.weight", n.q_rank);
    w.q = reader.matrix(p + "q_b_proj.weight", queries, n.q_rank);
  } else {
    w.q = reader.matrix(p + "q_proj.weight", queries, c.width);
  }
  w.kv_a = reader.matrix(p + "kv_a_proj_with_mqa.weight", n.kv_rank + n.rope, c.width);
  w.kv_a_norm = reader.vector(p + "kv_a_layernorm.weight", n.kv_rank);
  if (reader.has(p + "k_b_proj.weight")) {  // apart, as in GGUF files
    w.k_up = reader.matrix(p + "k_b_proj.weight", H * n.kv_rank, n.nope);
    w.v_up = reader.matrix(p + "v_b_proj.weight", H * n.value, n.kv_rank);
  } else {
    const int64_t per_head = n.nope + n.value;
    w.k_up = reader.heads_transposed(p + "kv_b_proj.weight", {H, per_head, 0, n.nope}, n.kv_rank);
    w.v_up = reader.head_rows(p + "kv_b_proj.weight", {H, per_head, n.nope, per_head}, n.kv_rank);
  }
  layer.o = reader.matrix(p + "o_proj.weight", c.width, H * n.value);
  reader.ignore(p + "rotary_emb.");  // frequencies, which follow from the configuration
}

void take_indexer(const ModelConfig& c, int l, const std::string& p, TensorReader& reader, LayerWeights& layer) {
  const Indexer& n = *c.indexer;
  if (!n.own[static_cast<size_t>(l)]) return;
  const std::string q = p + "indexer.wq_b.weight", k = p + "indexer.wk.weight",
                    heads = p + "indexer.weights_proj.weight", norm = p + "indexer.k_norm.weight",
                    bias = p + "indexer.k_norm.bias";
  const int64_t queries = int64_t{n.heads} * n.head_dim;
  if (!c.sparse()) {  // every row attends to everything, so nothing is chosen
    reader.skip(q, {queries, c.latent->q_rank});
    reader.skip(k, {n.head_dim, c.width});
    reader.skip(heads, {n.heads, c.width});
    reader.skip(norm, {n.head_dim});
    return reader.skip(bias, {n.head_dim});
  }
  IndexerWeights& w = layer.indexer;
  w.q = reader.matrix(q, queries, c.latent->q_rank);
  w.k = reader.matrix(k, n.head_dim, c.width);
  w.head_weights = reader.matrix_f32(heads, n.heads, c.width);
  w.k_norm = reader.vector(norm, n.head_dim);
  w.k_norm_bias = reader.vector(bias, n.head_dim);
}

void take_mlp(const ModelConfig& c, int l, const std::string& p, TensorReader& reader, LayerWeights& layer) {
  if (!c.moe_layer[static_cast<size_t>(l)]) return take_dense(c, p, reader, layer);
  take_router(c, p + "gate.weight", reader, layer);
  if (c.selection_bias) {
    const std::string bias = p + "gate.e_score_correction_bias";
    layer.scoring.selection_bias = reader.vector(bias, c.n_experts);
    // Biases that differ in the third digit choose other experts once they are rounded to 8 bits.
    if (const std::string dtype = reader.dtype(bias); dtype != "F32" && !dtype.empty()) {
      reader.add_note(
          fmt::format("\"{}\" is stored as {}, not F32: which experts it chooses may differ from "
                      "what the model was trained with",
                      bias, dtype));
    }
  }
  take_experts(c, p + "experts.", {}, reader, layer);
  if (c.shared_width > 0) take_shared(c, p + "shared_experts.", reader, layer);
}

void pass_prediction_layers(const ModelConfig& c, TensorReader& reader) {
  for (int l = c.layers; l < c.layers + c.unused_layers; ++l) {
    if (reader.ignore(fmt::format("model.layers.{}.", l)) > 0) continue;
    reader.add_note(fmt::format(
        "the configuration declares layer {} for multi-token prediction, the files have no tensors of it", l));
  }
}

void take_decoder(const ModelConfig& c, TensorReader& reader, Weights& weights) {
  take_ends(c, reader, weights);
  for (int l = 0; l < c.layers; ++l) {
    const std::string p = fmt::format("model.layers.{}.", l);
    LayerWeights layer;
    take_norms(c, p, reader, layer);
    if (c.latent) {
      take_latent_attention(c, p + "self_attn.", reader, layer);
    } else {
      take_grouped_attention(c, p + "self_attn.", reader, layer);
    }
    if (c.indexer) take_indexer(c, l, p + "self_attn.", reader, layer);
    take_mlp(c, l, p + "mlp.", reader, layer);
    weights.layers.push_back(std::move(layer));
  }
  pass_prediction_layers(c, reader);
}

}  // namespace carpool::families
