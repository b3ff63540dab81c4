// Plain routing: exact order, ties, and scores that are no numbers.
#include <gtest/gtest.h>

#include "routing/cases_test_util.h"
#include "routing/oracle_test_util.h"
#include "routing/policy.h"
#include "routing/rank.h"

namespace carpool {
namespace {

using test::kInf;
using test::kNan;

std::vector<int> top(const std::vector<float>& scores, int k) {
  test::Case c{static_cast<int>(scores.size()), k, {}, {}, {}};
  c.add_row(scores, scores);
  Scratch scratch;
  Selection chosen;
  make_policy("topk")->select(c.input(), scratch, chosen);
  return {chosen.row(0).begin(), chosen.row(0).end()};
}

TEST(TopK, TakesTheBestByFallingScore) { EXPECT_EQ(top({1, 5, 3, 4}, 3), (std::vector<int>{1, 3, 2})); }

TEST(TopK, EqualScoresGoToTheLowerId) {
  EXPECT_EQ(top({2, 2, 2, 2}, 3), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(top({1, 2, 2, 1, 2}, 4), (std::vector<int>{1, 2, 4, 0}));
  EXPECT_EQ(top({2, 2}, 1), (std::vector<int>{0}));
}

TEST(TopK, NegativeZeroEqualsZero) { EXPECT_EQ(top({-0.0f, 0.0f, -0.0f}, 2), (std::vector<int>{0, 1})); }

TEST(TopK, NanAndMinusInfinityAreNeverChosenAndInfinityIs) {
  EXPECT_EQ(top({kNan, 1, -kInf, kInf, -5}, 5), (std::vector<int>{3, 1, 4}));
  EXPECT_EQ(top({kNan, -kInf}, 2), std::vector<int>{});
}

TEST(TopK, PadsHaveNoExperts) {
  test::Case c{3, 2, {}, {}, {}};
  c.add_row({1, 2, 3}, {1, 2, 3}, {Phase::kPad, false, 0});
  c.add_row({1, 2, 3}, {1, 2, 3});
  Scratch scratch;
  Selection chosen;
  select_plain(c.input(), scratch, chosen);
  EXPECT_EQ(chosen.row(0).size(), 0u);
  EXPECT_EQ(chosen.reason(0), PlainReason::kPhase);
  EXPECT_EQ(chosen.row(1).size(), 2u);
  EXPECT_EQ(chosen.reason(1), PlainReason::kPolicy);
}

// best_ranked() inserts into short lists and sorts long ones: the border must not show.
TEST(TopK, ShortAndLongListsFollowTheSameOrder) {
  test::Rng rng(7);
  std::vector<float> rank, weight;
  Scratch scratch;
  for (int round = 0; round < 300; ++round) {
    test::random_row(rng, {round % 2 == 0, round % 3 == 0, false}, 100, rank, weight);
    test::Case c{100, 100, {}, {}, {}};
    c.add_row(rank, weight);
    const std::vector<int> want = oracle::ranked(c.input(), 0);
    for (int limit : {0, 1, 31, 32, 33, 99, 100, 1000}) {
      const auto got = best_ranked(rank, limit, scratch);
      EXPECT_EQ(std::vector<int>(got.begin(), got.end()), oracle::first(want, static_cast<size_t>(limit)));
    }
  }
}

}  // namespace
}  // namespace carpool
