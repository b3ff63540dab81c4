// Cache-prior routing: the bonus by hand, its limits, and what each argument decides.
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

std::shared_ptr<const RoutingTables> resident(const std::vector<uint8_t>& experts, float range = 1) {
  RoutingTables tables{.n_experts = static_cast<int>(experts.size()), .top_k = 3, .layers = {LayerTables{}}};
  tables.layers[0].resident = experts;
  tables.layers[0].rank_range = range;
  tables.check("by hand");
  return std::make_shared<const RoutingTables>(tables);
}

// Plain choices are {0 1 2}, {1 4 5}, {3 5 0}; row 0's scores are .30 .25 .15 .10 .08 .06 .04 .02.
const auto kTables = resident({0, 0, 0, 0, 1, 0, 1, 1});

TEST(CachePrior, ResidentExpertsGetABonusAndWeightsDoNot) {
  const Outcome o = run("cache_prior:table=t,lambda=0.1", hand_checked(), kTables);
  EXPECT_EQ(o.rows[0], (std::vector<int>{0, 1, 4})) << ".08 + .1 beats .15";
  EXPECT_NEAR(o.weights[0][2], .08 / .63, 1e-6) << "by the unbiased score";
  EXPECT_EQ(run("cache_prior:table=t,lambda=0.06", hand_checked(), kTables).rows[0], (std::vector<int>{0, 1, 2}));
}

TEST(CachePrior, TheRangeOfTheCalibrationScalesTheBonus) {
  const auto wide = resident({0, 0, 0, 0, 1, 0, 1, 1}, 2);
  EXPECT_EQ(run("cache_prior:table=t,lambda=0.06", hand_checked(), wide).rows[0], (std::vector<int>{0, 1, 4}));
}

TEST(CachePrior, ALargeBonusTakesResidentExpertsFirstAfterTheKept) {
  const Case c = hand_checked();
  EXPECT_EQ(run("cache_prior:table=t,lambda=100", c, kTables).rows[0], (std::vector<int>{0, 4, 6}));
  EXPECT_EQ(run("cache_prior:table=t,lambda=100,k0=0", c, kTables).rows[0], (std::vector<int>{4, 6, 7}));
  EXPECT_EQ(run("cache_prior:table=t,lambda=100,k0=2", c, kTables).rows[0], (std::vector<int>{0, 1, 4}));
}

TEST(CachePrior, AllNoneOrNoBonusIsPlain) {
  const Case c = hand_checked();
  const Outcome plain = run("topk", c);
  for (const auto& tables : {resident(std::vector<uint8_t>(8, 0)), resident(std::vector<uint8_t>(8, 1))}) {
    EXPECT_EQ(run("cache_prior:table=t,lambda=0.5", c, tables).rows, plain.rows);
  }
  EXPECT_EQ(run("cache_prior:table=t,lambda=0", c, kTables).weights, plain.weights);
  EXPECT_TRUE(make_policy("cache_prior:table=t,lambda=0")->is_plain(3));
  EXPECT_TRUE(make_policy("cache_prior:table=t,lambda=1,k0=3")->is_plain(3));
  EXPECT_FALSE(make_policy("cache_prior:table=t,lambda=1")->is_plain(3));
}

TEST(CachePrior, WhatDoesNotFitIsRefused) {
  for (const char* bad : {"cache_prior", "cache_prior:table=t", "cache_prior:lambda=1", "cache_prior:table=t,lambda=-1",
                          "cache_prior:table=t,lambda=nan"}) {
    EXPECT_THROW(make_policy(bad), Error) << bad;
  }
  EXPECT_THROW(run("cache_prior:table=t,lambda=1,k0=4", hand_checked(), kTables), Error);
}

}  // namespace
}  // namespace carpool
