// Replay on traces small enough to count by hand, its sampling, and what it refuses.
#include "measure/trace_replay.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "measure/trace_placement.h"

namespace carpool {
namespace {

// `n` sequences of one token and one layer: sequence s chooses 2s, 2s + 1 of 2n experts.
Trace disjoint(int n) {
  Trace t;
  t.source = "a test";
  t.n_experts = 2 * n;
  t.top_k = 2;
  t.layers = {0};
  for (int s = 0; s < n; ++s) {
    const auto first = static_cast<int16_t>(2 * s);
    t.sequences.push_back({std::to_string(s), 1, {first, static_cast<int16_t>(first + 1)}, {0.75f, 0.25f}, {}, {}});
  }
  return t;
}

ReplayOptions options_of(std::vector<std::string> policies, std::vector<int> batches) {
  ReplayOptions o;
  o.policies = std::move(policies);
  o.batches = std::move(batches);
  o.draws = 50;
  return o;
}

TEST(TraceReplay, DifferentSequencesNeverMeetThemselves) {
  for (const ReplayRow& r : replay(disjoint(6), options_of({"topk", "oea:k0=1", "prune:k0=1"}, {2, 6}))) {
    const double k = r.policy == "topk" ? 2 : 1;
    EXPECT_EQ(r.distinct.value, k * r.batch) << r.policy << " " << r.batch;
    EXPECT_EQ(r.distinct.lo, r.distinct.hi) << "every draw gives the same";
    EXPECT_EQ(r.distinct_plain.value, 2.0 * r.batch);
    EXPECT_EQ(r.ratio, k / 2);
    EXPECT_NEAR(*r.kept_mass, k == 2 ? 1.0 : 0.75, 1e-6);
  }
}

TEST(TraceReplay, WithReplacementTheyDo) {
  EXPECT_THROW(replay(disjoint(3), options_of({"topk"}, {4})), Error);
  ReplayOptions o = options_of({"topk"}, {4});
  o.with_replacement = true;
  o.draws = 4000;
  // Four rows of three sequences: 3 (1 - (2/3)^4) different ones.
  EXPECT_NEAR(replay(disjoint(3), o)[0].distinct.value, 2 * 3 * (1 - 16.0 / 81), 0.05);
}

TEST(TraceReplay, AlignedRowsStandAtTheSamePosition) {
  Trace t = disjoint(2);
  t.n_experts = 4;
  for (TraceSequence& s : t.sequences) {  // at position p both choose {2p, 2p + 1}
    s.positions = 2;
    s.ids = {0, 1, 2, 3};
    s.weights = {1, 1, 1, 1};
  }
  ReplayOptions o = options_of({"topk"}, {2});
  o.draws = 400;
  EXPECT_NEAR(replay(t, o)[0].distinct.value, 3, 0.2) << "2 or 4, each half of the time";
  o.sampling = ReplayOptions::Sampling::kAligned;
  EXPECT_EQ(replay(t, o)[0].distinct.value, 2);
}

TEST(TraceReplay, EqualSeedsGiveEqualNumbers) {
  Trace t = disjoint(8);
  for (size_t s = 0; s < 8; ++s) t.sequences[s].ids = {static_cast<int16_t>(s), static_cast<int16_t>(s / 2 + 8)};
  ReplayOptions o = options_of({"topk"}, {3});
  const double first = replay(t, o)[0].distinct.value;
  EXPECT_EQ(replay(t, o)[0].distinct.value, first);
  o.seed = 2;
  EXPECT_NE(replay(t, o)[0].distinct.value, first);
}

TEST(TraceReplay, PoliciesThatNeedMoreThanTheTraceHasAreRefused) {
  Trace no_weights = disjoint(4);
  for (TraceSequence& s : no_weights.sequences) s.weights.clear();
  EXPECT_THROW(replay(no_weights, options_of({"xshare:m=3"}, {2})), Error);
  EXPECT_THROW(replay(no_weights, options_of({"oea:k0=1,p=0.5"}, {2})), Error);
  // The weights of the chosen are not enough: p is a share of the weight of all experts, and pools weigh them all.
  for (const char* spec : {"xshare:m=3", "des_vote:m=3", "top_p:p=0.5", "oea:k0=1,p=0.5", "prune:k0=1,p=0.5"})
    EXPECT_THROW(replay(disjoint(4), options_of({spec}, {2})), Error) << spec;
  EXPECT_NO_THROW(replay(no_weights, options_of({"oea:k0=1", "prune:k0=1"}, {2})));
  EXPECT_FALSE(replay(no_weights, options_of({"oea:k0=1"}, {2}))[0].kept_mass);
  Trace unranked = disjoint(4);
  unranked.ranked = false;
  EXPECT_THROW(replay(unranked, options_of({"oea:k0=1"}, {2})), Error);
  EXPECT_NO_THROW(replay(unranked, options_of({"topk"}, {2})));
  EXPECT_THROW(replay(disjoint(4), options_of({"oea:k0=3"}, {2})), Error) << "k0 is more than the model's 2";
}

TEST(TraceReplay, AllScoresLetAPolicyLookPastTheChosen) {
  Trace t;
  t.source = "a test";
  t.n_experts = 4;
  t.top_k = 2;
  t.layers = {0};
  t.sequences = {{"a", 1, {0, 1}, {.4f, .3f}, {4, 3, 2, 1}, {.4f, .3f, .2f, .1f}},
                 {"b", 1, {2, 3}, {.4f, .3f}, {2, 1, 4, 3}, {.2f, .1f, .4f, .3f}}};
  const ReplayRow r = replay(t, options_of({"oea:k0=1,guard=off"}, {2}))[0];
  EXPECT_EQ(r.distinct.value, 2) << "experts 0 and 2";
  EXPECT_EQ(r.slots, 2) << "each row takes the other's best as well";
  EXPECT_NEAR(*r.kept_mass, (.4 + .2) / .7, 1e-6);
  for (TraceSequence& s : t.sequences) s.rank.clear(), s.mix.clear();
  EXPECT_EQ(replay(t, options_of({"oea:k0=1,guard=off"}, {2}))[0].slots, 1) << "beyond the chosen nothing is known";
}

TEST(TraceReplay, TheBusiestRankIsWhatAStepWaitsFor) {
  ReplayOptions o = options_of({"topk"}, {4});
  o.ranks = {2, 4};
  o.placements = {"round_robin"};
  o.base_us = 10;
  o.expert_us = 2;
  const std::vector<ReplayRow> rows = replay(disjoint(4), o);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].busiest, 8);
  EXPECT_EQ(*rows[0].layer_us, 26);
  EXPECT_EQ(rows[1].busiest, 4);
  EXPECT_EQ(rows[1].imbalance, 1);
  EXPECT_EQ(*rows[2].layer_us, 14);
}

TEST(TracePlacement, RoundRobinGreedyAndCopies) {
  const std::vector<double> load = {8, 1, 7, 1};
  std::vector<int> counts;
  const std::vector<int> all = {0, 1, 2, 3}, heavy = {0, 2};
  const auto place = [&](const char* kind) { return ExpertPlacement::make(kind, 2, load); };
  place("round_robin").count(heavy, counts);
  EXPECT_EQ(counts, (std::vector<int>{2, 0})) << "0 and 2 share a rank";
  place("greedy").count(heavy, counts);
  EXPECT_EQ(counts, (std::vector<int>{1, 1}));
  place("greedy").count(all, counts);
  EXPECT_EQ(counts, (std::vector<int>{2, 2})) << "no rank has more experts than its share";
  const ExpertPlacement copies = place("replicated:1");
  EXPECT_EQ(copies.homes(0).size(), 2u) << "the most loaded expert";
  EXPECT_EQ(copies.homes(2).size(), 1u);
  EXPECT_THROW(place("random"), Error);
  EXPECT_THROW(place("replicated:x"), Error);
  EXPECT_THROW(place("replicated:5"), Error);
  EXPECT_THROW(ExpertPlacement::make("greedy", 5, load), Error);
}

TEST(TraceStats, ReuseSkewAndProfileByHand) {
  Trace t;
  t.n_experts = 4;
  t.top_k = 2;
  t.layers = {3};
  t.sequences = {{"a", 3, {0, 1, 1, 2, 2, 1}, {.6f, .2f, .5f, .5f, .75f, .25f}, {}, {}}};
  const TraceStats s = trace_stats(t);
  EXPECT_DOUBLE_EQ(s.reuse, 0.75) << "1 of 2, then 2 of 2";
  EXPECT_DOUBLE_EQ(s.busiest_share, 0.5) << "expert 1 in 3 of 6 slots";
  EXPECT_DOUBLE_EQ(s.used_experts, 3);
  EXPECT_NEAR(*s.ties, 1.0 / 3, 1e-12);
  EXPECT_NEAR(s.profile[0], (.75 + .5 + .75) / 3, 1e-6);
}

}  // namespace
}  // namespace carpool
