// Lynx: who is dropped, and that dropping nothing is not an option.
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

// Choices of plain routing: 0 twice, 1 twice, 5 twice, 2, 3 and 4 once.
TEST(Lynx, TheExpertsThatFewestRowsChoseAreDropped) {
  const Case c = hand_checked();
  EXPECT_EQ(run("lynx:drop=3", c).rows, (Rows{{0, 1, 5}, {1, 5, 0}, {5, 0, 1}}));
  EXPECT_EQ(run("lynx:drop=50%", c).rows, run("lynx:drop=3", c).rows);
  EXPECT_EQ(run("lynx:drop=1", c).rows, (Rows{{0, 1, 2}, {1, 5, 0}, {3, 5, 0}})) << "4: equal counts keep the lower id";
  EXPECT_EQ(run("lynx:drop=8", c).rows, (Rows{{0}, {0}, {0}})) << "one expert is left";
}

TEST(Lynx, HasNoBudgetGuardBecauseItAlwaysDrops) {
  EXPECT_THROW(make_policy("lynx:drop=1,guard=off"), Error);
  EXPECT_THROW(make_policy("lynx:drop=0"), Error);
}

}  // namespace
}  // namespace carpool
