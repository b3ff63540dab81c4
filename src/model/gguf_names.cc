// The table of names and matching in both directions; see gguf_names.h.
#include "model/gguf_names.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "base/error.h"

namespace carpool {
namespace {

using enum GgufNameRow::Kind;

constexpr GgufNameRow kCommon[] = {
    {"token_embd", "model.embed_tokens", false},
    {"output_norm", "model.norm", false},
    {"output", "lm_head", false},
    {"rope_freqs.weight", "rope_freqs.weight", false, kWhole},  // read with the configuration
    {"attn_norm", "input_layernorm", true},
    {"attn_q", "self_attn.q_proj", true},
    {"attn_k", "self_attn.k_proj", true},
    {"attn_v", "self_attn.v_proj", true},
    {"attn_output", "self_attn.o_proj", true},
    {"attn_q_norm", "self_attn.q_norm", true},
    {"attn_k_norm", "self_attn.k_norm", true},
    {"ffn_norm", "post_attention_layernorm", true},
    {"ffn_gate", "mlp.gate_proj", true},
    {"ffn_up", "mlp.up_proj", true},
    {"ffn_down", "mlp.down_proj", true},
    {"ffn_gate_inp", "mlp.gate", true},
    {"ffn_gate_exps", "mlp.experts.{e}.gate_proj", true},
    {"ffn_up_exps", "mlp.experts.{e}.up_proj", true},
    {"ffn_down_exps", "mlp.experts.{e}.down_proj", true},
};

// Mixtral and MiniMax-M2.
constexpr GgufNameRow kBlockSparse[] = {
    {"ffn_gate_inp", "block_sparse_moe.gate", true},
    {"ffn_gate_exps", "block_sparse_moe.experts.{e}.w1", true},
    {"ffn_up_exps", "block_sparse_moe.experts.{e}.w3", true},
    {"ffn_down_exps", "block_sparse_moe.experts.{e}.w2", true},
    {"exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias", true, kWhole},
    {"exp_probs_b.bias", "mlp.e_score_correction_bias", true, kWhole},  // as transformers 5 calls it
};

constexpr GgufNameRow kGptOss[] = {
    {"post_attention_norm", "post_attention_layernorm", true},
    {"attn_sinks.weight", "self_attn.sinks", true, kWhole},
    {"ffn_gate_inp", "mlp.router", true},
    {"ffn_gate_exps.bias", "mlp.experts.gate_proj_bias", true, kWhole},
    {"ffn_up_exps.bias", "mlp.experts.up_proj_bias", true, kWhole},
    {"ffn_down_exps.bias", "mlp.experts.down_proj_bias", true, kWhole},
};

// Shared experts, the bias for choosing, and layers of multi-token prediction.
constexpr GgufNameRow kShared[] = {
    {"ffn_gate_shexp", "mlp.shared_experts.gate_proj", true},
    {"ffn_up_shexp", "mlp.shared_experts.up_proj", true},
    {"ffn_down_shexp", "mlp.shared_experts.down_proj", true},
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias", true, kWhole},
    {"nextn.eh_proj", "eh_proj", true},
    {"nextn.enorm", "enorm", true},
    {"nextn.hnorm", "hnorm", true},
    {"nextn.embed_tokens", "embed_tokens", true},
    {"nextn.shared_head_head", "shared_head.head", true},
    {"nextn.shared_head_norm", "shared_head.norm", true},
};

constexpr GgufNameRow kGlm4Moe[] = {
    {"post_attention_norm", "post_attention_layernorm", true},
};

// Attention over latent vectors. Older files have one matrix for keys and values of all heads, attn_kv_b.
constexpr GgufNameRow kLatent[] = {
    {"attn_q_a", "self_attn.q_a_proj", true},
    {"attn_q_a_norm", "self_attn.q_a_layernorm", true},
    {"attn_q_b", "self_attn.q_b_proj", true},
    {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa", true},
    {"attn_kv_a_norm", "self_attn.kv_a_layernorm", true},
    {"attn_kv_b", "self_attn.kv_b_proj", true},
    {"attn_k_b", "self_attn.k_b_proj", true, kHeads},
    {"attn_v_b", "self_attn.v_b_proj", true, kHeads},
    {"indexer.attn_q_b", "self_attn.indexer.wq_b", true},
    {"indexer.attn_k", "self_attn.indexer.wk", true},
    {"indexer.k_norm", "self_attn.indexer.k_norm", true},
    {"indexer.proj", "self_attn.indexer.weights_proj", true},
};

bool has_experts(const GgufMetadata& m) {
  return m.has("llama.expert_count") && m.integer("llama.expert_count", 0, INT32_MAX) > 0;
}

constexpr int64_t kGatingSigmoid = 2;  // deepseek2.expert_gating_func

// GLM-4.7-Flash had no key for its sigmoid at first; its vocabulary tells.
bool is_glm_flash(const GgufMetadata& m) {
  constexpr int64_t kVocabulary = 154880, kLayers = 47;
  return !m.has("deepseek2.expert_gating_func") &&
         m.integer_or("deepseek2.vocab_size", 0, 0, INT32_MAX) == kVocabulary &&
         m.integer_or("deepseek2.block_count", 0, 0, INT32_MAX) - kLayers <= 1;
}
bool chooses_by_sigmoid(const GgufMetadata& m) {
  return m.integer_or("deepseek2.expert_gating_func", 0, 0, INT32_MAX) == kGatingSigmoid;
}
bool only_if_it_says_so(const GgufMetadata&) { return false; }

constexpr std::array kArchitectures = {
    GgufArchitecture{"qwen3moe", "qwen3_moe"},
    GgufArchitecture{"qwen3", "qwen3"},
    GgufArchitecture{"llama", "mixtral", {kBlockSparse}, true, true, has_experts},
    GgufArchitecture{"llama", "llama", {}, true},
    GgufArchitecture{"olmoe", "olmoe"},
    GgufArchitecture{"minimax-m2", "minimax_m2", {kBlockSparse}},
    GgufArchitecture{"gpt-oss", "gpt_oss", {kGptOss}, false, false},
    GgufArchitecture{"glm4moe", "glm4_moe", {kGlm4Moe, kShared}},
    GgufArchitecture{"deepseek2", "glm4_moe_lite", {kLatent, kShared}, false, true, is_glm_flash},
    GgufArchitecture{"deepseek2", "deepseek_v3", {kLatent, kShared}, false, true, chooses_by_sigmoid},
    GgufArchitecture{"deepseek2", "kimi_k2", {kLatent, kShared}, false, true, only_if_it_says_so},
    GgufArchitecture{"deepseek2", "deepseek_v2", {kLatent, kShared}},
    GgufArchitecture{"glm-dsa", "glm_moe_dsa", {kLatent, kShared}},
};

// Last parts. A scale is one number for a tensor, or one for each expert: the second scale of NVFP4.
struct PartRow {
  std::string_view gguf, checkpoint;
  bool scalar;
};
constexpr PartRow kParts[] = {
    {".weight", ".weight", false},
    {".bias", ".bias", false},
    {".scale", ".weight_scale_2", true},
    {".input_scale", ".input_scale", true},
};

constexpr std::string_view kGgufLayer = "blk.", kCheckpointLayer = "model.layers.", kExpert = "{e}";

// Takes a number without leading zeros off the front of `text`.
std::optional<int64_t> take_number(std::string_view& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const auto length = static_cast<size_t>(end - text.data());
  if (error != std::errc() || value < 0 || text[0] == '-' || (text[0] == '0' && length > 1)) return std::nullopt;
  text.remove_prefix(length);
  return value;
}

bool take(std::string_view& text, std::string_view front) {
  if (!text.starts_with(front)) return false;
  text.remove_prefix(front.size());
  return true;
}

// The layer's number if `text` is of a layer, which is then taken off with `front` and a dot behind.
std::optional<int64_t> take_layer(std::string_view& text, std::string_view front) {
  std::string_view rest = text;
  if (!take(rest, front)) return std::nullopt;
  const std::optional<int64_t> layer = take_number(rest);
  if (!layer || !take(rest, ".")) return std::nullopt;
  text = rest;
  return layer;
}

}  // namespace

const GgufArchitecture& gguf_architecture(const GgufMetadata& metadata) {
  const std::string_view name = metadata.string("general.architecture");
  const std::string_view type = metadata.has(kGgufModelType) ? metadata.string(kGgufModelType) : "";
  for (const GgufArchitecture& a : kArchitectures) {
    if (a.name == name && a.model_type == type) return a;
  }
  std::string known;
  std::string_view last;
  for (const GgufArchitecture& a : kArchitectures) {
    if (a.name == name && (!a.is || a.is(metadata))) return a;
    if (a.name != last) known += fmt::format("{}{}", known.empty() ? "" : ", ", a.name);
    last = a.name;
  }
  throw Error(ErrorKind::kConfig,
              fmt::format("{}: the architecture \"{}\" is not supported in GGUF files; supported: {}", metadata.where(),
                          escape(name), known));
}

const GgufArchitecture* gguf_architecture_of_file(const std::string& path) {
  return &gguf_architecture(GgufSet::open(path).metadata());
}

const GgufArchitecture* gguf_architecture_of(std::string_view model_type) {
  for (const GgufArchitecture& a : kArchitectures) {
    if (a.model_type == model_type) return &a;
  }
  return nullptr;
}

namespace {

// Applies `match` to the architecture's own rows, then to those of all, until it gives something.
template <class Match>
auto first_row(const GgufArchitecture& architecture, bool in_layer, Match match) {
  for (const auto rows : {architecture.rows[0], architecture.rows[1], std::span<const GgufNameRow>(kCommon)}) {
    for (const GgufNameRow& row : rows) {
      if (row.in_layer != in_layer) continue;
      if (auto found = match(row)) return found;
    }
  }
  return decltype(match(kCommon[0])){};
}

// The expert's number in `text`, which is otherwise `pattern`.
std::optional<int64_t> expert_number(std::string_view text, std::string_view pattern) {
  const size_t at = pattern.find(kExpert);
  if (at == std::string_view::npos || !take(text, pattern.substr(0, at))) return std::nullopt;
  const std::optional<int64_t> expert = take_number(text);
  return text == pattern.substr(at + kExpert.size()) ? expert : std::nullopt;
}

}  // namespace

GgufPlace checkpoint_place(const GgufArchitecture& architecture, std::string_view name) {
  std::string_view rest = name;
  const std::optional<int64_t> layer = take_layer(rest, kGgufLayer);
  const std::string front = layer ? fmt::format("{}{}.", kCheckpointLayer, *layer) : "";
  const auto place_of = [&](const GgufNameRow& row, const PartRow& part) -> std::optional<GgufPlace> {
    if (rest.size() != row.gguf.size() + part.gguf.size() || !rest.starts_with(row.gguf)) return std::nullopt;
    GgufPlace place{front + std::string(row.checkpoint), std::string(part.checkpoint), false, part.scalar};
    place.heads = row.kind == kHeads;
    if (const size_t at = row.checkpoint.find(kExpert); at != std::string_view::npos) {
      place.before = front + std::string(row.checkpoint.substr(0, at));
      place.after = std::string(row.checkpoint.substr(at + kExpert.size())) + std::string(part.checkpoint);
      place.sliced = true;
    }
    return place;
  };
  const auto found =
      first_row(architecture, layer.has_value(), [&](const GgufNameRow& row) -> std::optional<GgufPlace> {
        if (row.kind == kWhole) return row.gguf == rest ? place_of(row, {"", "", false}) : std::nullopt;
        for (const PartRow& part : kParts) {
          if (rest.ends_with(part.gguf)) {
            if (auto place = place_of(row, part)) return place;
          }
        }
        return std::nullopt;
      });
  return found.value_or(GgufPlace{std::string(name), "", false, false});
}

std::optional<GgufName> gguf_name(const GgufArchitecture& architecture, std::string_view checkpoint_name) {
  std::string_view rest = checkpoint_name;
  const std::optional<int64_t> layer = take_layer(rest, kCheckpointLayer);
  const std::string front = layer ? fmt::format("{}{}.", kGgufLayer, *layer) : "";
  return first_row(architecture, layer.has_value(), [&](const GgufNameRow& row) -> std::optional<GgufName> {
    if (row.kind == kWhole) {
      return row.checkpoint == rest ? std::optional(GgufName{front + std::string(row.gguf)}) : std::nullopt;
    }
    for (const PartRow& part : kParts) {
      if (!rest.ends_with(part.checkpoint)) continue;
      const std::string_view middle = rest.substr(0, rest.size() - part.checkpoint.size());
      GgufName result{front + std::string(row.gguf) + std::string(part.gguf)};
      if (row.checkpoint == middle) return result;
      if (const std::optional<int64_t> expert = expert_number(middle, row.checkpoint)) {
        result.expert = *expert;
        return result;
      }
    }
    return std::nullopt;
  });
}

WeightSource open_weights(const std::string& model) {
  if (!is_gguf_path(model)) return WeightSource::open(model);
  GgufSet set = GgufSet::open(model);
  const GgufArchitecture& architecture = gguf_architecture(set.metadata());
  return WeightSource::of_gguf(std::move(set),
                               [&](const GgufTensor& t) { return checkpoint_place(architecture, t.name); });
}

}  // namespace carpool
