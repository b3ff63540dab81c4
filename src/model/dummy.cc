#include "model/dummy.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <set>

#include "base/error.h"
#include "tensor/random_bits.h"

namespace carpool {
namespace {

constexpr std::string_view kPrefix = "dummy:";
constexpr int kMaxLayers = 1024;

[[noreturn]] void refuse(const std::string& sentence) { throw Error(ErrorKind::kConfig, sentence); }

std::string names(bool whole_only) {
  std::string out;
  for (const ModelShape& shape : model_shapes()) {
    if (!whole_only || shape.heads > 0) out += fmt::format("{}{}", out.empty() ? "" : ", ", shape.name);
  }
  return out;
}

uint64_t number(std::string_view key, std::string_view text, uint64_t low, uint64_t high) {
  uint64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || value < low || value > high) {
    refuse(fmt::format("{}: {} must be a whole number from {} to {}, got \"{}\"", kPrefix, key, low, high,
                       escape(text, 60)));
  }
  return value;
}

Format format_value(std::string_view key, std::string_view text) {
  const Format* format = format_of_name(text);
  if (!format) {
    refuse(fmt::format("{}: {} must be one of {}; got \"{}\"", kPrefix, key, format_names(), escape(text, 60)));
  }
  return *format;
}

bool four_bits(Format format) {
  const FormatInfo& f = info(format);
  return f.block_bytes * 8 < 5 * f.block_elements;
}

// One "key=value" of the spec; `head` stays false until the head's format was given.
void read_item(std::string_view item, DummySpec& spec, bool& head) {
  const size_t equals = item.find('=');
  const std::string_view key = item.substr(0, equals);
  const std::string_view value = equals == std::string_view::npos ? "" : item.substr(equals + 1);
  if (key == "layers") {
    spec.layers = static_cast<int>(number(key, value, 1, kMaxLayers));
  } else if (key == "format") {
    spec.format = format_value(key, value);
  } else if (key == "head") {
    spec.head_format = format_value(key, value);
    head = true;
  } else if (key == "seed") {
    spec.seed = number(key, value, 0, UINT64_MAX);
  } else {
    refuse(fmt::format("{}: unknown setting \"{}\"; there are layers=N, format=NAME, head=NAME and seed=N", kPrefix,
                       escape(item, 60)));
  }
}

}  // namespace

const std::vector<ModelShape>& model_shapes() {
  static const std::vector<ModelShape> shapes = {
#define CARPOOL_SHAPE(...) ModelShape{__VA_ARGS__},
#include "model/shapes.def"
#undef CARPOOL_SHAPE
  };
  return shapes;
}

const ModelShape& find_shape(std::string_view name) {
  for (const ModelShape& shape : model_shapes()) {
    if (shape.name == name) return shape;
  }
  refuse(fmt::format("no shape \"{}\"; there are {}", escape(name, 60), names(false)));
}

Scoring shape_scoring(const ModelShape& shape, uint64_t seed) {
  Scoring s;
  s.kind = shape.kind;
  s.renormalize = shape.renormalize;
  s.n_group = shape.n_group;
  s.topk_group = shape.topk_group;
  s.routed_scaling_factor = shape.routed_scaling_factor;
  if (shape.selection_bias) {
    RandomBits bits(seed);
    for (int e = 0; e < shape.n_experts; ++e) {
      s.selection_bias.push_back(7.0f + 0.1f * static_cast<float>(bits.next() >> 40) * 0x1p-24f);
    }
  }
  s.check(shape.n_experts, shape.top_k);
  return s;
}

void check_columns(Format format, int64_t cols, std::string_view what) {
  const FormatInfo& f = info(format);
  if (cols % f.block_elements == 0) return;
  refuse(fmt::format("{} has {} columns, the format {} needs a multiple of {}", what, cols, f.name, f.block_elements));
}

bool is_dummy(std::string_view model) { return model.starts_with(kPrefix); }

DummySpec parse_dummy(std::string_view model) {
  CARPOOL_CHECK(is_dummy(model));
  std::string_view rest = model.substr(kPrefix.size());
  const std::string_view name = rest.substr(0, rest.find(','));
  rest.remove_prefix(name.size());
  const ModelShape& shape = find_shape(name);
  if (shape.heads == 0) {
    refuse(
        fmt::format("{} is the shape of a layer only, its attention is not supported; whole models: {}; one layer: "
                    "carpool bench layer --shape {}",
                    shape.name, names(true), shape.name));
  }
  DummySpec spec;
  spec.shape = name;
  spec.layers = shape.moe_layers;
  bool head = false;
  std::set<std::string_view> seen;
  while (!rest.empty()) {
    rest.remove_prefix(1);  // the comma
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(item.size());
    if (!seen.insert(item.substr(0, item.find('='))).second) {
      refuse(fmt::format("{}: \"{}\" is given twice", kPrefix, escape(item.substr(0, item.find('=')), 60)));
    }
    read_item(item, spec, head);
  }
  if (!head) spec.head_format = four_bits(spec.format) ? Format::kQ6_K : spec.format;
  check_columns(spec.format, shape.width, "a matrix of the shape");
  check_columns(spec.format, shape.expert_width, "the down projection of the shape's experts");
  check_columns(spec.format, int64_t{shape.heads} * shape.head_dim, "the output projection of the shape's attention");
  check_columns(spec.head_format, shape.width, "the output matrix of the shape");
  return spec;
}

ModelConfig dummy_config(const DummySpec& spec) {
  const ModelShape& shape = find_shape(spec.shape);
  ModelConfig c;
  c.family = "random weights";
  c.vocab = shape.vocab;
  c.width = shape.width;
  c.layers = spec.layers;
  c.heads = shape.heads;
  c.kv_heads = shape.kv_heads;
  c.head_dim = shape.head_dim;
  c.context = shape.context;
  c.norm_eps = shape.norm_eps;
  c.value_dim = c.head_dim;
  c.attention_scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  c.rope.theta = shape.rope_theta;
  c.rope.dims = c.head_dim;
  c.qk_norm = ModelConfig::QkNorm::kHead;
  c.moe_layer.assign(static_cast<size_t>(spec.layers), true);
  c.expert_width = shape.expert_width;
  c.n_experts = shape.n_experts;
  c.top_k = shape.top_k;
  c.scoring = shape_scoring(shape, spec.seed);
  return c;
}

}  // namespace carpool
