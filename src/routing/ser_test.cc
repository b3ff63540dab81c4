// ser: what is skipped, what is not, and that t = 0 is plain routing.
#include <gtest/gtest.h>

#include "base/error.h"
#include "routing/policy_run_test_util.h"

namespace carpool {
namespace {

using test::Case;
using test::hand_checked;
using test::Rows;
using test::run;
using test::with_scores;

// Weights as shares of the best: 1 .83 .5; 1 .75 .25; 1 .57 .29.
TEST(Ser, ExpertsOfLittleWeightBesideTheBestAreSkipped) {
  const Case c = hand_checked();
  EXPECT_EQ(run("ser:k_min=1,t=0.6", c).rows, (Rows{{0, 1}, {1, 4}, {3}}));
  EXPECT_EQ(run("ser:k_min=2,t=0.6", c).rows, (Rows{{0, 1}, {1, 4}, {3, 5}}));
  EXPECT_EQ(run("ser:k_min=1,t=1", c).rows, (Rows{{0}, {1}, {3}}));
  EXPECT_EQ(run("ser:k_min=1,t=0", c).rows, run("topk", c).rows);
  EXPECT_TRUE(make_policy("ser:k_min=1,t=0")->is_plain(3));
  EXPECT_TRUE(make_policy("ser:k_min=3,t=1")->is_plain(3));
  EXPECT_FALSE(make_policy("ser:k_min=1,t=0.1")->is_plain(3));
}

// A selection bias can rank an expert behind a lighter one: what is kept is a prefix of the ranks all the same.
TEST(Ser, KeepsAPrefixOfTheRanks) {
  Case c = with_scores(3, {{4, 3, 2, 1}});
  c.weight = {1.0f, 0.1f, 0.9f, 0.0f};
  EXPECT_EQ(run("ser:k_min=1,t=0.5", c).rows, (Rows{{0}}));
}

}  // namespace
}  // namespace carpool
