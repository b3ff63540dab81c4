// OEA: the paper's hand-checked example, and each argument on an input where it decides. The general truth is in
// brute_force_test.cc and contract_test.cc.
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "base/error.h"
#include "routing/cases_test_util.h"
#include "routing/policy_run_test_util.h"
#include "routing/scoring.h"

namespace carpool {
namespace {

using test::Case;
using test::hand_checked;
using test::Outcome;
using test::Rows;
using test::run;
using test::with_scores;

// Base sets of k0 = 1: {0}, {0} in group 0, {3} in group 1.
Case two_groups() {
  Case c = with_scores(2, {{4, 3, 2, 1}, {4, 1, 2, 3}, {1, 2, 3, 4}});
  c.tokens[2].group = 1;
  return c;
}

TEST(Oea, TheHandCheckedExampleHolds) {
  const Case c = hand_checked();
  EXPECT_EQ(run("oea:k0=1", c).rows, (Rows{{0, 1, 3}, {1, 0, 3}, {3, 0, 1}}));
  EXPECT_EQ(run("oea:k0=2", c).rows, (Rows{{0, 1, 3}, {1, 4, 5}, {3, 5, 0}}));
  EXPECT_EQ(run("oea:k0=3", c).rows, (Rows{{0, 1, 2}, {1, 4, 5}, {3, 5, 0}}));
  EXPECT_EQ(run("oea:k0=3", c).rows, run("topk", c).rows);
}

TEST(Oea, TheHandCheckedWeightsAreTheScoresDividedByTheirSum) {
  const Case c = hand_checked();
  Scratch scratch;
  Selection chosen;
  make_policy("oea:k0=1")->select(c.input(), scratch, chosen);
  std::vector<float> w(9);
  finish_weights(Scoring{}, 8, c.weight, chosen, w);
  const float want[] = {.4615f, .3846f, .1538f, .8333f, .1042f, .0625f, .7f, .2f, .1f};
  for (size_t i = 0; i < 9; ++i) EXPECT_NEAR(w[i], want[i], 5.1e-5f) << "slot " << i;  // the page rounds to 4 digits
}

TEST(Oea, SwitchedOffItIsPlainWithReasonPolicy) {
  const Outcome off = run("oea:k0=0", hand_checked());
  EXPECT_EQ(off.rows, run("topk", hand_checked()).rows);
  EXPECT_EQ(off.reasons, (std::vector<std::string>{"policy", "policy", "policy"}));
}

TEST(Oea, ASingleRowStaysPlainByDefaultAndIsPrunedInThePapersForm) {
  const Case c = with_scores(3, {{5, 4, 3, 2}});
  EXPECT_EQ(run("oea:k0=1", c).rows, (Rows{{0, 1, 2}}));
  EXPECT_EQ(run("oea:k0=1", c).reasons[0], "min_batch");
  EXPECT_EQ(run("oea:k0=1,min_batch=1", c).reasons[0], "union");
  EXPECT_EQ(run("oea:k0=1,min_batch=1,guard=off", c).rows, (Rows{{0}}));
}

TEST(Oea, MinBatchCountsOnlyEligibleRowsOfTheGroup) {
  Case c = hand_checked();
  EXPECT_EQ(run("oea:k0=1,min_batch=3", c).reasons[0], "applied");
  EXPECT_EQ(run("oea:k0=1,min_batch=4", c).reasons[0], "min_batch");
  c.tokens[2].isolated = true;
  EXPECT_EQ(run("oea:k0=2,min_batch=3", c).reasons, (std::vector<std::string>{"min_batch", "min_batch", "isolated"}));
  c.tokens[2] = {Phase::kPrefill, false, 0};
  EXPECT_EQ(run("oea:k0=2,min_batch=3", c).reasons, (std::vector<std::string>{"min_batch", "min_batch", "phase"}));
  c.tokens[2] = {Phase::kDecode, false, 9};
  EXPECT_EQ(run("oea:k0=2,min_batch=3", c).reasons, (std::vector<std::string>(3, "min_batch")));
}

TEST(Oea, MaxRowsCountsEveryRowThatIsNotPadding) {
  Case c = hand_checked();
  EXPECT_EQ(run("oea:k0=1,max_rows=3", c).reasons[0], "applied");
  EXPECT_EQ(run("oea:k0=1,max_rows=2", c).reasons[0], "max_rows");
  c.tokens[2].phase = Phase::kPad;
  EXPECT_EQ(run("oea:k0=2,max_rows=2", c).reasons, (std::vector<std::string>{"applied", "applied", "phase"}));
  c.tokens[2].phase = Phase::kPrefill;
  EXPECT_EQ(run("oea:k0=2,max_rows=2", c).reasons, (std::vector<std::string>{"max_rows", "max_rows", "phase"}));
}

TEST(Oea, RowsFillOnlyFromTheirOwnGroup) {
  const Outcome o = run("oea:k0=1,min_batch=1,guard=off", two_groups());
  EXPECT_EQ(o.rows, (Rows{{0}, {0}, {3}}));
  Case one = two_groups();
  one.tokens[2].group = 0;
  EXPECT_EQ(run("oea:k0=1,min_batch=1,guard=off", one).rows, (Rows{{0, 3}, {0, 3}, {3, 0}}));
}

TEST(Oea, TheUnionGuardLooksAtEachGroup) {
  Case c = with_scores(2, {{4, 3, 2, 1}, {3, 4, 2, 1}, {1, 2, 3, 4}, {1, 2, 3, 4}});
  c.tokens[2].group = c.tokens[3].group = 1;
  const Outcome o = run("oea:k0=1", c);
  EXPECT_EQ(o.reasons, (std::vector<std::string>{"applied", "applied", "union", "union"}));
  EXPECT_EQ(o.rows, (Rows{{0, 1}, {1, 0}, {3, 2}, {3, 2}}));
}

TEST(Oea, AMassBelowOneEndsBaseSetsEarly) {
  // Row 0 reaches half of its mass with expert 0, row 1 only with experts 3 and 2.
  const Case c = with_scores(2, {{.6f, .2f, .1f, .1f}, {.1f, .2f, .3f, .4f}});
  EXPECT_EQ(run("oea:k0=2,guard=off", c).rows, (Rows{{0, 1}, {3, 2}}));
  EXPECT_EQ(run("oea:k0=2,p=0.5,guard=off", c).rows, (Rows{{0, 2}, {3, 2}}));
}

TEST(Oea, TheMassIsAShareSoScoresNeedNotSumToOne) {
  Case c = with_scores(2, {{.6f, .2f, .1f, .1f}, {.1f, .2f, .3f, .4f}});
  for (float& w : c.weight) w *= 4;
  EXPECT_EQ(run("oea:k0=2,p=0.5,guard=off", c).rows, (Rows{{0, 2}, {3, 2}}));
}

TEST(Oea, AMassOfOneOrMoreIsNeverReachedEarly) {
  // All weight lies on expert 0 in float32, yet k0 = 2 holds.
  const Case c = with_scores(2, {{1, 1e-20f, 1e-30f, 0}, {1, 1e-20f, 1e-30f, 0}});
  EXPECT_EQ(run("oea:k0=2", c).rows, (Rows{{0, 1}, {0, 1}}));
  EXPECT_EQ(run("oea:k0=2,p=1.5,guard=off", c).rows, (Rows{{0, 1}, {0, 1}}));
  EXPECT_EQ(run("oea:k0=2,p=0.999,guard=off", c).rows, (Rows{{0}, {0}}));
}

TEST(Oea, KMaxBoundsARowAboveAndBelowK) {
  const Case c = hand_checked();
  EXPECT_EQ(run("oea:k0=1,k_max=2,guard=off", c).rows, (Rows{{0, 1}, {1, 0}, {3, 0}}));
  EXPECT_EQ(run("oea:k0=2,k_max=5", c).rows[0], (std::vector<int>{0, 1, 3, 4, 5}));
}

TEST(Oea, MaxPBoundsTheRankThatMayBeTaken) {
  const Case c = hand_checked();
  EXPECT_EQ(run("oea:k0=1,max_p=3", c).rows, (Rows{{0, 1}, {1}, {3, 0}}));
  EXPECT_EQ(run("oea:k0=1,max_p=4", c).rows[0], (std::vector<int>{0, 1, 3}));
}

TEST(Oea, AnUnderfilledRowMayKeepItsPlainChoice) {
  const Case c = hand_checked();
  const Outcome keep = run("oea:k0=1,max_p=4,underfill=keep", c);
  EXPECT_EQ(keep.rows, (Rows{{0, 1, 3}, {1, 4, 5}, {3, 5, 0}}));
  EXPECT_EQ(keep.reasons, (std::vector<std::string>{"applied", "union", "union"}));
}

TEST(Oea, PrefillRowsLendOnlyWhenAskedAndAreNeverReRouted) {
  Case c = with_scores(2, {{4, 3, 2, 1}, {4, 3, 1, 2}, {1, 2, 3, 4}});
  c.tokens[2].phase = Phase::kPrefill;
  EXPECT_EQ(run("oea:k0=1,guard=off", c).rows, (Rows{{0}, {0}, {3, 2}}));
  EXPECT_EQ(run("oea:k0=1,guard=off,lend=prefill", c).rows, (Rows{{0, 3}, {0, 3}, {3, 2}}));
  c.tokens[2].isolated = true;
  EXPECT_EQ(run("oea:k0=1,guard=off,lend=prefill", c).rows, (Rows{{0}, {0}, {3, 2}}));
}

TEST(Oea, TheUnionGrowsWithK0AndWithTheMass) {
  const auto used = [](const std::string& spec, const Case& c) {
    std::set<int> all;
    for (const auto& row : run(spec, c).rows) all.insert(row.begin(), row.end());
    return all;
  };
  for (uint64_t seed = 0; seed < 500; ++seed) {
    test::Rng rng(seed);
    Case c{16, 6, {}, {}, {}};
    std::vector<float> rank, weight;
    for (int t = 0; t < 5; ++t) {
      test::random_row(rng, {seed % 2 == 0, seed % 3 == 0, false}, 16, rank, weight);
      c.add_row(rank, weight);
    }
    std::set<int> last;
    for (int k0 = 1; k0 <= 6; ++k0) {
      const std::set<int> now = used("oea:guard=off,k0=" + std::to_string(k0), c);
      EXPECT_TRUE(std::includes(now.begin(), now.end(), last.begin(), last.end())) << "seed " << seed << " k0 " << k0;
      EXPECT_EQ(now, used("oea:guard=off,k_max=9,k0=" + std::to_string(k0), c)) << "seed " << seed;
      EXPECT_EQ(now, used("oea:guard=off,max_p=8,k0=" + std::to_string(k0), c)) << "seed " << seed;
      last = now;
    }
    last.clear();
    for (const char* p : {"0.2", "0.4", "0.6", "0.8", "1"}) {
      const std::set<int> now = used(std::string("oea:guard=off,k0=6,p=") + p, c);
      EXPECT_TRUE(std::includes(now.begin(), now.end(), last.begin(), last.end())) << "seed " << seed << " p " << p;
      last = now;
    }
  }
}

TEST(Oea, SettingsThatDoNotFitTheModelAreRefusedInOneSentence) {
  const auto message = [](const std::string& spec) -> std::string {
    try {
      make_policy(spec)->check(16, 4);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kConfig);
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(message("oea:k0=4,k_max=16,max_p=16"), "");
  EXPECT_EQ(message("oea:k0=5"), "policy oea:k0=5: k0 5 is more than the model's 4 experts per token");
  EXPECT_EQ(message("oea:k0=2,k_max=17"), "policy oea:k0=2,k_max=17: k_max 17 is more than the layer's 16 experts");
  EXPECT_EQ(message("oea:k0=2,k_max=1"), "policy oea:k0=2,k_max=1: k_max 1 is less than k0 2");
  EXPECT_EQ(message("oea:k0=2,max_p=17"), "policy oea:k0=2,max_p=17: max_p 17 is more than the layer's 16 experts");
  EXPECT_EQ(message("oea:k0=3,max_p=2"), "policy oea:k0=3,max_p=2: max_p 2 is less than k0 3");
}

TEST(Oea, AListGivesEachLayerItsOwnK0) {
  const auto policy = make_policy("oea:k0=2/1/0/3,guard=off");
  EXPECT_EQ(policy->spec(), "oea:k0=2/1/0/3,guard=off");
  EXPECT_EQ(policy->layers(), 4);
  EXPECT_EQ(make_policy("oea:k0=2")->layers(), 0);
  policy->check(8, 3);
  const test::Case c = test::hand_checked();
  Scratch scratch;
  Selection got, want;
  const std::pair<int, const char*> cases[] = {{0, "oea:k0=2,guard=off"},
                                               {1, "oea:k0=1,guard=off"},
                                               {2, "oea:k0=0"},
                                               {3, "oea:k0=3,guard=off"},
                                               {4, "oea:k0=0"}};
  for (const auto& [layer, spec] : cases) {
    RouterInput in = c.input();
    in.layer = layer;
    policy->select(in, scratch, got);
    make_policy(spec)->select(in, scratch, want);
    EXPECT_TRUE(std::equal(got.experts().begin(), got.experts().end(), want.experts().begin(), want.experts().end()))
        << layer;
    EXPECT_EQ(got.reason(0), want.reason(0)) << layer;
  }
  EXPECT_THROW(policy->check(8, 2), Error) << "a k0 of 3";
  EXPECT_THROW(make_policy("oea:k0=2/1,k_max=1")->check(8, 3), Error) << "k_max below a k0";
  EXPECT_TRUE(make_policy("oea:k0=0/3/3")->is_plain(3));
  EXPECT_FALSE(make_policy("oea:k0=0/3/2")->is_plain(3));
  EXPECT_FALSE(make_policy("oea:k0=0/3,norm=topk")->is_plain(3));
  check_layers(*policy, 4);
  check_layers(*make_policy("oea:k0=2"), 7);
  EXPECT_THROW(check_layers(*policy, 5), Error);
  EXPECT_THROW(check_layers(*make_policy("bands:2=topk;4=oea:k0=2/1"), 3), Error);
  EXPECT_THROW(make_policy("bands:2=oea:k0=1/1/1;4=oea:k0=2/1"), Error) << "lists of two lengths";
}

TEST(Oea, ItKnowsWhenItIsPlain) {
  EXPECT_TRUE(make_policy("oea:k0=0")->is_plain(4));
  EXPECT_TRUE(make_policy("oea:k0=4,min_batch=3,lend=prefill")->is_plain(4));
  EXPECT_TRUE(make_policy("oea:k0=4,k_max=4")->is_plain(4));
  EXPECT_FALSE(make_policy("oea:k0=3")->is_plain(4));
  EXPECT_FALSE(make_policy("oea:k0=4,k_max=5")->is_plain(4));
  EXPECT_FALSE(make_policy("oea:k0=4,p=0.5")->is_plain(4));
}

// Unions of the hand-checked rows: 3, 5 and 6 experts for k0 = 1, 2, 3.
TEST(Oea, AutoTakesTheLargestK0WhoseUnionTheTargetHolds) {
  const Case c = hand_checked();
  const auto rows_of = [&](const std::string& spec) { return run(spec, c).rows; };
  EXPECT_EQ(rows_of("oea:k0=auto,t=3"), rows_of("oea:k0=1"));
  EXPECT_EQ(rows_of("oea:k0=auto,t=4"), rows_of("oea:k0=1"));
  EXPECT_EQ(rows_of("oea:k0=auto,t=5"), rows_of("oea:k0=2"));
  EXPECT_EQ(rows_of("oea:k0=auto,t=50%"), rows_of("oea:k0=1")) << "3 of 6";
  EXPECT_EQ(rows_of("oea:k0=auto,t=80%"), rows_of("oea:k0=2")) << "4.8 of 6 is rounded up";
  const auto plain = run("oea:k0=auto,t=6", c);
  EXPECT_EQ(plain.rows, rows_of("topk"));
  EXPECT_EQ(plain.reasons, std::vector<std::string>(3, "budget"));
  EXPECT_EQ(rows_of("oea:k0=auto,t=1"), rows_of("oea:k0=1")) << "a target below the smallest union gets that union";
}

TEST(Oea, AutoFindsEachGroupItsOwn) {
  Case c = hand_checked();
  for (const TokenInfo& token : hand_checked().tokens) {
    const int t = c.rows() - 3;
    c.add_row_of(c, t);
    c.tokens.back() = token;
    c.tokens.back().group = 1;
  }
  c.add_row({8, 7, 6, 5, 4, 3, 2, 1}, {8, 7, 6, 5, 4, 3, 2, 1}, {Phase::kDecode, false, 1});  // {0} {0 1} {0 1 2}
  EXPECT_EQ(run("oea:k0=auto,t=5", c).rows[3], (std::vector<int>{0, 1, 3})) << "{0 1 3 4 5} with the best two";
  c.tokens.back().group = 0;
  EXPECT_EQ(run("oea:k0=auto,t=5", c).rows[0], (std::vector<int>{0, 1, 3}));
}

TEST(Oea, AutoAndItsTargetNeedEachOther) {
  EXPECT_THROW(make_policy("oea:k0=auto"), Error);
  EXPECT_THROW(make_policy("oea:k0=2,t=5"), Error);
}

TEST(Oea, AFloorKeepsOutExpertsOfLittleWeight) {
  const Case c = hand_checked();
  EXPECT_EQ(run("oea:k0=1", c).rows, (Rows{{0, 1, 3}, {1, 0, 3}, {3, 0, 1}}));
  EXPECT_EQ(run("oea:k0=1,floor=0.3", c).rows, (Rows{{0, 1, 3}, {1}, {3}})) << ".1/.3, .05/.4 and .1/.35 of the best";
  EXPECT_EQ(run("oea:k0=1,floor=0.28", c).rows, (Rows{{0, 1, 3}, {1}, {3, 0}}));
}

TEST(Oea, AFloorNeverCutsTheBaseSet) {
  Case c = with_scores(3, {{4, 3, 2, 1}, {1, 2, 3, 4}});
  std::fill(c.weight.begin(), c.weight.end(), 0.0f);
  c.weight[0] = c.weight[7] = 1;
  EXPECT_EQ(run("oea:k0=2,floor=1", c).rows[0].front(), 0);
  EXPECT_GE(run("oea:k0=2,floor=1", c).rows[0].size(), 2u);
}

TEST(Oea, TheNormSaysWhatWeightsAreDividedBy) {
  const Case c = hand_checked();
  const auto divisor = [&](const std::string& norm) { return run("oea:k0=1,norm=" + norm, c).divisors[1]; };
  EXPECT_EQ(divisor("model"), 0);
  EXPECT_FLOAT_EQ(divisor("final"), .40f + .05f + .03f);
  EXPECT_FLOAT_EQ(divisor("topk"), .40f + .30f + .10f);
  EXPECT_FLOAT_EQ(divisor("4"), .40f + .30f + .10f + .06f);
  EXPECT_EQ(divisor("none"), 1);
}

}  // namespace
}  // namespace carpool
