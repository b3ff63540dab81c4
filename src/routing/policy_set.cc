// Lets every policy choose for the whole step and keeps what it chose for its own rows. See policy_set.h.
#include "routing/policy_set.h"

#include <algorithm>

#include "base/error.h"
#include "routing/scope.h"

namespace carpool {
namespace {

PolicyProperties common_properties(const std::vector<const Policy*>& policies) {
  if (policies.size() == 1) return policies[0]->properties();
  // Unions, base sets and bounds on experts are of one policy's rows; of all rows together only this is left.
  PolicyProperties common{.batch_free = true, .by_rank = true};
  for (const Policy* policy : policies) {
    common.batch_free = common.batch_free && policy->properties().batch_free;
    common.by_rank = common.by_rank && policy->properties().by_rank;
    common.may_repeat = common.may_repeat || policy->properties().may_repeat;
    common.ids_decide = common.ids_decide || policy->properties().ids_decide;
    common.uses_tables = common.uses_tables || policy->properties().uses_tables;
    common.reweighs = common.reweighs || policy->properties().reweighs;
  }
  return common;
}

bool is_pad(const TokenInfo& token) { return token.phase == Phase::kPad; }
bool decides(int policy, const TokenInfo& token) { return !is_pad(token) && token.policy == policy; }

}  // namespace

PolicySet::PolicySet(std::vector<const Policy*> policies) : policies_(std::move(policies)) {
  CARPOOL_CHECK(!policies_.empty());
  properties_ = common_properties(policies_);
}

void PolicySet::select(const RouterInput& in, Scratch& scratch, Selection& out) const {
  const int n = static_cast<int>(policies_.size());
  if (n == 1) return policies_[0]->select(in, scratch, out);
  if (scratch.parts.size() < policies_.size()) scratch.parts.resize(policies_.size());
  ensure(scratch.tokens, in.tokens.size());
  const auto pads = std::count_if(in.tokens.begin(), in.tokens.end(), is_pad);
  for (int p = 0; p < n; ++p) {
    const auto own = std::count_if(in.tokens.begin(), in.tokens.end(), [p](const auto& t) { return decides(p, t); });
    if (own == 0) continue;
    if (own + pads == in.rows()) return policies_[static_cast<size_t>(p)]->select(in, scratch, out);
    RouterInput seen = in;
    seen.tokens = std::span(scratch.tokens).first(in.tokens.size());
    for (size_t t = 0; t < in.tokens.size(); ++t) {
      scratch.tokens[t] = in.tokens[t];
      if (!decides(p, in.tokens[t])) scratch.tokens[t].isolated = true;
    }
    policies_[static_cast<size_t>(p)]->select(seen, scratch, scratch.parts[static_cast<size_t>(p)]);
  }
  out.start(in.rows(), in.n_experts);
  for (int t = 0; t < in.rows(); ++t) {
    const TokenInfo& token = in.tokens[static_cast<size_t>(t)];
    const int p = token.policy;
    if (p < 0 || p >= n || is_pad(token)) {
      push_plain(in, t, is_pad(token) ? PlainReason::kPhase : PlainReason::kPolicy, scratch, out);
      continue;
    }
    const Selection& part = scratch.parts[static_cast<size_t>(p)];
    for (int slot = part.begin(t); slot < part.end(t); ++slot) {
      out.push(part.experts()[static_cast<size_t>(slot)], part.mix(slot));
    }
    out.end_row(part.reason(t), part.divisor(t), part.sum(t));
  }
}

std::string PolicySet::spec() const {
  std::string out;
  for (const Policy* policy : policies_) out += (out.empty() ? "" : " | ") + policy->spec();
  return out;
}

bool PolicySet::is_plain(int top_k) const {
  return std::all_of(policies_.begin(), policies_.end(), [top_k](const Policy* p) { return p->is_plain(top_k); });
}

void PolicySet::check(int n_experts, int top_k) const {
  for (const Policy* policy : policies_) policy->check(n_experts, top_k);
}

}  // namespace carpool
