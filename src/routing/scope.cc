// Groups, guards and plain choices shared by the policies. See scope.h.
#include "routing/scope.h"

#include "routing/policy.h"

namespace carpool {

ExpertSets::ExpertSets(Scratch& scratch, int count, int n_experts)
    : words_((static_cast<size_t>(n_experts) + 63) / 64) {
  ensure(scratch.sets, words_ * static_cast<size_t>(count));
  bits_ = scratch.sets.data();
  std::fill_n(bits_, words_ * static_cast<size_t>(count), uint64_t{0});
}

int ExpertSets::size(int set) const {
  int n = 0;
  for (size_t w = 0; w < words_; ++w) n += std::popcount(bits_[static_cast<size_t>(set) * words_ + w]);
  return n;
}

PlainReason own_reason(const TokenInfo& token) {
  if (token.phase == Phase::kPad) return PlainReason::kPhase;
  if (token.isolated) return PlainReason::kIsolated;
  return token.phase == Phase::kDecode ? PlainReason::kApplied : PlainReason::kPhase;
}

int number_groups(const RouterInput& in, Scratch& scratch) {
  std::vector<int>& groups = scratch.groups;
  groups.clear();
  for (const TokenInfo& token : in.tokens) {
    const bool repeats_last = !groups.empty() && groups.back() == token.group;
    if (token.phase != Phase::kPad && !repeats_last) groups.push_back(token.group);
  }
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());

  ensure(scratch.group_of_row, in.tokens.size());
  scratch.group_rows.assign(groups.size(), 0);
  for (int t = 0; t < in.rows(); ++t) {
    const TokenInfo& token = in.tokens[t];
    if (token.phase == Phase::kPad) {
      scratch.group_of_row[t] = -1;
      continue;
    }
    const auto found = std::lower_bound(groups.begin(), groups.end(), token.group);
    const auto g = found - groups.begin();
    scratch.group_of_row[t] = static_cast<int>(g);
    if (own_reason(token) == PlainReason::kApplied) ++scratch.group_rows[g];
  }
  return static_cast<int>(groups.size());
}

void guard_batch(const RouterInput& in, const BatchGuards& guards, Scratch& scratch) {
  const auto pads = std::count_if(in.tokens.begin(), in.tokens.end(),
                                  [](const TokenInfo& token) { return token.phase == Phase::kPad; });
  const bool too_many = in.rows() - pads > guards.max_rows;
  scratch.verdict.assign(scratch.groups.size(), too_many ? PlainReason::kMaxRows : PlainReason::kApplied);
  for (size_t g = 0; g < scratch.groups.size(); ++g) {
    if (scratch.group_rows[g] < guards.min_batch) scratch.verdict[g] = PlainReason::kMinBatch;
  }
}

std::span<const int> base_set(const RouterInput& in, int t, int k0, double p, Scratch& scratch) {
  const std::span<const int> best = best_ranked(in.rank_row(t), k0, scratch);
  if (p >= 1) return best;
  const std::span<const float> weights = in.weight_row(t);
  const auto weight = [&](size_t e) { return weights[e] > 0 ? static_cast<double>(weights[e]) : 0.0; };
  double total = 0;
  for (size_t e = 0; e < weights.size(); ++e) total += weight(e);
  double mass = 0;
  for (size_t i = 0; i < best.size(); ++i) {
    mass += weight(static_cast<size_t>(best[i]));
    if (mass >= p * total) return best.first(i + 1);
  }
  return best;
}

void push_plain(const RouterInput& in, int t, PlainReason reason, Scratch& scratch, Selection& out) {
  if (in.tokens[t].phase != Phase::kPad) {
    for (int expert : best_ranked(in.rank_row(t), in.top_k, scratch)) out.push(expert);
  }
  out.end_row(reason);
}

void select_all_plain(const RouterInput& in, PlainReason reason, Scratch& scratch, Selection& out) {
  out.start(in.rows(), in.top_k);
  for (int t = 0; t < in.rows(); ++t) {
    const bool pad = in.tokens[t].phase == Phase::kPad;
    push_plain(in, t, pad ? PlainReason::kPhase : reason, scratch, out);
  }
}

void select_plain(const RouterInput& in, Scratch& scratch, Selection& out) {
  select_all_plain(in, PlainReason::kPolicy, scratch, out);
}

}  // namespace carpool
