// Several policies in one step: each row as if the rows of the other policies were not there.
#include "routing/policy_set.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "routing/cases_test_util.h"
#include "routing/counters.h"
#include "routing/tables_test_util.h"

namespace carpool {
namespace {

struct Policies {
  std::vector<std::unique_ptr<Policy>> owned;
  std::vector<const Policy*> list;
  explicit Policies(const std::vector<std::string>& specs) {
    for (const std::string& spec : specs) list.push_back(owned.emplace_back(make_policy(spec)).get());
  }
};

Selection select(const Policy& policy, const test::Case& c) {
  Scratch scratch;
  Selection out;
  policy.select(c.input(), scratch, out);
  return out;
}

void expect_same_row(const Selection& a, int t, const Selection& b, int u, const std::string& what) {
  EXPECT_EQ(std::vector<int>(a.row(t).begin(), a.row(t).end()), std::vector<int>(b.row(u).begin(), b.row(u).end()))
      << what;
  EXPECT_EQ(a.reason(t), b.reason(u)) << what;
}

TEST(PolicySet, RowsAreChosenAsInSeparateBatchesOfEachPolicy) {
  test::Rng rng(11);
  int mixed = 0;
  for (int i = 0; i < 3000; ++i) {
    test::Case c = test::random_case(rng);
    const auto spec = [&] {  // guards that look at the whole step are another test
      std::string s = test::random_oea_spec(rng, c);
      return s.find("max_rows") == std::string::npos ? s : std::string("topk");
    };
    const Policies policies({"topk", spec(), spec()});
    for (TokenInfo& token : c.tokens) token.policy = test::below(rng, 3);
    const Selection together = select(PolicySet(policies.list), c);
    ASSERT_EQ(together.rows(), c.rows());
    for (int p = 0; p < 3; ++p) {
      test::Case own = c.without_rows();
      std::vector<int> rows;
      for (int t = 0; t < c.rows(); ++t) {
        if (c.tokens[static_cast<size_t>(t)].policy != p) continue;
        own.add_row_of(c, t);
        rows.push_back(t);
      }
      const Selection alone = select(*policies.list[static_cast<size_t>(p)], own);
      for (size_t u = 0; u < rows.size(); ++u) {
        const std::string what = "case " + std::to_string(i) + " row " + std::to_string(rows[u]);
        expect_same_row(together, rows[u], alone, static_cast<int>(u), what);
      }
      mixed += !rows.empty() && own.rows() < c.rows() && p > 0;
    }
  }
  EXPECT_GT(mixed, 2000) << "the cases must mix policies";
}

TEST(PolicySet, OnePolicyOrRowsOfOnePolicyOnlyAreThatPolicyExactly) {
  test::Rng rng(12);
  for (int i = 0; i < 1000; ++i) {
    test::Case c = test::random_case(rng);
    const Policies policies({test::random_oea_spec(rng, c), "topk"});
    const Selection expected = select(*policies.list[0], c);
    for (const size_t n : {size_t{1}, size_t{2}}) {
      const Selection got = select(PolicySet({policies.list.begin(), policies.list.begin() + static_cast<long>(n)}), c);
      ASSERT_EQ(got.rows(), expected.rows());
      for (int t = 0; t < c.rows(); ++t) expect_same_row(got, t, expected, t, "case " + std::to_string(i));
    }
  }
}

TEST(PolicySet, SlotsThatStandForOthersKeepWhatTheyCount) {
  const auto sere = make_policy("sere:table=t,k0=1,rho=0"), topk = make_policy("topk");
  sere->use_tables(test::random_tables(6, 3, 4));
  test::Case c{6, 3, {}, {}, {}};
  for (int t = 0; t < 3; ++t) {
    std::vector<float> row = {.3f, .2f, .2f, .1f, .1f, .1f};
    std::rotate(row.begin(), row.begin() + t, row.end());
    TokenInfo token;
    token.policy = t == 2 ? 1 : 0;
    c.add_row(row, row, token);
  }
  const Selection together = select(PolicySet({sere.get(), topk.get()}), c);
  test::Case two = c.without_rows();
  for (int t = 0; t < 2; ++t) two.add_row_of(c, t);
  const Selection alone = select(*sere, two);
  for (int t = 0; t < 2; ++t) {
    expect_same_row(together, t, alone, t, "sere");
    EXPECT_EQ(together.sum(t), alone.sum(t));
    EXPECT_GT(alone.sum(t), 0);
    for (int i = 0; i < static_cast<int>(alone.row(t).size()); ++i) {
      EXPECT_EQ(together.mix(together.begin(t) + i), alone.mix(alone.begin(t) + i));
      EXPECT_GE(alone.mix(alone.begin(t) + i), 0);
    }
  }
  EXPECT_EQ(together.sum(2), 0);
}

// K = 3 of 6. Rows 0 and 1 like {0,1,2}, rows 2 and 3 like {5,4,3}.
test::Case four_rows(const std::vector<int>& policy_of_row) {
  test::Case c{6, 3, {}, {}, {}};
  for (size_t t = 0; t < policy_of_row.size(); ++t) {
    std::vector<float> row = {6, 5, 4, 3, 2, 1};
    if (t >= 2) std::reverse(row.begin(), row.end());
    TokenInfo token;
    token.policy = policy_of_row[t];
    c.add_row(row, row, token);
  }
  return c;
}

TEST(PolicySet, RowsOfAnotherPolicyCountForTheGuardOfTheStepAndNotForThatOfTheGroup) {
  const Policies policies({"oea:k0=2,min_batch=3,guard=off", "oea:k0=2,max_rows=3,guard=off", "topk"});
  const PolicySet set(policies.list);
  EXPECT_EQ(select(set, four_rows({0, 0, 0, 2})).reason(0), PlainReason::kApplied);
  EXPECT_EQ(select(set, four_rows({0, 0, 2, 2})).reason(0), PlainReason::kMinBatch);
  EXPECT_EQ(select(set, four_rows({1, 1, 2})).reason(0), PlainReason::kApplied);
  EXPECT_EQ(select(set, four_rows({1, 1, 2, 2})).reason(0), PlainReason::kMaxRows);
}

TEST(PolicySet, ARowWhosePolicyIsNotThereStaysPlain) {
  const Policies policies({"oea:k0=1,guard=off", "topk"});
  const Selection got = select(PolicySet(policies.list), four_rows({0, 7, 0, -1}));
  EXPECT_EQ(got.reason(0), PlainReason::kApplied);
  for (const int t : {1, 3}) {
    EXPECT_EQ(got.reason(t), PlainReason::kPolicy);
    EXPECT_EQ(got.row(t).size(), 3u);
  }
}

TEST(PolicySet, CountersTakeTheRowsOfEachPolicyForAGroupOfTheirOwn) {
  const Policies policies({"topk", "oea:k0=1,guard=off", "oea:k0=1,min_batch=9"});
  const test::Case c = four_rows({0, 1, 1, 2});
  Scratch scratch;
  Selection plain, chosen;
  PolicySet(policies.list).select(c.input(), scratch, chosen);
  select_plain(c.input(), scratch, plain);
  RoutingCounters n;
  std::vector<RowRouting> rows(4);
  count(c.input(), plain, chosen, scratch, n, rows);
  const auto at = [](const auto& by_reason, PlainReason reason) { return by_reason[static_cast<size_t>(reason)]; };
  EXPECT_EQ(at(n.plain_steps, PlainReason::kPolicy), 1);
  EXPECT_EQ(at(n.plain_steps, PlainReason::kMinBatch), 1);
  EXPECT_EQ(at(n.plain_rows, PlainReason::kApplied), 2);
  EXPECT_EQ(n.rerouted_tokens, 2) << "rows 1 and 2 share {0, 5}";
  EXPECT_EQ(n.underfilled_tokens, 2);
  EXPECT_EQ(rows[0].rerouted + rows[3].rerouted, 0);
  EXPECT_EQ(rows[1].rerouted + rows[2].underfilled, 2);
  EXPECT_EQ(at(rows[0].reasons, PlainReason::kPolicy), 1);
  EXPECT_EQ(at(rows[1].reasons, PlainReason::kApplied), 1);
  EXPECT_EQ(at(rows[3].reasons, PlainReason::kMinBatch), 1);
}

TEST(PolicySet, RowCountersSumToThoseOfTheStepOverLayers) {
  test::Rng rng(13);
  for (int i = 0; i < 300; ++i) {
    test::Case c = test::random_case(rng);
    const Policies policies({"topk", test::random_oea_spec(rng, c)});
    for (TokenInfo& token : c.tokens) token.policy = test::below(rng, 2);
    Scratch scratch;
    Selection plain, chosen;
    RoutingCounters total;
    std::vector<RowRouting> rows(static_cast<size_t>(c.rows()));
    PolicySet(policies.list).select(c.input(), scratch, chosen);
    select_plain(c.input(), scratch, plain);
    for (int layer = 0; layer < 2; ++layer) count(c.input(), plain, chosen, scratch, total, rows);
    RoutingCounters sums;
    for (const RowRouting& row : rows) {
      sums.rerouted_tokens += row.rerouted;
      sums.underfilled_tokens += row.underfilled;
      for (size_t r = 0; r < row.reasons.size(); ++r) sums.plain_rows[r] += row.reasons[r];
    }
    EXPECT_EQ(sums.rerouted_tokens, total.rerouted_tokens);
    EXPECT_EQ(sums.underfilled_tokens, total.underfilled_tokens);
    EXPECT_EQ(sums.plain_rows, total.plain_rows);
  }
}

TEST(PolicySet, SaysWhatAllItsPoliciesSay) {
  const Policies policies({"topk", "oea:k0=3"});
  const PolicySet set(policies.list);
  EXPECT_EQ(set.spec(), "topk | oea:k0=3");
  EXPECT_TRUE(set.is_plain(3));
  EXPECT_FALSE(set.is_plain(4));
  EXPECT_THROW(set.check(8, 2), Error);
  EXPECT_NO_THROW(set.check(8, 3));
  EXPECT_FALSE(set.properties().batch_free);
  EXPECT_TRUE(PolicySet({policies.list[0]}).properties().batch_free);
  EXPECT_TRUE(PolicySet({policies.list[1]}).properties().keeps_top_k0);
}

}  // namespace
}  // namespace carpool
