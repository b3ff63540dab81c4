// From router logits to scores and from chosen experts to weights. See scoring.h for the rules and their sources.
#include "routing/scoring.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "routing/exponentials.h"
#include "routing/rank.h"

namespace carpool {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

[[noreturn]] void bad(const std::string& sentence) { throw Error(ErrorKind::kMalformed, sentence); }

// The greatest logit; -inf when none is above that. NaN fails every comparison.
float greatest(std::span<const float> logits) {
  std::array<float, 8> strands;  // one alone would wait for each comparison
  strands.fill(-kInf);
  for (size_t e = 0; e < logits.size(); ++e) {
    float& top = strands[e % strands.size()];
    top = logits[e] > top ? logits[e] : top;
  }
  return *std::max_element(strands.begin(), strands.end());
}

// Softmax over the choosable logits of one row; the rest gets 0.
void softmax(const ExponentialSet& exponentials, std::span<const float> logits, std::span<float> mix) {
  const float top = greatest(logits);
  float sum = 0;
  if (top == kInf) {  // the rest has no mass beside it
    for (size_t e = 0; e < logits.size(); ++e) sum += mix[e] = logits[e] == kInf ? 1.0f : 0.0f;
  } else if (top == -kInf) {
    std::fill(mix.begin(), mix.end(), 0.0f);
  } else {
    sum = exponentials.softmax_terms(logits, top, mix);
  }
  if (sum > 0) {
    for (float& m : mix) m /= sum;
  }
}

// The score of one group of selection scores: its best, or the sum of its two best; experts that cannot be chosen do
// not count, and a group of only such experts scores -inf.
float group_score(Scoring::GroupScore kind, std::span<const float> rank) {
  float first = -kInf, second = -kInf;
  for (float s : rank) {
    if (s > first) {
      second = first;
      first = s;
    } else if (s > second) {
      second = s;
    }
  }
  return kind == Scoring::GroupScore::kTop2 && choosable(second) ? first + second : first;
}

constexpr int kMaxGroups = 1024;  // models have 1 to 8; the bound keeps a row's group scores on the stack

// Sets every selection score outside the row's topk_group best groups to -inf.
void limit_groups(const Scoring& scoring, std::span<float> rank) {
  const auto n_group = static_cast<size_t>(scoring.n_group);
  const auto keep = static_cast<size_t>(scoring.topk_group);
  const size_t size = rank.size() / n_group;
  std::array<float, kMaxGroups> scores;
  std::array<size_t, kMaxGroups> order;
  for (size_t g = 0; g < n_group; ++g) {
    scores[g] = group_score(scoring.group_score, rank.subspan(g * size, size));
    order[g] = g;
  }
  const auto better = [&](size_t a, size_t b) { return scores[a] > scores[b] || (scores[a] == scores[b] && a < b); };
  std::partial_sort(order.begin(), order.begin() + keep, order.begin() + n_group, better);
  for (size_t i = keep; i < n_group; ++i) {
    for (float& s : rank.subspan(order[i] * size, size)) s = -kInf;
  }
}

void score_row(const Scoring& scoring, const ExponentialSet& exponentials, std::span<const float> logits,
               std::span<float> rank, std::span<float> mix) {
  const bool has_bias = !scoring.selection_bias.empty();
  if (scoring.kind == Scoring::Kind::kSigmoid) {
    exponentials.sigmoid(logits, mix);
  } else {
    softmax(exponentials, logits, mix);
  }
  const std::span<const float> selection = scoring.kind == Scoring::Kind::kSoftmaxTopk ? logits : mix;
  const float* bias = has_bias ? scoring.selection_bias.data() : nullptr;
  for (size_t e = 0; e < logits.size(); ++e) rank[e] = bias ? selection[e] + bias[e] : selection[e];
  for (size_t e = 0; e < logits.size(); ++e) {
    const float chosen = choosable(rank[e]) ? rank[e] : -kInf;  // one comparison at a time makes vectors
    rank[e] = choosable(logits[e]) ? chosen : -kInf;
  }
  if (scoring.topk_group < scoring.n_group) limit_groups(scoring, rank);
  if (scoring.kind == Scoring::Kind::kSoftmax && !has_bias) {
    for (size_t e = 0; e < logits.size(); ++e) {
      const float logit = logits[e];
      rank[e] = choosable(rank[e]) ? logit : -kInf;
    }
  }
}

// Weights of row t where every expert counts whole.
void weigh_whole(const Scoring& scoring, const Selection& chosen, int t, std::span<float> weights) {
  for (size_t i = 0; i < weights.size(); ++i) {
    const float own = chosen.mix(chosen.begin(t) + static_cast<int>(i));
    weights[i] = (own >= 0 ? own : 1.0f) * scoring.routed_scaling_factor;
  }
}

// Weights of row t. Entries of `mix` [E] that no score() writes (NaN, negative, inf) are tolerated: the first two weigh
// 0, infinite ones share the row. A divisor of the row's own stands in for the sum over the row and is always applied;
// a sum of its own stands in where the model's rule divides by one.
void weigh_row(const Scoring& scoring, std::span<const float> mix, const Selection& chosen, int t,
               std::span<float> weights) {
  const std::span<const int> experts = chosen.row(t);
  if (scoring.unit_weights) return weigh_whole(scoring, chosen, t, weights);
  const float divisor = chosen.divisor(t);
  const bool divide = divisor > 0 || scoring.renormalize || scoring.kind == Scoring::Kind::kSoftmaxTopk;
  float sum = 0;
  for (size_t i = 0; i < experts.size(); ++i) {
    const float own = chosen.mix(chosen.begin(t) + static_cast<int>(i));
    const float m = own >= 0 ? own : mix[static_cast<size_t>(experts[i])];
    weights[i] = m > 0 ? m : 0.0f;
    sum += weights[i];
  }
  if (sum == kInf) {
    sum = 0;
    for (float& w : weights) sum += w = w == kInf ? 1.0f : 0.0f;
  }
  if (chosen.sum(t) > 0 && chosen.sum(t) < kInf) sum = chosen.sum(t);
  if (divisor > 0) sum = divisor;
  for (float& w : weights) {
    if (divide) w = sum > 0 ? w / sum : 1.0f / static_cast<float>(experts.size());
    w *= scoring.routed_scaling_factor;
  }
}

}  // namespace

void Scoring::check(int n_experts, int top_k) const {
  if (n_experts < 1) bad(fmt::format("the number of experts is {}, it must be at least 1", n_experts));
  if (top_k < 1 || top_k > n_experts) {
    bad(fmt::format("{} experts per token of {} experts: must be 1 to {}", top_k, n_experts, n_experts));
  }
  if (n_group > kMaxGroups) bad(fmt::format("n_group {} is more than {}", n_group, kMaxGroups));
  if (n_group < 1 || n_experts % n_group != 0) {
    bad(fmt::format("n_group {} does not divide {} experts", n_group, n_experts));
  }
  if (topk_group < 1 || topk_group > n_group) {
    bad(fmt::format("topk_group {} must be 1 to n_group {}", topk_group, n_group));
  }
  const int group_size = n_experts / n_group;
  if (topk_group < n_group && group_score == GroupScore::kTop2 && group_size < 2) {
    bad(fmt::format("n_group {} leaves {} expert per group, top-2 group scores need 2", n_group, group_size));
  }
  if (top_k > topk_group * group_size) {
    bad(fmt::format("{} experts per token, but topk_group {} groups of {} hold only {}", top_k, topk_group, group_size,
                    topk_group * group_size));
  }
  if (!selection_bias.empty() && selection_bias.size() != static_cast<size_t>(n_experts)) {
    bad(fmt::format("the selection bias has {} values for {} experts", selection_bias.size(), n_experts));
  }
  const auto finite = [](float b) { return std::isfinite(b); };
  const auto wrong = std::find_if_not(selection_bias.begin(), selection_bias.end(), finite);
  if (wrong != selection_bias.end()) {
    bad(fmt::format("the selection bias of expert {} is not finite", wrong - selection_bias.begin()));
  }
  if (unit_weights && (renormalize || kind == Kind::kSoftmaxTopk)) {
    bad("experts that all weigh 1 are not divided by a sum: neither renormalised nor a softmax over the chosen");
  }
  if (!std::isfinite(routed_scaling_factor) || routed_scaling_factor <= 0) {
    bad(fmt::format("routed_scaling_factor {} must be finite and above 0", routed_scaling_factor));
  }
}

void score(const Scoring& scoring, int n_experts, std::span<const float> logits, std::span<float> rank,
           std::span<float> mix) {
  const auto width = static_cast<size_t>(n_experts);
  CARPOOL_CHECK(width > 0 && logits.size() % width == 0 && rank.size() == logits.size() && mix.size() == logits.size());
  const ExponentialSet& exponentials = exponential_sets().back();
  for (size_t at = 0; at < logits.size(); at += width) {
    score_row(scoring, exponentials, logits.subspan(at, width), rank.subspan(at, width), mix.subspan(at, width));
  }
}

void finish_weights(const Scoring& scoring, int n_experts, std::span<const float> mix, const Selection& chosen,
                    std::span<float> weights) {
  CARPOOL_CHECK(weights.size() == static_cast<size_t>(chosen.size()));
  CARPOOL_CHECK(mix.size() == static_cast<size_t>(n_experts) * static_cast<size_t>(chosen.rows()));
  for (int t = 0; t < chosen.rows(); ++t) {
    const std::span<const int> row = chosen.row(t);
    if (row.empty()) continue;
    const auto width = static_cast<size_t>(n_experts);
    weigh_row(scoring, mix.subspan(static_cast<size_t>(t) * width, width), chosen, t,
              weights.subspan(static_cast<size_t>(chosen.begin(t)), row.size()));
  }
}

}  // namespace carpool
