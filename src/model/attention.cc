// The attention half of a layer, where heads have keys and values of their own: projections, norms and rotation, paged
// cache, output projection. Attention over latent vectors is in latent_attention.cc.
#include "model/model.h"

namespace carpool {

AttentionShape Model::attention_shape(int l) const {
  const ModelConfig& c = config_;
  AttentionShape shape;
  shape.heads = c.heads;
  shape.kv_heads = c.kv_heads;
  shape.head_dim = c.head_dim;
  shape.value_dim = c.value_dim;
  shape.scale = c.attention_scale;
  shape.norm_eps = c.norm_eps;
  shape.rope = {rope_cos_, rope_sin_, 0, c.rope.dims, c.rope.interleaved};
  shape.window = c.window_of(l);
  return shape;
}

void Model::attention_block(int l, const Rows& rows, KvCache& kv) {
  const ModelConfig& c = config_;
  const LayerWeights& w = weights_.layers[static_cast<size_t>(l)];
  const Matrix x = view(x_, c.width), normed = view(normed_, c.width), out = view(projected_, c.width);
  const RowPlaces places{rows.positions, rows.block_tables};
  ops_->rms_norm(x, w.input_norm, c.norm_eps, normed);
  lap(&StepTimes::other);
  if (c.latent) {
    latent_attention(l, places, kv);
  } else {
    grouped_attention(l, places, kv);
  }
  const int width = c.latent ? c.heads * c.latent->value : c.heads * c.value_dim;
  const Product output{&w.o, out};
  ops_->matmul(view(c.latent ? heads_ : attended_, width), {&output, 1});
  ops_->add_bias(out, w.o_bias);
  lap(&StepTimes::projections);
  ops_->add(out, x);
  lap(&StepTimes::other);
}

// From normed_ to attended_ [T, H*value_dim].
void Model::grouped_attention(int l, const RowPlaces& places, KvCache& kv) {
  const ModelConfig& c = config_;
  const GroupedWeights& w = weights_.layers[static_cast<size_t>(l)].grouped;
  const Matrix q = view(q_, c.q_width()), k = view(k_, c.kv_width()), v = view(v_, c.kv_heads * c.value_dim);
  const Product projections[] = {{&w.q, q}, {&w.k, k}, {&w.v, v}};
  ops_->matmul(view(normed_, c.width), projections);
  ops_->add_bias(q, w.q_bias);
  ops_->add_bias(k, w.k_bias);
  ops_->add_bias(v, w.v_bias);
  lap(&StepTimes::projections);
  AttentionShape shape = attention_shape(l);
  shape.sinks = w.sinks;
  if (c.qk_norm == ModelConfig::QkNorm::kWhole) {
    ops_->rms_norm(q, w.q_norm, c.norm_eps, q);
    ops_->rms_norm(k, w.k_norm, c.norm_eps, k);
  } else {
    shape.q_norm = w.q_norm;
    shape.k_norm = w.k_norm;
  }
  ops_->store_kv(shape, places, q, k, v, kv.layer(l));
  ops_->attention(shape, places, {}, q, kv.layer(l), view(attended_, c.heads * c.value_dim));
  lap(&StepTimes::attention);
}

}  // namespace carpool
