// top_p: how many experts hold the share, and who is left alone.
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

TEST(TopP, ARowRunsTheFewestExpertsThatHoldTheShare) {
  const Case c = hand_checked();
  EXPECT_EQ(run("top_p:p=0.3", c).rows, (Rows{{0}, {1}, {3}}));
  EXPECT_EQ(run("top_p:p=0.5", c).rows, (Rows{{0, 1}, {1, 4}, {3, 5}}));
  EXPECT_EQ(run("top_p:p=0.99", c).rows, run("topk", c).rows) << "never more than K";
}

TEST(TopP, OnlyDecodeRowsThatAreNotIsolatedAreCut) {
  Case c = hand_checked();
  c.tokens[0].isolated = true;
  c.tokens[1].phase = Phase::kPrefill;
  EXPECT_EQ(run("top_p:p=0.3", c).rows, (Rows{{0, 1, 2}, {1, 4, 5}, {3}}));
  EXPECT_EQ(run("top_p:p=0.3", c).reasons, (std::vector<std::string>{"isolated", "phase", "applied"}));
}

}  // namespace
}  // namespace carpool
