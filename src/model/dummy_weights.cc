// Random weights; see dummy_weights.h.
#include "model/dummy_weights.h"

#include <cstring>

#include "tensor/random_bits.h"

namespace carpool {
namespace {

std::vector<float> signs(int64_t n, RandomBits& bits) {
  std::vector<float> out(static_cast<size_t>(n));
  for (float& value : out) value = bits.next() >> 63 ? 1.0f : -1.0f;
  return out;
}

}  // namespace

void plan_dummy_weights(const DummySpec& spec, const ModelConfig& config, PanelPlan& plan, Weights& weights) {
  const ModelConfig& c = config;
  RandomBits bits(spec.seed);
  const auto matrix = [&](Format format, int64_t rows, int64_t cols) {
    return plan.add_random(format, rows, cols, bits.next());
  };
  const int64_t q = int64_t{c.heads} * c.head_dim, padded = (c.expert_width + kPanelRows - 1) / kPanelRows * kPanelRows;
  weights.final_norm = signs(c.width, bits);
  weights.head = matrix(spec.head_format, c.vocab, c.width);
  for (int l = 0; l < c.layers; ++l) {
    LayerWeights layer;
    layer.input_norm = signs(c.width, bits);
    layer.post_norm = signs(c.width, bits);
    layer.grouped.q_norm = signs(c.head_dim, bits);
    layer.grouped.k_norm = signs(c.head_dim, bits);
    layer.grouped.q = matrix(spec.format, q, c.width);
    layer.grouped.k = matrix(spec.format, c.kv_width(), c.width);
    layer.grouped.v = matrix(spec.format, c.kv_width(), c.width);
    layer.o = matrix(spec.format, c.width, q);
    layer.router = matrix(Format::kF32, c.n_experts, c.width);
    layer.scoring = c.scoring;
    for (int e = 0; e < c.n_experts; ++e) {
      layer.experts.gate_up.push_back(matrix(spec.format, 2 * padded, c.width));
      layer.experts.down.push_back(matrix(spec.format, c.width, c.expert_width));
    }
    weights.layers.push_back(std::move(layer));
  }
}

void make_dummy_embedding(const DummySpec& spec, const ModelConfig& config, Weights& weights) {
  RandomBits bits(spec.seed + 1);
  weights.random.resize((static_cast<size_t>(config.vocab) * static_cast<size_t>(config.width) + 7) / 8 * 8);
  for (size_t i = 0; i < weights.random.size(); i += 8) {
    // E4M3: any sign, exponent 7 (of value 1), any fraction.
    const uint64_t codes = (bits.next() & 0x8787878787878787u) | 0x3838383838383838u;
    std::memcpy(weights.random.data() + i, &codes, 8);
  }
  weights.embed = {Format::kFP8, weights.random.data(), config.vocab, config.width};
}

}  // namespace carpool
