// XShare: the pool by hand, and what each argument decides.
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

// Sums over the rows: .45 .70 .27 .48 .43 .36 .20 .11, so by weight 1 3 0 4 5 2 6 7. Best experts: 0, 1, 3.
TEST(XShare, TheBestOfEachRowComeFirstThenTheLargestSums) {
  const Case c = hand_checked();
  EXPECT_EQ(run("xshare:m=3", c).rows, (Rows{{0, 1, 3}, {1, 0, 3}, {3, 0, 1}}));
  EXPECT_EQ(run("xshare:m=4", c).rows, (Rows{{0, 1, 3}, {1, 4, 0}, {3, 0, 1}})) << "4 joins";
  EXPECT_EQ(run("xshare:m=2", c).rows, run("xshare:m=3", c).rows) << "protected experts may exceed the budget";
  EXPECT_EQ(run("xshare:m=2,k0=0", c).rows, (Rows{{1, 3}, {1, 3}, {3, 1}})) << "without protection";
  EXPECT_EQ(run("xshare:m=5,k0=2", c).rows, run("oea:k0=2", c).rows) << "no room beyond the base sets: OEA";
}

TEST(XShare, AShareIsOfWhatPlainRoutingLoads) {
  const Case c = hand_checked();
  EXPECT_EQ(run("xshare:m=50%", c).rows, run("xshare:m=3", c).rows);
  EXPECT_EQ(run("xshare:m=51%", c).rows, run("xshare:m=4", c).rows) << "3.06 of 6 is rounded up";
}

TEST(XShare, AGroupWithinTheBudgetStaysPlainUnlessTheGuardIsOff) {
  const Case c = with_scores(1, {{.4f, .35f, .25f}, {.3f, .36f, .34f}, {.1f, .45f, .45f}});
  EXPECT_EQ(run("xshare:m=2", c).rows, (Rows{{0}, {1}, {1}}));
  EXPECT_EQ(run("xshare:m=2", c).reasons, std::vector<std::string>(3, "budget"));
  EXPECT_EQ(run("xshare:m=2,guard=off,k0=0", c).rows, (Rows{{1}, {1}, {1}})) << "2 outweighs 0, no row prefers it to 1";
}

TEST(XShare, KeptExpertsStayWherePlainRoutingHasThem) {
  const Case c = hand_checked();
  EXPECT_EQ(run("xshare:m=3,always=2", c).rows[0], (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(run("xshare:m=3,always=0.2", c).rows[0], (std::vector<int>{0, 1, 2})) << "in layer 0, which this is";
  EXPECT_EQ(run("xshare:m=3,always=1.2", c).rows[0], (std::vector<int>{0, 1, 3})) << "in layer 1 alone";
  EXPECT_EQ(run("xshare:m=3,always=7", c).rows, run("xshare:m=3", c).rows) << "no row's plain choice has 7";
}

TEST(XShare, EachGroupHasItsOwnPool) {
  Case c = hand_checked();
  c.tokens[2].group = 1;
  EXPECT_EQ(run("xshare:m=2,min_batch=1,guard=off", c).rows, (Rows{{0, 1}, {1, 0}, {3, 5}}));
}

TEST(XShare, ArgumentsThatDoNotFitTheLayerAreRefused) {
  const auto policy = make_policy("xshare:m=9,k0=4,always=3");
  EXPECT_THROW(policy->check(8, 6), Error) << "m";
  EXPECT_THROW(policy->check(16, 3), Error) << "k0";
  EXPECT_NO_THROW(policy->check(16, 6));
  EXPECT_THROW(make_policy("xshare:m=2,always=16")->check(16, 6), Error);
  for (const char* bad : {"xshare", "xshare:m=0", "xshare:m=0%", "xshare:m=101%", "xshare:m=%", "xshare:m=3,always=",
                          "xshare:m=3,always=1+", "xshare:m=3,norm=", "xshare:m=3,norm=0", "xshare:m=3,norm=sum"}) {
    EXPECT_THROW(make_policy(bad), Error) << bad;
  }
}

}  // namespace
}  // namespace carpool
