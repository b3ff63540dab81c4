// The attention half of a layer: norm, projections, per-head norm and rotation, paged cache, output projection.
#include <cmath>

#include "model/model.h"

namespace carpool {
namespace {

void add_bias(Matrix x, const std::vector<float>& bias) {
  if (bias.empty()) return;
  for (int t = 0; t < x.rows; ++t) {
    float* row = x.row(t);
    for (int i = 0; i < x.cols; ++i) row[i] += bias[static_cast<size_t>(i)];
  }
}

}  // namespace

void Model::attention_block(int l, const Rows& rows, KvCache& kv) {
  const ModelConfig& c = config_;
  const LayerWeights& w = weights_.layers[static_cast<size_t>(l)];
  const Matrix x = view(x_, c.width), normed = view(normed_, c.width), out = view(projected_, c.width);
  const Matrix q = view(q_, c.heads * c.head_dim), k = view(k_, c.kv_width()), v = view(v_, c.kv_width());
  const Matrix attended = view(attended_, c.heads * c.head_dim);
  AttentionShape shape;
  shape.heads = c.heads;
  shape.kv_heads = c.kv_heads;
  shape.head_dim = c.head_dim;
  shape.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  shape.norm_eps = c.norm_eps;
  shape.q_norm = w.q_norm;
  shape.k_norm = w.k_norm;
  shape.rope = {rope_cos_, rope_sin_, c.head_dim};
  const RowPlaces places{rows.positions, rows.block_tables};

  ops_->rms_norm(x, w.input_norm, c.norm_eps, normed);
  lap(&StepTimes::other);
  const Product projections[] = {{&w.q, q}, {&w.k, k}, {&w.v, v}};
  ops_->matmul(normed, projections);
  add_bias(q, w.q_bias);
  add_bias(k, w.k_bias);
  add_bias(v, w.v_bias);
  lap(&StepTimes::projections);
  ops_->store_kv(shape, places, q, k, v, kv.layer(l));
  ops_->attention(shape, places, q, kv.layer(l), attended);
  lap(&StepTimes::attention);
  const Product output{&w.o, out};
  ops_->matmul(attended, {&output, 1});
  add_bias(out, w.o_bias);
  lap(&StepTimes::projections);
  ops_->add(out, x);
  lap(&StepTimes::other);
}

}  // namespace carpool
