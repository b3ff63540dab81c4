// See quantize_parts.h.
#include "model/quantize_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "model/stored_experts.h"

namespace carpool {
namespace {

constexpr std::string_view kLayer = "model.layers.";

// Row r of `rows` is row map(r) of the view.
template <class Map>
std::vector<float> decoded(const WeightView& view, int64_t rows, Map map) {
  std::vector<float> out(static_cast<size_t>(rows * view.cols));
  for (int64_t r = 0; r < rows; ++r) decode_row(view, map(r), out.data() + r * view.cols);
  return out;
}

// [rows, view.rows] made of the columns first, first + step ... of the view.
std::vector<float> transposed(const WeightView& view, int64_t rows, int64_t first, int64_t step) {
  std::vector<float> row(static_cast<size_t>(view.cols)), out(static_cast<size_t>(rows * view.rows));
  for (int64_t c = 0; c < view.rows; ++c) {
    decode_row(view, c, row.data());
    for (int64_t r = 0; r < rows; ++r)
      out[static_cast<size_t>(r * view.rows + c)] = row[static_cast<size_t>(first + r * step)];
  }
  return out;
}

// Of a tensor in a layer: the layer's number, else -1.
int64_t layer_of(std::string_view name) {
  if (!name.starts_with(kLayer)) return -1;
  name.remove_prefix(kLayer.size());
  int64_t layer = -1;
  std::from_chars(name.data(), name.data() + name.size(), layer);
  return layer;
}

class Splitter {
 public:
  Splitter(const WeightSource& source, const TensorInfo& tensor, const PartsFor& what)
      : source_(source), tensor_(tensor), name_(matrix_name(tensor)), what_(what) {}

  std::vector<TensorPart> split() {
    if (is_scale(source_, tensor_) || is_cache_scale(tensor_.name) || is_unused_layer()) return {};
    if (take_ending(".experts.gate_up_proj", "_blocks")) return experts(true);
    if (take_ending(".experts.down_proj", "_blocks")) return experts(false);
    for (const char* scales : {".experts.gate_up_proj_scales", ".experts.down_proj_scales",
                               ".experts.gate_up_proj_scale_inv", ".experts.down_proj_scale_inv"}) {
      if (name_.ends_with(scales)) return {};
    }
    const StoredMatrix stored = stored_matrix(source_, tensor_);
    TensorPart whole{&tensor_, name_, tensor_.shape, stored.view};
    if (tensor_.shape.size() == 2) whole.shape = {stored.view.rows, stored.view.cols};
    if (take_ending(".experts.gate_up_proj_bias", "")) return alternating_biases(whole);
    if (what_.to && is_latent_pair()) return keys_and_values(whole);
    if (is_paired(what_.from) != is_paired(what_.to) && rotated_heads() > 0) return {in_other_order(whole)};
    return {whole};
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::kConfig, fmt::format("{}: tensor \"{}\": {}", source_.where(), escape(tensor_.name), what));
  }
  static bool is_paired(const GgufArchitecture* a) { return a && a->paired_rows; }

  // Whether the name is `ending`, or that and `form`; `stem_` is then what comes before it, and one dot.
  bool take_ending(std::string_view ending, std::string_view form) {
    std::string_view rest = name_;
    if (!form.empty() && rest.ends_with(form)) rest.remove_suffix(form.size());
    if (!rest.ends_with(ending)) return false;
    fused_ = std::string(rest);
    stem_ = fused_.substr(0, fused_.rfind('.') + 1);
    return true;
  }

  bool is_unused_layer() const { return what_.to && !what_.from && layer_of(name_) >= what_.config.layers; }

  // Tensors of all experts of a layer. Where they have biases beside them, gate and up come in turns, and what is not
  // in blocks is transposed: the form of gpt-oss.
  std::vector<TensorPart> experts(bool pair) {
    const bool turns = source_.find(stem_ + "gate_up_proj_bias") != nullptr;
    if (turns && !what_.to) refuse("a directory cannot hold experts of this form; name an output that ends in .gguf");
    const StoredExperts sizes = stored_expert(source_, fused_, 0);
    const bool turned = turns && !sizes.blocks;
    const int64_t all_rows = turned ? sizes.cols : sizes.rows, cols = turned ? sizes.rows : sizes.cols;
    if (pair && all_rows % 2 != 0) refuse(fmt::format("{} rows are not those of two matrices", all_rows));
    const int64_t rows = pair ? all_rows / 2 : all_rows;
    std::vector<TensorPart> out;
    for (int64_t e = 0; e < sizes.experts; ++e) {
      const WeightView view = stored_expert(source_, fused_, e).matrix.view;
      const auto add = [&](const char* matrix, int64_t half) {
        TensorPart part{&tensor_, fmt::format("{}{}.{}.weight", stem_, e, matrix), {rows, cols}, view};
        const int64_t first = turns ? half : half * rows, step = pair && turns ? 2 : 1;
        if (turned) {
          part.values = [view, rows, first, step] { return transposed(view, rows, first, step); };
        } else {
          part.view.rows = rows;
          part.view.map = {first, step == 1 ? 0 : 1, step == 1 ? 0 : step};
        }
        out.push_back(std::move(part));
      };
      if (pair) {
        add("gate_proj", 0);
        add("up_proj", 1);
      } else {
        add("down_proj", 0);
      }
    }
    return out;
  }

  // [E, 2F], gate and up in turns, to two of [E, F].
  std::vector<TensorPart> alternating_biases(const TensorPart& whole) {
    if (!what_.to) refuse("a directory cannot hold experts of this form; name an output that ends in .gguf");
    const int64_t E = whole.view.rows, F = whole.view.cols / 2;
    std::vector<TensorPart> out;
    for (const auto& [name, half] : {std::pair{"gate_proj_bias", int64_t{0}}, {"up_proj_bias", int64_t{1}}}) {
      TensorPart part{&tensor_, stem_ + name, {E, F}, whole.view};
      part.values = [view = whole.view, E, F, half] {
        const std::vector<float> all = decoded(view, E, [](int64_t r) { return r; });
        std::vector<float> mine(static_cast<size_t>(E * F));
        for (size_t i = 0; i < mine.size(); ++i) mine[i] = all[2 * i + static_cast<size_t>(half)];
        return mine;
      };
      out.push_back(std::move(part));
    }
    return out;
  }

  bool is_latent_pair() const {
    return !what_.from && what_.config.latent && name_.ends_with(".self_attn.kv_b_proj.weight");
  }

  // Of each head first the rows that make keys, then those that make values. Keys are wanted transposed.
  std::vector<TensorPart> keys_and_values(const TensorPart& whole) const {
    const Latent& n = *what_.config.latent;
    const int64_t H = what_.config.heads, per_head = n.nope + n.value, rank = whole.view.cols;
    if (whole.view.rows != H * per_head)
      refuse(fmt::format("has {} rows, the config needs {}", whole.view.rows, H * per_head));
    const std::string stem = name_.substr(0, name_.size() - std::string_view("kv_b_proj.weight").size());
    TensorPart k{&tensor_, stem + "k_b_proj.weight", {H * rank, n.nope}, whole.view};
    k.heads = H;
    k.values = [view = whole.view, H, per_head, nope = int64_t{n.nope}, rank] {
      std::vector<float> out(static_cast<size_t>(H * rank * nope)), row(static_cast<size_t>(rank));
      for (int64_t h = 0; h < H; ++h) {
        for (int64_t i = 0; i < nope; ++i) {
          decode_row(view, h * per_head + i, row.data());
          for (int64_t r = 0; r < rank; ++r)
            out[static_cast<size_t>((h * rank + r) * nope + i)] = row[static_cast<size_t>(r)];
        }
      }
      return out;
    };
    TensorPart v{&tensor_, stem + "v_b_proj.weight", {H * n.value, rank}, whole.view};
    v.heads = H;
    v.view.rows = H * n.value;
    v.view.map = {n.nope, n.value, per_head};
    return {k, v};
  }

  // Heads of a matrix or bias whose rows are rotated.
  int64_t rotated_heads() const {
    for (const char* part : {".weight", ".bias"}) {
      if (name_.ends_with(fmt::format(".self_attn.q_proj{}", part))) return what_.config.heads;
      if (name_.ends_with(fmt::format(".self_attn.k_proj{}", part))) return what_.config.kv_heads;
    }
    return 0;
  }

  // Pairs of rows half a head apart become neighbours, or the other way round. A bias is a row of such rows.
  TensorPart in_other_order(TensorPart part) const {
    const bool vector = tensor_.shape.size() == 1;
    const int64_t rows = vector ? part.view.cols : part.view.rows, heads = rotated_heads();
    if (rows % (2 * heads) != 0) refuse(fmt::format("{} rows are not those of {} heads", rows, heads));
    const int64_t head = rows / heads, half = head / 2;
    const bool to_pairs = is_paired(what_.to);
    const auto source_row = [=](int64_t r) {
      const int64_t h = r / head, i = r % head;
      return h * head + (to_pairs ? i % 2 * half + i / 2 : i % half * 2 + i / half);
    };
    part.values = [view = part.view, rows, vector, source_row] {
      if (!vector) return decoded(view, rows, source_row);
      const std::vector<float> all = decoded(view, 1, [](int64_t r) { return r; });
      std::vector<float> out;
      for (int64_t r = 0; r < rows; ++r) out.push_back(all[static_cast<size_t>(source_row(r))]);
      return out;
    };
    return part;
  }

  const WeightSource& source_;
  const TensorInfo& tensor_;
  const std::string name_;
  const PartsFor& what_;
  std::string fused_, stem_;  // "...experts.gate_up_proj", "...experts."
};

}  // namespace

namespace {

// The name that a matrix of its own has in checkpoints as published, where transformers 5 has others for what it fuses
// ("mlp.experts.0.gate_proj" of Mixtral's "block_sparse_moe.experts.0.w1"): the first of those that stand for one
// tensor of GGUF.
std::string published_name(const GgufArchitecture& architecture, const std::string& name) {
  const std::optional<GgufName> gguf = gguf_name(architecture, name);
  if (!gguf) return name;
  const GgufPlace place = checkpoint_place(architecture, gguf->name);
  if (place.sliced != (gguf->expert >= 0)) return name;
  return place.before + (place.sliced ? std::to_string(gguf->expert) : "") + place.after;
}

}  // namespace

std::vector<TensorPart> tensor_parts(const WeightSource& source, const TensorInfo& tensor, const PartsFor& what) {
  std::vector<TensorPart> parts = Splitter(source, tensor, what).split();
  const GgufArchitecture* names = what.to || what.from ? nullptr : gguf_architecture_of(what.config.family);
  if (names) {
    for (TensorPart& part : parts) part.name = published_name(*names, part.name);
  }
  return parts;
}

}  // namespace carpool
