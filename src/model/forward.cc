// One step through the model: embed, layers, logits. The two halves of a layer are in attention.cc and moe.cc.
#include <algorithm>

#include "base/error.h"
#include "base/time.h"
#include "model/model.h"

namespace carpool {

Matrix Model::view(std::vector<float>& buffer, int cols) const { return {buffer.data(), rows_, cols, cols}; }

Matrix Model::forward(const Rows& rows, KvCache& kv, const Policy& policy, const StepRecord& record) {
  rows_ = rows.size();
  const int wanted = static_cast<int>(rows.logit_rows.size());
  reserve(rows_, wanted);
  record.start(rows_, config_);
  lap_started_ = times_ ? now_seconds() : 0;
  const double waited = ops_->waited_seconds();
  ops_->embed(weights_.embed, rows.tokens, view(x_, config_.width));
  lap(&StepTimes::other);
  for (int l = 0, m = 0; l < config_.layers; ++l) {
    attention_block(l, rows, kv);
    if (config_.moe_layer[static_cast<size_t>(l)]) {
      moe_block(l, m++, rows, policy, record);
    } else {
      dense_block(l);
    }
  }
  ++step_;
  const Matrix last{last_.data(), wanted, config_.width, config_.width};
  for (int i = 0; i < wanted; ++i) {
    const float* row = view(x_, config_.width).row(rows.logit_rows[static_cast<size_t>(i)]);
    std::copy(row, row + config_.width, last.row(i));
  }
  const Matrix logits{logits_.data(), wanted, config_.vocab, config_.vocab};
  ops_->rms_norm(last, weights_.final_norm, config_.norm_eps, last);
  const Product head{&weights_.head, logits};
  ops_->matmul(last, {&head, 1});
  lap(&StepTimes::head);
  if (times_) times_->waiting += ops_->waited_seconds() - waited;
  return logits;
}

}  // namespace carpool
