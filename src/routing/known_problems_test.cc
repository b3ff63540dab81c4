// Public defects of other engines that concern choosing experts, each as a test of what is right. Those of scores and
// weights are in scoring_test.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/error.h"
#include "routing/cases_test_util.h"
#include "routing/counters.h"
#include "routing/policy.h"
#include "routing/scoring.h"
#include "routing/tables_test_util.h"

namespace carpool {
namespace {

using test::Case;
using test::kInf;
using test::kNan;
using test::Rng;

// With tables for the case, where the policy needs some.
bool fits(Policy& policy, const Case& c) {
  test::prepare(policy, c.n_experts, c.top_k, 1);
  try {
    policy.check(c.n_experts, c.top_k);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Every example of every policy.
std::vector<std::unique_ptr<Policy>> all_policies() {
  std::vector<std::unique_ptr<Policy>> out;
  for (const PolicyInfo& info : policy_list()) {
    for (const std::string& spec : info.examples) out.push_back(make_policy(spec));
  }
  return out;
}

struct Outcome {
  Selection chosen;
  RoutingCounters counters;
};
Outcome outcome_of(const Policy& policy, const Case& c) {
  Outcome out;
  Scratch scratch;
  Selection plain;
  policy.select(c.input(), scratch, out.chosen);
  select_plain(c.input(), scratch, plain);
  count(c.input(), plain, out.chosen, scratch, out.counters);
  return out;
}

// A route that does not exist is -1 elsewhere, and was read as an expert. Here it is no slot: a row has as many as it
// may, down to none, and weights are made and experts counted of those alone.
TEST(KnownProblemT6, ARouteThatDoesNotExistIsNoSlotUnderAnyPolicy) {
  const std::vector<float> none(16, kNan), forbidden(16, -kInf);
  std::vector<float> two(16, -kInf), all(16), share(16, 1.0f / 16);
  two[3] = 1, two[11] = 2;
  for (size_t e = 0; e < all.size(); ++e) all[e] = static_cast<float>(e * 7 % 16);
  Case c{16, 4, {}, {}, {}};
  for (const auto& rank : {all, none, forbidden, two, all}) c.add_row(rank, share);
  c.add_row(all, share, {Phase::kPad, false, 0});
  int tried = 0;
  for (const auto& policy : all_policies()) {
    if (!fits(*policy, c)) continue;
    ++tried;
    SCOPED_TRACE(policy->spec());
    const Outcome out = outcome_of(*policy, c);
    ASSERT_EQ(out.chosen.rows(), 6);
    for (const int e : out.chosen.experts()) {
      ASSERT_GE(e, 0);
      ASSERT_LT(e, 16);
    }
    for (const int row : {1, 2, 5}) EXPECT_TRUE(out.chosen.row(row).empty()) << row;
    for (const int e : out.chosen.row(3)) EXPECT_TRUE(e == 3 || e == 11) << e;
    EXPECT_FALSE(out.chosen.row(0).empty());
    EXPECT_EQ(out.counters.slots, out.chosen.size());
    std::vector<float> weights(static_cast<size_t>(out.chosen.size()) + 1, 77.0f);  // one more, which stays
    finish_weights({}, 16, c.weight, out.chosen, std::span(weights).first(weights.size() - 1));
    EXPECT_EQ(weights.back(), 77.0f);
    weights.pop_back();
    const float most = policy->properties().reweighs ? 1.5f : 1;  // the largest factor in the tables of tests
    for (const float w : weights) EXPECT_TRUE(w > 0 && w <= most) << w;
  }
  EXPECT_GT(tried, 8);
}

std::vector<int64_t> numbers(const RoutingCounters& n) {
  std::vector<int64_t> out = {n.layers, n.distinct_experts, n.distinct_plain,
                              n.slots,  n.rerouted_tokens,  n.underfilled_tokens};
  out.insert(out.end(), n.plain_rows.begin(), n.plain_rows.end());
  out.insert(out.end(), n.plain_steps.begin(), n.plain_steps.end());
  return out;
}

// `c` with rows of `phase` between its own, of whatever scores; `at` are the places of its own.
Case with_rows_between(Rng& rng, const Case& c, Phase phase, std::vector<int>& at) {
  Case out = c.without_rows();
  std::vector<float> rank, weight;
  at.clear();
  for (int t = 0; t <= c.rows(); ++t) {
    for (int n = test::below(rng, 3); n > 0; --n) {
      test::random_row(rng, {}, c.n_experts, rank, weight);
      if (test::chance(rng, 20)) std::fill(rank.begin(), rank.end(), test::chance(rng, 50) ? kNan : kInf);
      out.add_row(rank, weight, {phase, false, test::below(rng, 3)});
    }
    if (t == c.rows()) break;
    at.push_back(out.rows());
    out.add_row_of(c, t);
  }
  return out;
}

// Padding that is not masked widens unions and is counted as experts loaded.
TEST(KnownProblemT7, PaddingChangesNoRowAndNoCounterUnderAnyPolicy) {
  for (const auto& policy : all_policies()) {
    int tried = 0, would_count = 0;
    for (uint64_t seed = 0; seed < 400; ++seed) {
      Rng rng(seed);
      const Case c = test::random_case(rng);
      if (!fits(*policy, c)) continue;
      ++tried;
      const Outcome alone = outcome_of(*policy, c);
      std::vector<int> at;
      Rng again = rng;
      const Outcome padded = outcome_of(*policy, with_rows_between(rng, c, Phase::kPad, at));
      for (int t = 0; t < c.rows(); ++t) {
        const auto want = alone.chosen.row(t), got = padded.chosen.row(at[static_cast<size_t>(t)]);
        ASSERT_TRUE(std::equal(got.begin(), got.end(), want.begin(), want.end()))
            << policy->spec() << " seed " << seed << " row " << t;
      }
      ASSERT_EQ(numbers(padded.counters), numbers(alone.counters)) << policy->spec() << " seed " << seed;
      // The same rows, unmasked.
      const Outcome unmasked = outcome_of(*policy, with_rows_between(again, c, Phase::kDecode, at));
      would_count += unmasked.counters.distinct_experts != alone.counters.distinct_experts;
    }
    EXPECT_GT(would_count, tried / 4) << policy->spec() << ": the rows between would not have been noticed";
  }
}

}  // namespace
}  // namespace carpool
