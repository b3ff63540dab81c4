// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) in the absorbed form, and the indexer of sparse attention
// (DeepSeek-V3.2, GLM-5).
//
// A position's keys and values of all heads are linear in one latent vector, which is all that the cache holds, beside
// one rotated key for all heads. q . (K c) is (K^T q) . c, so a head's query is taken to the latent space by K^T, all
// heads attend to the same vectors, and what a head finds there is taken back by its V. Prompts take the same way as
// single rows, so that a row's bits do not depend on the chunk it came in.
#include <algorithm>

#include "model/model.h"

namespace carpool {
namespace {

// Columns [begin, end) of x.
Matrix columns(Matrix x, int begin, int end) { return {x.data + begin, x.rows, end - begin, x.stride}; }

}  // namespace

// From normed_ to heads_ [T, H*value].
void Model::latent_attention(int l, const RowPlaces& places, KvCache& kv) {
  const ModelConfig& c = config_;
  const Latent& n = *c.latent;
  const LatentWeights& w = weights_.layers[static_cast<size_t>(l)].latent;
  const int head = n.nope + n.rope;
  const Matrix normed = view(normed_, c.width), low = view(low_rank_, n.q_rank), k = view(k_, c.kv_width());
  const Matrix heads = view(heads_, c.heads * head), q = view(q_, c.q_width());
  const Product direct[] = {{&w.kv_a, k}, {&w.q, heads}}, first[] = {{&w.kv_a, k}, {&w.q_a, low}};
  ops_->matmul(normed, n.q_rank > 0 ? first : direct);
  if (n.q_rank > 0) {
    ops_->rms_norm(low, w.q_a_norm, n.norm_eps, low);
    const Product second{&w.q, heads};
    ops_->matmul(low, {&second, 1});
  }
  const Matrix latent = columns(k, 0, n.kv_rank);
  ops_->rms_norm(latent, w.kv_a_norm, n.norm_eps, latent);
  ops_->matmul_heads(heads, head, w.k_up, c.heads, q, c.head_dim);
  for (int t = 0; t < rows_; ++t) {
    for (int h = 0; h < c.heads; ++h) {
      std::copy_n(heads.row(t) + h * head + n.nope, n.rope, q.row(t) + h * c.head_dim + n.kv_rank);
    }
  }
  lap(&StepTimes::projections);
  if (c.sparse()) choose_positions(l, places, kv, low);
  AttentionShape shape = attention_shape(l);
  shape.rope.first = n.kv_rank;
  ops_->store_kv(shape, places, q, k, {}, kv.layer(l));
  const Matrix attended = view(attended_, c.heads * c.value_dim);
  ops_->attention(shape, places, positions_, q, kv.layer(l), attended);
  lap(&StepTimes::attention);
  ops_->matmul_heads(attended, c.value_dim, w.v_up, c.heads, view(heads_, c.heads * n.value), n.value);
}

// Which positions the rows of layer l attend to, from what the indexer's own small heads find alike.
void Model::choose_positions(int l, const RowPlaces& places, KvCache& kv, Matrix low_rank) {
  const Indexer& n = *config_.indexer;
  if (!n.own[static_cast<size_t>(l)]) return;
  const IndexerWeights& w = weights_.layers[static_cast<size_t>(l)].indexer;
  const Matrix normed = view(normed_, config_.width), q = view(indexer_q_, n.heads * n.head_dim);
  const Matrix k = view(indexer_k_, n.head_dim), heads = view(indexer_heads_, n.heads);
  const Product of_queries{&w.q, q}, of_rows[] = {{&w.k, k}, {&w.head_weights, heads}};
  ops_->matmul(low_rank, {&of_queries, 1});
  ops_->matmul(normed, of_rows);
  ops_->layer_norm(k, w.k_norm, w.k_norm_bias, n.norm_eps, k);
  AttentionShape shape;
  shape.heads = n.heads;
  shape.kv_heads = 1;
  shape.head_dim = n.head_dim;
  shape.scale = n.scale;
  shape.rope = {rope_cos_, rope_sin_, 0, config_.rope.dims, n.interleaved};
  ops_->store_kv(shape, places, q, k, {}, kv.indexer(l));
  ops_->choose_positions(shape, places, q, heads, kv.indexer(l), n.top, positions_);
  lap(&StepTimes::attention);
}

}  // namespace carpool
