// Scores and weights: each model's rule on numbers that can be checked, and inputs that break careless versions.
#include "routing/scoring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <set>

#include "base/error.h"
#include "routing/cases_test_util.h"
#include "routing/policy.h"
#include "routing/tables_test_util.h"

namespace carpool {
namespace {

using test::kInf;
using test::kNan;
using Kind = Scoring::Kind;
constexpr float kEps = std::numeric_limits<float>::epsilon();

struct Scores {
  std::vector<float> rank, mix;
};
Scores scores(const Scoring& scoring, const std::vector<float>& logits, int n_experts = 0) {
  Scores s{std::vector<float>(logits.size()), std::vector<float>(logits.size())};
  score(scoring, n_experts ? n_experts : static_cast<int>(logits.size()), logits, s.rank, s.mix);
  return s;
}

struct Routed {
  std::vector<int> experts;
  std::vector<float> weights;
};
Routed route(const Scoring& scoring, const std::vector<float>& logits, int top_k) {
  const Scores s = scores(scoring, logits);
  const TokenInfo token;
  const RouterInput in{s.rank, s.mix, {&token, 1}, static_cast<int>(logits.size()), top_k, 0};
  Scratch scratch;
  Selection chosen;
  select_plain(in, scratch, chosen);
  Routed r{{chosen.experts().begin(), chosen.experts().end()}, {}};
  r.weights.resize(r.experts.size());
  finish_weights(scoring, in.n_experts, s.mix, chosen, r.weights);
  return r;
}

double sum(const std::vector<float>& values) {
  double total = 0;
  for (float v : values) total += v;
  return total;
}

TEST(Scoring, SoftmaxIsTheTextbookOne) {
  const Scores s = scores({}, {1, 2, 3});
  const double z = std::exp(1.0) + std::exp(2.0) + std::exp(3.0);
  for (size_t e = 0; e < 3; ++e) EXPECT_NEAR(s.mix[e], std::exp(1.0 + static_cast<double>(e)) / z, 4 * kEps);
}

TEST(Scoring, ScoresAreTheRoundedRealNumbers) {
  // What lets other implementations get the same bits: no error of an exponential is left in float32.
  std::vector<float> logits;
  for (int i = -130'000; i <= 130'000; ++i) logits.push_back(static_cast<float>(i) / 1000);
  const Scores s = scores({.kind = Kind::kSigmoid}, logits);
  const Scores pair = scores({}, logits, 1);  // rows of one expert
  for (size_t i = 0; i < logits.size(); ++i) {
    const long double x = logits[i];
    ASSERT_EQ(s.mix[i], static_cast<float>(1 / (1 + std::exp(-x)))) << logits[i];
    ASSERT_EQ(pair.mix[i], 1.0f);
  }
  for (size_t i = 0; i + 1 < logits.size(); i += 7) {
    const float low = -std::abs(logits[i]);
    const float e = static_cast<float>(std::exp(static_cast<long double>(low)));
    const Scores two = scores({}, {0, low});
    ASSERT_EQ(two.mix[1], e / (1 + e)) << low;
  }
}

TEST(Scoring, WithoutRenormalisingWeightsAreTheFullSoftmax) {
  const Scoring scoring{.renormalize = false};
  const Routed r = route(scoring, {1, 2, 3}, 2);
  EXPECT_EQ(r.experts, (std::vector<int>{2, 1}));
  EXPECT_EQ(r.weights, (std::vector<float>{scores(scoring, {1, 2, 3}).mix[2], scores(scoring, {1, 2, 3}).mix[1]}));
  EXPECT_LT(sum(r.weights), 0.95);
}

TEST(Scoring, SoftmaxOverTheChosenSumsToOneWhateverRenormalizeSays) {
  const Routed r = route({.kind = Kind::kSoftmaxTopk, .renormalize = false}, {1, 2, 3}, 2);
  const double z = std::exp(2.0) + std::exp(3.0);
  EXPECT_NEAR(r.weights[0], std::exp(3.0) / z, 8 * kEps);
  EXPECT_NEAR(r.weights[1], std::exp(2.0) / z, 8 * kEps);
}

TEST(Scoring, SigmoidKeepsItsDigitsAtBothEnds) {
  const Scores s = scores({.kind = Kind::kSigmoid}, {-80, -16, 0, 16, 200, -200, -95});
  const double want[] = {std::exp(-80.0), 1 / (1 + std::exp(16.0)), 0.5, 1 / (1 + std::exp(-16.0)), 1};
  for (size_t e = 0; e < 5; ++e) EXPECT_NEAR(s.mix[e] / want[e], 1, 4 * kEps) << "logit " << e;
  EXPECT_EQ(s.mix[5], 0);
  EXPECT_GT(s.mix[6], 0) << "exp(95) is infinite in float32, the sigmoid of -95 is a denormal";
}

TEST(Scoring, TheBiasRanksAndTheSigmoidWeighs) {
  Scoring scoring{.kind = Kind::kSigmoid, .selection_bias = {0, 0, 5}};
  const Routed r = route(scoring, {3, 2, -3}, 2);
  EXPECT_EQ(r.experts, (std::vector<int>{2, 0}));
  const double a = 1 / (1 + std::exp(3.0)), b = 1 / (1 + std::exp(-3.0));
  EXPECT_NEAR(r.weights[0], a / (a + b), 8 * kEps);
  EXPECT_NEAR(r.weights[1], b / (a + b), 8 * kEps);
}

// sigmoid + bias - bias is 0 here, and 0 / 0 has been the bug.
TEST(KnownProblemT1, TinySigmoidsUnderALargeBiasStillMakeExactWeights) {
  Scoring scoring{.kind = Kind::kSigmoid, .selection_bias = {34.5f, 34.5f + 4e-6f, 34.5f, 34.5f - 4e-6f}};
  const std::vector<float> logits = {-16.0f, -16.5f, -15.5f, -16.0f};
  const Routed r = route(scoring, logits, 2);
  EXPECT_EQ(r.experts, (std::vector<int>{1, 0}));  // the bias alone decides; 0 and 2 tie
  const double a = 1 / (1 + std::exp(16.5)), b = 1 / (1 + std::exp(16.0));
  EXPECT_NEAR(r.weights[0] / (a / (a + b)), 1, 8 * kEps);
  EXPECT_NEAR(r.weights[1] / (b / (a + b)), 1, 8 * kEps);
}

// In bfloat16 the values 7 + i / 1000 are all 7.
TEST(KnownProblemT2, BiasesThatCollapseInBfloat16StillRank) {
  Scoring scoring{.kind = Kind::kSigmoid};
  for (int e = 0; e < 16; ++e) scoring.selection_bias.push_back(7 + 1e-3f * static_cast<float>(e));
  EXPECT_EQ(route(scoring, std::vector<float>(16, 0.25f), 4).experts, (std::vector<int>{15, 14, 13, 12}));
}

TEST(KnownProblemT3, TheRoutedScaleIsAppliedExactlyOnce) {
  for (const Kind kind : {Kind::kSoftmax, Kind::kSoftmaxTopk, Kind::kSigmoid}) {
    for (const float factor : {1.0f, 1.8f, 2.5f, 2.827f}) {
      Scoring scoring{.kind = kind, .routed_scaling_factor = factor};
      const Routed r = route(scoring, {0.5f, -1, 2, 0.25f, 1}, 3);
      EXPECT_NEAR(sum(r.weights) / factor, 1, 4 * kEps) << "factor " << factor;
      scoring.routed_scaling_factor = 1;
      const Routed unscaled = route(scoring, {0.5f, -1, 2, 0.25f, 1}, 3);
      for (size_t i = 0; i < 3; ++i) EXPECT_EQ(r.weights[i], unscaled.weights[i] * factor);
    }
  }
}

// Four groups of two: best single expert in group 3, best pair in group 0.
TEST(Scoring, GroupsAreScoredByTheirBestOrByTheirTwoBest) {
  const std::vector<float> logits = {2, 2, 1, 1, 0, 0, 3, -9};
  Scoring scoring{.kind = Kind::kSigmoid, .n_group = 4, .topk_group = 1};
  EXPECT_EQ(route(scoring, logits, 2).experts, (std::vector<int>{0, 1}));
  scoring.group_score = Scoring::GroupScore::kMax;
  EXPECT_EQ(route(scoring, logits, 2).experts, (std::vector<int>{6, 7}));
  scoring.topk_group = 2;
  EXPECT_EQ(route(scoring, logits, 3).experts, (std::vector<int>{6, 0, 1}));
}

TEST(Scoring, GroupScoresIncludeTheBias) {
  Scoring scoring{.kind = Kind::kSigmoid, .selection_bias = {0, 0, 1, 1}, .n_group = 2, .topk_group = 1};
  EXPECT_EQ(route(scoring, {1, 1, 0, 0}, 2).experts, (std::vector<int>{2, 3}));
}

TEST(Scoring, EqualGroupsResolveToTheLowerId) {
  for (const Kind kind : {Kind::kSoftmax, Kind::kSoftmaxTopk, Kind::kSigmoid}) {
    const Scoring scoring{.kind = kind, .n_group = 4, .topk_group = 2};
    const Scores s = scores(scoring, std::vector<float>(8, 0.5f));
    for (size_t e = 0; e < 8; ++e) EXPECT_EQ(s.rank[e] > -kInf, e < 4) << "expert " << e;
  }
}

// A group must not vanish because one of its experts is broken, and a broken group must not take a good one's place.
TEST(Scoring, ExpertsThatCannotBeChosenDoNotCountForTheirGroup) {
  const Scoring scoring{.kind = Kind::kSigmoid, .n_group = 3, .topk_group = 1};
  EXPECT_EQ(route(scoring, {kNan, kNan, kNan, -2, -kInf, kNan}, 2).experts, (std::vector<int>{3}));
}

// Whatever the policy fills with, a row must stay inside its allowed groups.
TEST(Scoring, PolicyChoicesStayInsideTheAllowedGroups) {
  const Scoring scoring{.kind = Kind::kSigmoid, .n_group = 4, .topk_group = 2};
  test::Rng rng(3);
  Scratch scratch;
  Selection chosen;
  for (int round = 0; round < 300; ++round) {
    std::vector<float> logits(16 * 6);
    for (float& x : logits) x = static_cast<float>(test::below(rng, 1000)) / 100 - 5;
    const Scores s = scores(scoring, logits, 16);
    const std::vector<TokenInfo> tokens(6);
    const RouterInput in{s.rank, s.mix, tokens, 16, 4, 0};
    for (const char* spec : {"oea:k0=1,guard=off", "oea:k0=2,k_max=8,guard=off", "prune:k0=2", "topk"}) {
      make_policy(spec)->select(in, scratch, chosen);
      for (int t = 0; t < 6; ++t) {
        std::set<int> groups;
        for (int e : chosen.row(t)) {
          EXPECT_GT(in.rank_row(t)[static_cast<size_t>(e)], -kInf);
          groups.insert(e / 4);
        }
        EXPECT_LE(groups.size(), 2u) << spec;
      }
    }
  }
}

TEST(Scoring, ANanLogitDoesNotDisturbItsRow) {
  for (const Kind kind : {Kind::kSoftmax, Kind::kSoftmaxTopk, Kind::kSigmoid}) {
    const Scoring scoring{.kind = kind};
    const Scores broken = scores(scoring, {1, kNan, 2, -kInf});
    const Scores sound = scores(scoring, {1, 2});
    EXPECT_EQ(broken.mix, (std::vector<float>{sound.mix[0], 0, sound.mix[1], 0}));
    EXPECT_EQ(broken.rank, (std::vector<float>{sound.rank[0], -kInf, sound.rank[1], -kInf}));
  }
}

TEST(Scoring, InfiniteLogitsShareTheWholeMass) {
  EXPECT_EQ(scores({}, {kInf, 3, kInf, kNan}).mix, (std::vector<float>{0.5f, 0, 0.5f, 0}));
  const Routed r = route({}, {kInf, 3, kInf, kNan}, 3);
  EXPECT_EQ(r.experts, (std::vector<int>{0, 2, 1}));
  EXPECT_EQ(r.weights, (std::vector<float>{0.5f, 0.5f, 0}));
}

TEST(Scoring, ARowWithoutAnyScoreHasNoExperts) {
  for (const Kind kind : {Kind::kSoftmax, Kind::kSoftmaxTopk, Kind::kSigmoid}) {
    Scoring scoring{.kind = kind};
    EXPECT_TRUE(route(scoring, {kNan, -kInf, kNan}, 2).experts.empty());
    scoring.selection_bias = {1, 2, 3};
    EXPECT_TRUE(route(scoring, {kNan, -kInf, kNan}, 2).experts.empty());
  }
}

// Probabilities below float32 are all 0, their logits are not equal.
TEST(Scoring, SoftmaxRanksByLogitWhereProbabilitiesCollapse) {
  EXPECT_EQ(route({}, {-300, 0, -200}, 2).experts, (std::vector<int>{1, 2}));
}

Selection one_row(const std::vector<int>& experts) {
  Selection s;
  s.start(1, static_cast<int>(experts.size()));
  for (int e : experts) s.push(e);
  s.end_row(PlainReason::kApplied);
  return s;
}

std::vector<float> weights_of(const Scoring& scoring, const std::vector<float>& mix, const std::vector<int>& experts) {
  std::vector<float> w(experts.size());
  finish_weights(scoring, static_cast<int>(mix.size()), mix, one_row(experts), w);
  return w;
}

TEST(FinishWeights, ARowWithoutMassGetsEqualWeights) {
  EXPECT_EQ(weights_of({}, {0, 0, 1, 0}, {0, 3}), (std::vector<float>{0.5f, 0.5f}));
  EXPECT_EQ(weights_of({.routed_scaling_factor = 3}, {0, 0, 1, 0}, {0, 3}), (std::vector<float>{1.5f, 1.5f}));
  EXPECT_EQ(weights_of({.renormalize = false}, {0, 0, 1, 0}, {0, 3}), (std::vector<float>{0, 0}));
}

TEST(FinishWeights, SlotsAndSumsOfTheRowsOwnStandInForThoseOfItsExperts) {
  const std::vector<float> mix = {0.5f, 0.25f, 0.125f, 0.125f};
  const auto weigh = [&](const Scoring& scoring, float divisor, float sum) {
    Selection s;
    s.start(1, 2);
    s.push(0, 0.75f);
    s.push(1);
    s.end_row(PlainReason::kApplied, divisor, sum);
    std::vector<float> w(2);
    finish_weights(scoring, 4, mix, s, w);
    return w;
  };
  EXPECT_EQ(weigh({}, 0, 0), (std::vector<float>{0.75f, 0.25f}));
  EXPECT_EQ(weigh({}, 0, 2), (std::vector<float>{0.375f, 0.125f}));
  EXPECT_EQ(weigh({.renormalize = false}, 0, 2), (std::vector<float>{0.75f, 0.25f})) << "the model divides by nothing";
  EXPECT_EQ(weigh({}, 4, 2), (std::vector<float>{0.1875f, 0.0625f})) << "a divisor is always applied";
  EXPECT_EQ(weigh({}, 0, kInf), (std::vector<float>{0.75f, 0.25f}));
}

TEST(FinishWeights, DenormalMassesDivideWithoutNan) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(weights_of({}, {tiny, tiny, 3 * tiny, 0}, {2, 0, 1}), (std::vector<float>{0.6f, 0.2f, 0.2f}));
}

TEST(FinishWeights, MixturesThatNoScoreWritesStillGiveNoNan) {
  EXPECT_EQ(weights_of({}, {kNan, 1, -2}, {0, 1, 2}), (std::vector<float>{0, 1, 0}));
  EXPECT_EQ(weights_of({}, {kInf, 1, kInf}, {0, 2, 1}), (std::vector<float>{0.5f, 0.5f, 0}));
}

TEST(FinishWeights, SumsAreTakenBestFirst) {
  // 1 + 2^-24 + 2^-24 loses both small terms from the left and neither from the right.
  const float small = std::ldexp(1.0f, -24);
  EXPECT_EQ(weights_of({}, {1, small, small}, {0, 1, 2})[0], 1.0f);
  EXPECT_LT(weights_of({}, {1, small, small}, {1, 2, 0})[2], 1.0f);
}

TEST(FinishWeights, EveryRowStandsForItself) {
  Selection s;
  s.start(3, 2);
  s.push(1);
  s.push(0);
  s.end_row(PlainReason::kApplied);
  s.end_row(PlainReason::kPhase);
  s.push(0);
  s.end_row(PlainReason::kApplied);
  std::vector<float> w(3);
  finish_weights({}, 2, std::vector<float>{.25f, .75f, 9, 9, .5f, .1f}, s, w);
  EXPECT_EQ(w, (std::vector<float>{.75f, .25f, 1}));
}

// M9 of the routing invariants: an exactly representable shift of all logits of a softmax router changes no set.
TEST(Scoring, ShiftingAllLogitsChangesNoPolicysChoice) {
  test::Rng rng(11);
  Scratch scratch;
  Selection a, b;
  for (int round = 0; round < 200; ++round) {
    std::vector<float> logits(12 * 5), shifted(logits.size());
    for (size_t i = 0; i < logits.size(); ++i) {
      logits[i] = static_cast<float>(test::below(rng, 64)) / 16;
      shifted[i] = logits[i] + 8;
    }
    const Kind kind = round % 2 ? Kind::kSoftmax : Kind::kSoftmaxTopk;
    const Scores one = scores({.kind = kind}, logits, 12), two = scores({.kind = kind}, shifted, 12);
    const std::vector<TokenInfo> tokens(5);
    for (const PolicyInfo& info : policy_list()) {
      for (const std::string& spec : info.examples) {
        if (info.name == "cache_prior") continue;  // a bonus beside shifted logits is rounded otherwise
        const auto policy = make_policy(spec);
        test::prepare(*policy, 12, 4, static_cast<uint64_t>(round));
        policy->select({one.rank, one.mix, tokens, 12, 4, 0}, scratch, a);
        policy->select({two.rank, two.mix, tokens, 12, 4, 0}, scratch, b);
        EXPECT_TRUE(std::equal(a.experts().begin(), a.experts().end(), b.experts().begin(), b.experts().end())) << spec;
      }
    }
  }
}

// Experts that are parts of a sum: scores choose them and weigh nothing, whatever a policy would divide by.
TEST(UnitWeights, EveryPolicyChoosesByTheScoresAndEveryExpertCountsWhole) {
  const Scoring parts{.renormalize = false, .unit_weights = true};
  constexpr int E = 12, K = 4, T = 6;
  test::Rng rng(5);
  Scratch scratch;
  Selection chosen, usual;
  int moved = 0;
  for (int round = 0; round < 60; ++round) {
    std::vector<float> logits(E * T);
    for (float& x : logits) x = static_cast<float>(test::below(rng, 64)) / 16;
    const Scores s = scores(parts, logits, E);
    const std::vector<TokenInfo> tokens(T);
    RouterInput in{s.rank, s.mix, tokens, E, K, 0};
    for (const PolicyInfo& info : policy_list()) {
      for (const std::string& spec : info.examples) {
        const auto policy = make_policy(spec);
        test::prepare(*policy, E, K, static_cast<uint64_t>(round));
        in.unit_weights = false;
        policy->select(in, scratch, usual);
        in.unit_weights = true;
        policy->select(in, scratch, chosen);
        ASSERT_TRUE(std::ranges::equal(chosen.experts(), usual.experts())) << spec;
        std::vector<float> w(static_cast<size_t>(chosen.size()));
        finish_weights(parts, E, s.mix, chosen, w);
        if (!info.properties.reweighs) EXPECT_EQ(w, std::vector<float>(w.size(), 1.0f)) << spec;
        if (info.name != "sere") continue;  // moves slots and drops none
        for (int t = 0; t < T; ++t) {
          const double slots = std::accumulate(w.begin() + chosen.begin(t), w.begin() + chosen.end(t), 0.0);
          EXPECT_EQ(slots, K) << spec;
          moved += chosen.row(t).size() < static_cast<size_t>(K);
        }
      }
    }
  }
  EXPECT_GT(moved, 0) << "no slots of one expert were merged";
}

TEST(UnitWeights, SlotsThatStandForOthersCountWhatTheySayAndTheModelsScaleIsApplied) {
  const Scoring parts{.renormalize = false, .unit_weights = true, .routed_scaling_factor = 2};
  Selection s;
  s.start(1, 2);
  s.push(0, 1.75f);
  s.push(1);
  s.end_row(PlainReason::kApplied, 0.25f, 0.5f);
  std::vector<float> w(2);
  finish_weights(parts, 3, std::vector<float>{0.5f, 0, 0.5f}, s, w);
  EXPECT_EQ(w, (std::vector<float>{3.5f, 2})) << "neither the divisor nor the sum of the row counts";
}

std::string error(Scoring scoring, int n_experts, int top_k) {
  try {
    scoring.check(n_experts, top_k);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kMalformed);
    return e.what();
  }
  return "";
}

TEST(Scoring, CheckNamesTheViolatedRelation) {
  EXPECT_EQ(error({}, 8, 8), "");
  EXPECT_EQ(error({.n_group = 4, .topk_group = 2}, 8, 4), "");
  EXPECT_EQ(error({.n_group = 8, .topk_group = 2, .group_score = Scoring::GroupScore::kMax}, 8, 2), "");
  EXPECT_EQ(error({}, 0, 1), "the number of experts is 0, it must be at least 1");
  EXPECT_EQ(error({}, 8, 0), "0 experts per token of 8 experts: must be 1 to 8");
  EXPECT_EQ(error({}, 8, 9), "9 experts per token of 8 experts: must be 1 to 8");
  EXPECT_EQ(error({.n_group = 3}, 8, 2), "n_group 3 does not divide 8 experts");
  EXPECT_EQ(error({.n_group = 0}, 8, 2), "n_group 0 does not divide 8 experts");
  EXPECT_EQ(error({.n_group = 2048}, 4096, 2), "n_group 2048 is more than 1024");
  EXPECT_EQ(error({.n_group = 2, .topk_group = 3}, 8, 2), "topk_group 3 must be 1 to n_group 2");
  EXPECT_EQ(error({.n_group = 2, .topk_group = 0}, 8, 2), "topk_group 0 must be 1 to n_group 2");
  EXPECT_EQ(error({.n_group = 8, .topk_group = 2}, 8, 2),
            "n_group 8 leaves 1 expert per group, top-2 group scores need 2");
  EXPECT_EQ(error({.n_group = 4, .topk_group = 1}, 8, 3),
            "3 experts per token, but topk_group 1 groups of 2 hold only 2");
  EXPECT_EQ(error({.selection_bias = {1, 2}}, 8, 2), "the selection bias has 2 values for 8 experts");
  EXPECT_EQ(error({.selection_bias = {1, kNan}}, 2, 2), "the selection bias of expert 1 is not finite");
  EXPECT_EQ(error({.routed_scaling_factor = kInf}, 8, 2), "routed_scaling_factor inf must be finite and above 0");
  EXPECT_EQ(error({.routed_scaling_factor = 0}, 8, 2), "routed_scaling_factor 0 must be finite and above 0");
  EXPECT_EQ(error({.renormalize = false, .unit_weights = true}, 8, 2), "");
  for (const Scoring& divided : {Scoring{.unit_weights = true},
                                 Scoring{.kind = Kind::kSoftmaxTopk, .renormalize = false, .unit_weights = true}}) {
    EXPECT_EQ(error(divided, 8, 2),
              "experts that all weigh 1 are not divided by a sum: neither renormalised nor a softmax over the chosen");
  }
}

}  // namespace
}  // namespace carpool
