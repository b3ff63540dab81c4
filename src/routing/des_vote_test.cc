// DES-Vote: the pool by hand, and what it does not protect.
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

// Votes of the K best only: 0: .30 + .10, 1: .25 + .40, 2: .15, 3: .35, 4: .30, 5: .10 + .20.
TEST(DesVote, TheExpertsOfMostVotesAreThePool) {
  const Case c = hand_checked();
  EXPECT_EQ(run("des_vote:m=2", c).rows, (Rows{{0, 1}, {1, 0}, {0, 1}}))
      << "1 with .65 and 0 with .40; row 2 loses its best";
  EXPECT_EQ(run("des_vote:m=3", c).rows, (Rows{{0, 1, 3}, {1, 0, 3}, {3, 0, 1}}));
}

TEST(DesVote, VotesOfAllExpertsCountAlsoThoseThatNoRowWouldTake) {
  const Case c = with_scores(1, {{.40f, .35f, .25f}, {.25f, .35f, .40f}, {.41f, .34f, .25f}, {.25f, .34f, .41f}});
  EXPECT_EQ(run("des_vote:m=1", c).rows, (Rows{{0}, {0}, {0}, {0}})) << ".81 each for 0 and 2";
  EXPECT_EQ(run("des_vote:m=1,vote=all", c).rows, (Rows{{1}, {1}, {1}, {1}})) << "1.38 for 1, 1.31 for 0 and 2";
}

TEST(DesVote, ARowThatFindsNothingRunsItsBestExpert) {
  Case c = with_scores(1, {{9, 1}, {8, 1}, {-test::kInf, 1}});
  c.weight = {9, 1, 8, 1, 0, 1};
  EXPECT_EQ(run("des_vote:m=1", c).rows, (Rows{{0}, {0}, {1}}));
}

}  // namespace
}  // namespace carpool
