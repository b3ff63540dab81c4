// The table of names and matching in both directions; see gguf_names.h.
#include "model/gguf_names.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "base/error.h"

namespace carpool {
namespace {

constexpr std::array kArchitectures = {
    GgufArchitecture{"qwen3moe", "qwen3_moe"},
};

// Names without their last part. In a layer, "blk.N." and "model.layers.N." precede them; "{e}" is an expert's number.
struct NameRow {
  std::string_view gguf, checkpoint;
  bool in_layer;
};
constexpr NameRow kCommon[] = {
    {"token_embd", "model.embed_tokens", false},
    {"output_norm", "model.norm", false},
    {"output", "lm_head", false},
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
  std::string known;
  for (const GgufArchitecture& a : kArchitectures) {
    if (a.name == name) return a;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", a.name);
  }
  throw Error(ErrorKind::kConfig,
              fmt::format("{}: the architecture \"{}\" is not supported in GGUF files; supported: {}", metadata.where(),
                          escape(name), known));
}

const GgufArchitecture* gguf_architecture_of(std::string_view model_type) {
  for (const GgufArchitecture& a : kArchitectures) {
    if (a.model_type == model_type) return &a;
  }
  return nullptr;
}

GgufPlace checkpoint_place(const GgufArchitecture&, std::string_view name) {
  std::string_view rest = name;
  const std::optional<int64_t> layer = take_layer(rest, kGgufLayer);
  const std::string front = layer ? fmt::format("{}{}.", kCheckpointLayer, *layer) : "";
  for (const PartRow& part : kParts) {
    if (!rest.ends_with(part.gguf)) continue;
    const std::string_view middle = rest.substr(0, rest.size() - part.gguf.size());
    for (const NameRow& row : kCommon) {
      if (row.in_layer != layer.has_value() || row.gguf != middle) continue;
      const size_t expert = row.checkpoint.find(kExpert);
      if (expert == std::string_view::npos)
        return {front + std::string(row.checkpoint), std::string(part.checkpoint), false, part.scalar};
      return {front + std::string(row.checkpoint.substr(0, expert)),
              std::string(row.checkpoint.substr(expert + kExpert.size())) + std::string(part.checkpoint), true,
              part.scalar};
    }
  }
  return {std::string(name), "", false, false};
}

std::optional<GgufName> gguf_name(const GgufArchitecture&, std::string_view checkpoint_name) {
  std::string_view rest = checkpoint_name;
  const std::optional<int64_t> layer = take_layer(rest, kCheckpointLayer);
  const std::string front = layer ? fmt::format("{}{}.", kGgufLayer, *layer) : "";
  for (const PartRow& part : kParts) {
    if (!rest.ends_with(part.checkpoint)) continue;
    const std::string_view middle = rest.substr(0, rest.size() - part.checkpoint.size());
    for (const NameRow& row : kCommon) {
      if (row.in_layer != layer.has_value()) continue;
      GgufName result{front + std::string(row.gguf) + std::string(part.gguf)};
      const size_t at = row.checkpoint.find(kExpert);
      if (at == std::string_view::npos) {
        if (row.checkpoint == middle) return result;
        continue;
      }
      std::string_view left = middle;
      if (!take(left, row.checkpoint.substr(0, at))) continue;
      const std::optional<int64_t> expert = take_number(left);
      if (!expert || left != row.checkpoint.substr(at + kExpert.size())) continue;
      result.expert = *expert;
      return result;
    }
  }
  return std::nullopt;
}

WeightSource open_weights(const std::string& model) {
  if (!is_gguf_path(model)) return WeightSource::open(model);
  GgufSet set = GgufSet::open(model);
  const GgufArchitecture& architecture = gguf_architecture(set.metadata());
  return WeightSource::of_gguf(std::move(set),
                               [&](const GgufTensor& t) { return checkpoint_place(architecture, t.name); });
}

}  // namespace carpool
