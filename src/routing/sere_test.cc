// SERE: re-routing by hand, merged slots, and what each argument decides.
#include <gtest/gtest.h>

#include "base/error.h"
#include "routing/policy_run_test_util.h"
#include "routing/tables_test_util.h"

namespace carpool {
namespace {

using test::Case;
using test::hand_checked;
using test::Outcome;
using test::Rows;
using test::run;

// Eight experts that are alike in nothing but what `pairs` says.
std::shared_ptr<const RoutingTables> alike(const std::vector<std::tuple<int, int, float>>& pairs) {
  auto tables = std::make_shared<RoutingTables>();
  tables->n_experts = 8;
  tables->top_k = 3;
  std::vector<float>& s = tables->layers.emplace_back().similarity;
  s.assign(64, 0);
  for (size_t e = 0; e < 8; ++e) s[9 * e] = 1;
  for (const auto& [a, b, value] : pairs) s[static_cast<size_t>(8 * a + b)] = value;
  tables->check("by hand");
  return tables;
}

// Plain choices are {0 1 2}, {1 4 5}, {3 5 0}; the best of each, 0 1 3, are primary.
const auto kTables = alike({{2, 1, .6f}, {2, 3, .5f}, {4, 0, .05f}, {4, 3, .09f}, {5, 3, .9f}});

void expect_near(const std::vector<float>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6) << "slot " << i;
}

TEST(Sere, SlotsMoveToTheMostSimilarPrimaryExpertAndAreMerged) {
  const Outcome o = run("sere:table=t,k0=1", hand_checked(), kTables);
  EXPECT_EQ(o.rows, (Rows{{0, 1}, {1, 4, 3}, {3, 0}})) << "2 to 1; 4 is critical, 5 to 3; 5 to 3";
  expect_near(o.weights[0], {.30 / .70, .40 / .70});
  expect_near(o.weights[1], {.40 / .80, .30 / .80, .10 / .80});
  expect_near(o.weights[2], {.55 / .65, .10 / .65});
}

TEST(Sere, RhoDecidesWhichExpertsAreCritical) {
  const Case c = hand_checked();
  EXPECT_EQ(run("sere:table=t,k0=1,rho=0", c, kTables).rows[1], (std::vector<int>{1, 3})) << "4 to 3, too";
  EXPECT_EQ(run("sere:table=t,k0=1,rho=0.7", c, kTables).rows, (Rows{{0, 1, 2}, {1, 4, 3}, {3, 0}}));
  const Outcome none = run("sere:table=t,k0=1,rho=1", c, kTables), plain = run("topk", c);
  EXPECT_EQ(none.rows, plain.rows) << "nothing is so similar";
  EXPECT_EQ(none.weights, plain.weights) << "and the weights are the same in every bit";
}

TEST(Sere, MoreKeptExpertsMoveFewerSlots) {
  const Case c = hand_checked();
  EXPECT_EQ(run("sere:table=t,k0=2", c, kTables).rows, (Rows{{0, 1}, {1, 4, 5}, {3, 5, 0}})) << "primary: 0 1 3 4 5";
  EXPECT_EQ(run("sere:table=t,k0=3", c, kTables).rows, run("topk", c).rows);
  EXPECT_TRUE(make_policy("sere:table=t,k0=3")->is_plain(3));
  EXPECT_FALSE(make_policy("sere:table=t,k0=3")->is_plain(4));
}

TEST(Sere, EqualSimilaritiesGoToTheLowerId) {
  const auto tied = alike({{2, 1, .5f}, {2, 3, .5f}, {2, 0, .5f}});
  EXPECT_EQ(run("sere:table=t,k0=1", hand_checked(), tied).rows[0], (std::vector<int>{0, 1}));
  EXPECT_NEAR(run("sere:table=t,k0=1", hand_checked(), tied).weights[0][0], .45 / .70, 1e-6) << "0 has 2's weight";
}

TEST(Sere, AnExpertThatTheRowMayNotChooseIsNoTarget) {
  Case c = hand_checked();
  c.rank[1] = -test::kInf;  // row 0 may not choose 1: its plain choice is 0 2 3
  EXPECT_EQ(run("sere:table=t,k0=1", c, kTables).rows[0], (std::vector<int>{0, 3})) << "2 to 3, not to 1";
}

TEST(Sere, PadsIsolatedRowsAndOtherGroupsMakeNoExpertPrimary) {
  Case c = hand_checked();
  c.add_row({0, 0, 9, 0, 0, 0, 0, 0}, {0, 0, 9, 0, 0, 0, 0, 0}, {Phase::kPad, false, 0});
  c.add_row({0, 0, 9, 0, 0, 0, 0, 0}, {0, 0, 9, 0, 0, 0, 0, 0}, {Phase::kDecode, true, 0});
  c.add_row({0, 0, 9, 0, 0, 0, 0, 0}, {0, 0, 9, 0, 0, 0, 0, 0}, {Phase::kDecode, false, 1});
  const Outcome o = run("sere:table=t,k0=1", c, kTables), without = run("sere:table=t,k0=1", hand_checked(), kTables);
  for (size_t t = 0; t < 3; ++t) EXPECT_EQ(o.rows[t], without.rows[t]) << t;
  EXPECT_EQ(o.reasons[4], "isolated");
  EXPECT_EQ(o.reasons[5], "min_batch");
}

TEST(Sere, TheNormDividesByWhatItSays) {
  const Case c = hand_checked();
  expect_near(run("sere:table=t,k0=1,norm=none", c, kTables).weights[0], {.30, .40});
  expect_near(run("sere:table=t,k0=1,norm=1", c, kTables).weights[0], {.30 / .30, .40 / .30});
}

TEST(Sere, ALayerWithoutTablesIsPlain) {
  auto tables = std::make_shared<RoutingTables>(*kTables);
  tables->layers.insert(tables->layers.begin(), LayerTables{});
  EXPECT_EQ(run("sere:table=t,k0=1", hand_checked(), tables).rows, run("topk", hand_checked()).rows);
}

TEST(Sere, WhatDoesNotFitIsRefused) {
  for (const char* bad : {"sere", "sere:k0=1", "sere:table=t", "sere:table=,k0=1", "sere:table=t,k0=0",
                          "sere:table=t,k0=1,rho=2", "sere:table=t,k0=1,rho=-0.1", "sere:table=a\"b,k0=1"}) {
    EXPECT_THROW(make_policy(bad), Error) << bad;
  }
  EXPECT_THROW(run("sere:table=t,k0=4", hand_checked(), kTables), Error) << "K is 3";
  EXPECT_THROW(run("sere:table=t,k0=1", hand_checked()), Error) << "no tables";
}

}  // namespace
}  // namespace carpool
