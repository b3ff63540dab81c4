// Affinity bins: votes by hand, and confident rows.
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

// Bins of half a nat below the row's best: row 0: 0, 1 (ln .25/.3 = -.18) and 2 (-.69): bins 0 -1 -2, votes 256 128 64.
// Row 1: 1: 256, 4 (-.29): 128, 5 (-1.39): bin -3: 32. Row 2: 3: 256, 5 (-.56): bin -2: 64, 0 (-1.25): bin -3: 32.
// Sums: 0: 288, 1: 384, 2: 64, 3: 256, 4: 128, 5: 96.
TEST(LynxBins, NearnessToTheBestIsTheVote) {
  const Case c = hand_checked();
  EXPECT_EQ(run("lynx_bins:m=2,sure=1", c).rows, (Rows{{0, 1}, {1, 0}, {0, 1}}));
  EXPECT_EQ(run("lynx_bins:m=3,sure=1", c).rows, (Rows{{0, 1, 3}, {1, 0, 3}, {3, 0, 1}}));
  EXPECT_EQ(run("lynx_bins:m=4,sure=1", c).rows, (Rows{{0, 1, 3}, {1, 4, 0}, {3, 0, 1}}));
}

// Shares of the best: .43, .50, .54.
TEST(LynxBins, AConfidentRowKeepsItsBest) {
  const Case c = hand_checked();
  EXPECT_EQ(run("lynx_bins:m=2,sure=0.52", c).rows, (Rows{{1, 3}, {1, 3}, {3, 1}}))
      << "row 2 keeps 3, and 1 has most votes";
}

TEST(LynxBins, SigmoidWeightsAreComparedByTheirOdds) {
  // Weights .9 and .6: 0.41 nats as they stand, 1.79 nats of odds: bins -1 and -4.
  Case c = with_scores(2, {{.9f, .6f, 0, 0}, {0, .3f, .9f, .85f}, {0, .61f, .9f, 0}});
  // softmax: 0: 256, 1: 128 + 128, 2: 512, 3: 128.  sigmoid: 0: 256, 1: 16 + 16, 2: 512, 3: 128.
  EXPECT_EQ(run("lynx_bins:m=3,sure=1", c).rows[1], (std::vector<int>{2, 1}));
  EXPECT_EQ(run("lynx_bins:m=3,sure=1,scores=sigmoid", c).rows[1], (std::vector<int>{2, 3}));
}

}  // namespace
}  // namespace carpool
