// From a C batch to a routed one. See router.h.
#include "capi/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "capi/half.h"

namespace carpool::capi {
namespace {

constexpr int kMostExperts = 1 << 20, kMostRows = 1 << 24, kMostShared = 1024;
constexpr int64_t kMostSlots = 1 << 30;  // (row, expert) pairs of a batch, which Selection counts in an int

[[noreturn]] void bad(const std::string& sentence) { throw Error(ErrorKind::kMalformed, sentence); }

Scoring make_scoring(const carpool_routing_model& m) {
  Scoring s;
  switch (m.scoring) {
    case CARPOOL_ROUTING_SOFTMAX:
      s.kind = Scoring::Kind::kSoftmax;
      break;
    case CARPOOL_ROUTING_SOFTMAX_TOPK:
      s.kind = Scoring::Kind::kSoftmaxTopk;
      break;
    case CARPOOL_ROUTING_SIGMOID:
      s.kind = Scoring::Kind::kSigmoid;
      break;
    default:
      bad(fmt::format("scoring {} is none of 0 (softmax), 1 (softmax_topk), 2 (sigmoid)", m.scoring));
  }
  if (m.group_score != CARPOOL_ROUTING_GROUP_TOP2 && m.group_score != CARPOOL_ROUTING_GROUP_MAX) {
    bad(fmt::format("group_score {} is neither 0 (top2) nor 1 (max)", m.group_score));
  }
  const bool top2 = m.group_score == CARPOOL_ROUTING_GROUP_TOP2;
  s.group_score = top2 ? Scoring::GroupScore::kTop2 : Scoring::GroupScore::kMax;
  s.renormalize = m.renormalize != 0;
  s.n_group = m.n_group;
  s.topk_group = m.topk_group;
  s.routed_scaling_factor = m.routed_scaling_factor;
  s.check(m.n_experts, m.top_k);
  return s;
}

// The most experts of a row: by the convention of policy.h the argument k_max, else K.
int most_per_row(const std::string& spec, int top_k) {
  constexpr std::string_view kKey = "k_max=";
  const size_t at = spec.find(kKey);
  int k_max = 0;
  if (at != std::string::npos) std::from_chars(spec.data() + at + kKey.size(), spec.data() + spec.size(), k_max);
  return std::max(top_k, k_max);
}

void check_bias(const float* bias, int n_experts) {
  for (int e = 0; bias && e < n_experts; ++e) {
    if (!std::isfinite(bias[e])) bad(fmt::format("the bias of expert {} is not finite", e));
  }
}

void check_pointer(bool required, const void* pointer, uintptr_t alignment, const char* name) {
  if (required && !pointer) bad(fmt::format("{} is NULL", name));
  if (reinterpret_cast<uintptr_t>(pointer) % alignment != 0) {
    bad(fmt::format("{} does not lie at a multiple of {} bytes", name, alignment));
  }
}

template <class From, class Convert>
void convert(const From* from, size_t n, float* to, Convert&& one) {
  for (size_t i = 0; i < n; ++i) to[i] = one(from[i]);
}

}  // namespace

Router::Router(const char* policy, const carpool_routing_model& model)
    : n_experts_(model.n_experts),
      top_k_(model.top_k),
      n_shared_(model.n_shared),
      shared_weight_(model.shared_weight),
      repeat_(model.filler == CARPOOL_ROUTING_FILL_REPEAT) {
  if (n_experts_ > kMostExperts) bad(fmt::format("{} experts are more than {}", n_experts_, kMostExperts));
  if (n_shared_ < 0 || n_shared_ > kMostShared) {
    bad(fmt::format("n_shared {} must be 0 to {}", n_shared_, kMostShared));
  }
  if (!std::isfinite(shared_weight_)) bad("shared_weight is not finite");
  if (model.filler != CARPOOL_ROUTING_FILL_NONE && !repeat_) {
    bad(fmt::format("filler {} is neither 0 (none) nor 1 (repeat)", model.filler));
  }
  scoring_ = make_scoring(model);
  policy_ = make_policy(policy);
  policy_->check(n_experts_, top_k_);
  spec_ = policy_->spec();
  routed_columns_ = most_per_row(spec_, top_k_);
}

std::unique_ptr<Workspace> Router::borrow() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Workspace> workspace = std::move(idle_.back());
      idle_.pop_back();
      return workspace;
    }
  }
  auto workspace = std::make_unique<Workspace>();
  workspace->scoring = scoring_;
  return workspace;
}

void Router::give_back(std::unique_ptr<Workspace> workspace) {
  const std::lock_guard lock(mutex_);
  ++calls_;
  counters_.add(workspace->counters);
  idle_.push_back(std::move(workspace));
}

void Router::check(const carpool_routing_batch& b) const {
  if (b.rows < 0 || b.rows > kMostRows) bad(fmt::format("rows {} must be 0 to {}", b.rows, kMostRows));
  if (b.logits_type < CARPOOL_ROUTING_F32 || b.logits_type > CARPOOL_ROUTING_F16) {
    bad(fmt::format("logits_type {} is none of 0 (f32), 1 (bf16), 2 (f16)", b.logits_type));
  }
  check_pointer(b.rows > 0, b.logits, b.logits_type == CARPOOL_ROUTING_F32 ? 4 : 2, "logits");
  check_pointer(b.rows > 0, b.ids, 4, "ids");
  check_pointer(b.rows > 0, b.weights, 4, "weights");
  check_pointer(false, b.bias, 4, "bias");
  check_pointer(false, b.row_groups, 4, "row_groups");
  if (b.columns < columns()) {
    bad(fmt::format("{} columns are too few: {} with {} experts per token and {} shared need {}", b.columns, spec_,
                    top_k_, n_shared_, columns()));
  }
  if (const int layers = policy_->layers(); layers > 0 && (b.layer < 0 || b.layer >= layers))
    bad(fmt::format("layer {} is none of the {} that {} has values for", b.layer, layers, spec_));
  if (int64_t{b.rows} * routed_columns_ > kMostSlots) {
    bad(fmt::format("{} rows of {} experts are more than {} slots", b.rows, routed_columns_, kMostSlots));
  }
  if (b.logits_stride != 0 && b.logits_stride < n_experts_) {
    bad(fmt::format("logits_stride {} is less than the {} experts of a row", b.logits_stride, n_experts_));
  }
  for (const int64_t stride : {b.ids_stride, b.weights_stride}) {
    if (stride != 0 && stride < b.columns) {
      bad(fmt::format("a stride of {} is less than the {} columns of a row", stride, b.columns));
    }
  }
  constexpr unsigned kKnown = CARPOOL_ROUTING_ROW_PREFILL | CARPOOL_ROUTING_ROW_PAD | CARPOOL_ROUTING_ROW_ISOLATED;
  for (int t = 0; b.row_flags && t < b.rows; ++t) {
    if (b.row_flags[t] & ~kKnown) bad(fmt::format("row {} has the unknown flags {}", t, b.row_flags[t]));
  }
  check_bias(b.bias, n_experts_);
}

void Router::read_rows(const carpool_routing_batch& b, Workspace& w) const {
  const auto T = static_cast<size_t>(b.rows);
  w.tokens.resize(T);
  for (size_t t = 0; t < T; ++t) {
    const unsigned flags = b.row_flags ? b.row_flags[t] : 0;
    TokenInfo& token = w.tokens[t];
    token.phase = flags & CARPOOL_ROUTING_ROW_PAD       ? Phase::kPad
                  : flags & CARPOOL_ROUTING_ROW_PREFILL ? Phase::kPrefill
                                                        : Phase::kDecode;
    token.isolated = (flags & CARPOOL_ROUTING_ROW_ISOLATED) != 0;
    token.group = b.row_groups ? b.row_groups[t] : 0;
  }
}

std::span<const float> Router::read_logits(const carpool_routing_batch& b, Workspace& w) const {
  const auto T = static_cast<size_t>(b.rows), E = static_cast<size_t>(n_experts_);
  const size_t stride = b.logits_stride ? static_cast<size_t>(b.logits_stride) : E;
  if (b.logits_type == CARPOOL_ROUTING_F32 && stride == E) return {static_cast<const float*>(b.logits), T * E};
  w.logits.resize(T * E);
  for (size_t t = 0; t < T; ++t) {
    float* to = w.logits.data() + t * E;
    if (b.logits_type == CARPOOL_ROUTING_F32) {
      std::memcpy(to, static_cast<const float*>(b.logits) + t * stride, E * sizeof(float));
    } else {
      const uint16_t* from = static_cast<const uint16_t*>(b.logits) + t * stride;
      b.logits_type == CARPOOL_ROUTING_BF16 ? convert(from, E, to, from_bf16) : convert(from, E, to, from_f16);
    }
  }
  return w.logits;
}

void Router::route(const carpool_routing_batch& b) {
  check(b);
  std::unique_ptr<Workspace> own = borrow();
  Workspace& w = *own;
  read_rows(b, w);
  const std::span<const float> logits = read_logits(b, w);
  if (b.bias) {
    w.scoring.selection_bias.assign(b.bias, b.bias + n_experts_);
  } else {
    w.scoring.selection_bias.clear();
  }
  w.rank.resize(logits.size());
  w.mix.resize(logits.size());
  score(w.scoring, n_experts_, logits, w.rank, w.mix);
  const RouterInput in{w.rank, w.mix, w.tokens, n_experts_, top_k_, b.layer};
  select_plain(in, w.scratch, w.plain);
  policy_->select(in, w.scratch, w.chosen);
  w.weights.resize(static_cast<size_t>(w.chosen.size()));
  finish_weights(w.scoring, n_experts_, w.mix, w.chosen, w.weights);
  w.counters = {};
  count(in, w.plain, w.chosen, w.scratch, w.counters);
  write(b, w);
  give_back(std::move(own));
}

void Router::write(const carpool_routing_batch& b, const Workspace& w) const {
  const int64_t ids_stride = b.ids_stride ? b.ids_stride : b.columns;
  const int64_t weights_stride = b.weights_stride ? b.weights_stride : b.columns;
  const int first_of_batch = w.chosen.size() > 0 ? w.chosen.experts()[0] : 0;
  const int routed = b.columns - n_shared_;
  for (int t = 0; t < b.rows; ++t) {
    const PlainReason reason = w.chosen.reason(t);
    if (b.reasons) b.reasons[t] = static_cast<uint8_t>(reason);
    if (b.in_place && reason != PlainReason::kApplied) continue;
    int32_t* ids = b.ids + t * ids_stride;
    float* weights = b.weights + t * weights_stride;
    const std::span<const int> row = w.chosen.row(t);
    const int n = static_cast<int>(row.size());
    CARPOOL_CHECK(n <= routed);
    std::copy(row.begin(), row.end(), ids);
    std::copy_n(w.weights.begin() + w.chosen.begin(t), n, weights);
    std::fill(ids + n, ids + routed, !repeat_ ? -1 : n > 0 ? row[0] : first_of_batch);
    std::fill(weights + n, weights + routed, 0.0f);
    if (b.in_place) continue;
    const bool pad = w.tokens[static_cast<size_t>(t)].phase == Phase::kPad;
    for (int s = 0; s < n_shared_; ++s) {
      ids[routed + s] = pad && !repeat_ ? -1 : n_experts_ + s;
      weights[routed + s] = pad ? 0.0f : shared_weight_;
    }
  }
}

void Router::read_counters(carpool_routing_counters& out) {
  const std::lock_guard lock(mutex_);
  out.calls = calls_;
  out.distinct_experts = counters_.distinct_experts;
  out.distinct_plain = counters_.distinct_plain;
  out.slots = counters_.slots;
  out.rerouted_rows = counters_.rerouted_tokens;
  out.underfilled_rows = counters_.underfilled_tokens;
  static_assert(kPlainReasons <= CARPOOL_ROUTING_MOST_REASONS);
  std::fill(std::begin(out.plain_rows), std::end(out.plain_rows), 0);
  std::fill(std::begin(out.plain_calls), std::end(out.plain_calls), 0);
  std::copy(counters_.plain_rows.begin(), counters_.plain_rows.end(), out.plain_rows);
  std::copy(counters_.plain_steps.begin(), counters_.plain_steps.end(), out.plain_calls);
}

void Router::reset_counters() {
  const std::lock_guard lock(mutex_);
  calls_ = 0;
  counters_ = {};
}

}  // namespace carpool::capi
