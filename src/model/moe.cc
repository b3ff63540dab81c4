// The feed-forward half of a layer. moe_block is the paragraph this project is about: the batch decides which
// experts are loaded.
#include "model/model.h"

namespace carpool {

ExpertWeights Model::expert_weights(const ExpertSet& set) const {
  return {set.gate_up, set.down, set.gate_up_bias, set.down_bias, config_.activation, config_.activation_limit};
}

void Model::moe_block(int l, int m, const Rows& rows, const Policy& policy, const StepRecord& record) {
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(l)];
  const int E = config_.n_experts, K = config_.top_k;
  const size_t scores = static_cast<size_t>(rows_) * E;
  const Matrix x = view(x_, config_.width), normed = view(normed_, config_.width),
               out = view(projected_, config_.width);
  const std::span<float> logits(router_logits_.data(), scores), rank(rank_.data(), scores), mix(mix_.data(), scores);
  const RouterInput in{rank, mix, rows.info, E, K, l, layer.scoring.unit_weights};

  ops_->rms_norm(x, layer.post_norm, config_.norm_eps, normed);
  lap(&StepTimes::other);
  ops_->router_logits(normed, layer.router, logits);  // [T, E], float32 always
  ops_->add_bias({router_logits_.data(), rows_, E, E}, layer.router_bias);
  score(layer.scoring, E, logits, rank, mix);  // the model's rule: softmax or sigmoid, bias, groups
  policy.select(in, scratch_, chosen_);        // the batch decides
  const std::span<float> weights(weights_of_slots_.data(), static_cast<size_t>(chosen_.size()));
  finish_weights(layer.scoring, E, mix, chosen_, weights);  // the model's rule: renormalise, scale
  if (record.observer) record.observer->routed({m, in, chosen_, weights, normed});
  lap(&StepTimes::routing);
  const auto& set =
      weights_.cold.empty() ? layer.experts : weights_.cold[step_ % weights_.cold.size()][static_cast<size_t>(l)];
  ops_->experts(normed, expert_weights(set), chosen_, weights, out);  // the memory-bound part
  lap(&StepTimes::experts);
  ops_->add(out, x);
  if (config_.shared_width > 0) {
    ops_->dense_mlp(normed, layer.shared_gate_up, layer.shared_down, out);
    ops_->add(out, x);
    lap(&StepTimes::projections);
  }
  lap(&StepTimes::other);

  record.add_layer(m, in, chosen_, plain_, scratch_);
  lap(&StepTimes::routing);
}

void Model::expert_output(int layer, int expert, Matrix x, Matrix out) {
  Selection one;
  one.start(x.rows, 1);
  for (int t = 0; t < x.rows; ++t) {
    one.push(expert);
    one.end_row(PlainReason::kApplied);
  }
  const std::vector<float> weights(static_cast<size_t>(x.rows), 1.0f);
  ops_->experts(x, expert_weights(weights_.layers[static_cast<size_t>(layer)].experts), one, weights, out);
}

void Model::dense_block(int l) {
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(l)];
  const Matrix x = view(x_, config_.width), normed = view(normed_, config_.width),
               out = view(projected_, config_.width);
  ops_->rms_norm(x, layer.post_norm, config_.norm_eps, normed);
  ops_->dense_mlp(normed, layer.dense_gate_up, layer.dense_down, out);
  ops_->add(out, x);
  lap(&StepTimes::projections);
}

}  // namespace carpool
