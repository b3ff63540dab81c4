// Runs a policy on small inputs written by hand. Used by the tests of single policies.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "routing/cases_test_util.h"
#include "routing/policy.h"
#include "routing/scoring.h"

namespace carpool::test {

using Rows = std::vector<std::vector<int>>;

struct Outcome {
  Rows rows;
  std::vector<std::string> reasons;
  std::vector<float> divisors;
  std::vector<std::vector<float>> weights;  // by the rule of a softmax model that divides by the sum
};

inline Outcome run(const std::string& spec, const Case& c, std::shared_ptr<const RoutingTables> tables = nullptr) {
  const auto policy = make_policy(spec);
  if (tables) policy->use_tables(std::move(tables));
  policy->check(c.n_experts, c.top_k);
  Scratch scratch;
  Selection chosen;
  policy->select(c.input(), scratch, chosen);
  std::vector<float> weights(static_cast<size_t>(chosen.size()));
  finish_weights(Scoring{}, c.n_experts, c.weight, chosen, weights);
  Outcome outcome;
  for (int t = 0; t < chosen.rows(); ++t) {
    outcome.rows.emplace_back(chosen.row(t).begin(), chosen.row(t).end());
    outcome.reasons.emplace_back(name(chosen.reason(t)));
    outcome.divisors.push_back(chosen.divisor(t));
    outcome.weights.emplace_back(weights.begin() + chosen.begin(t), weights.begin() + chosen.end(t));
  }
  return outcome;
}

inline Case with_scores(int top_k, const std::vector<std::vector<float>>& scores) {
  Case c{static_cast<int>(scores[0].size()), top_k, {}, {}, {}};
  for (const auto& row : scores) c.add_row(row, row);
  return c;
}

// Three tokens, eight experts, K = 3: softmax scores small enough to route by hand. Plain routing takes {0 1 2},
// {1 4 5} and {3 5 0}: experts 0 to 5.
inline Case hand_checked() {
  return with_scores(3, {{.30f, .25f, .15f, .10f, .08f, .06f, .04f, .02f},
                         {.05f, .40f, .02f, .03f, .30f, .10f, .06f, .04f},
                         {.10f, .05f, .10f, .35f, .05f, .20f, .10f, .05f}});
}

}  // namespace carpool::test
