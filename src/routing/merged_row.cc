#include "routing/merged_row.h"

#include <algorithm>

namespace carpool {

MergedRow::MergedRow(const RouterInput& in, int t, Scratch& scratch) : in_(in), t_(t), scratch_(scratch) {
  const auto E = static_cast<size_t>(in.n_experts);
  if (scratch.shares.size() < E) scratch.shares.resize(E, Selection::kOwnMix);
  scratch.merged.clear();
  scratch.merged.reserve(E);
}

void MergedRow::add(int expert, float mix) {
  float& share = scratch_.shares[static_cast<size_t>(expert)];
  if (share < 0) {
    scratch_.merged.push_back(expert);
    share = 0;
  }
  share += mix;
}

void MergedRow::end(const Divisor& divisor, float plain_sum, Selection& out) {
  const std::span<const float> rank = in_.rank_row(t_);
  const auto score = [&](int e) { return rank[static_cast<size_t>(e)]; };
  std::sort(scratch_.merged.begin(), scratch_.merged.end(),
            [&](int a, int b) { return score(a) > score(b) || (score(a) == score(b) && a < b); });
  float total = 0;
  for (const int expert : scratch_.merged) {
    float& share = scratch_.shares[static_cast<size_t>(expert)];
    out.push(expert, share);
    total += share;
    share = Selection::kOwnMix;  // as the next row finds it
  }
  const bool final = divisor.kind == Divisor::Kind::kFinal;
  out.end_row(PlainReason::kApplied, final ? total : divisor.of(in_, t_, {}, scratch_), plain_sum);
}

}  // namespace carpool
