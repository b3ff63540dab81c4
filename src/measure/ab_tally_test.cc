// The arithmetic of the A/B with numbers that can be checked by hand.
#include "measure/ab_tally.h"

#include <gtest/gtest.h>

namespace carpool {
namespace {

constexpr StepSizes kSizes{3, 1000, 50000, 16};  // MoE layers, bytes per expert, dense, per position

StepReport step(double ms, int64_t layers, int64_t distinct, int64_t plain) {
  StepReport report;
  report.seconds = ms / 1e3;
  report.routing.layers = layers;
  report.routing.distinct_experts = distinct;
  report.routing.distinct_plain = plain;
  return report;
}

Event token(RequestId id, int value = 5) { return {id, value, "", FinishReason::kNone}; }

// Two repeats with median steps of 20 and 30 ms; 4 experts per layer of 6; 40 positions per step.
Tally two_repeats() {
  Tally tally;
  for (const double ms : {10.0, 20.0, 90.0}) tally.add(step(ms, 3, 12, 18), 40);
  tally.end_repeat();
  for (const double ms : {30.0, 31.0, 29.0}) tally.add(step(ms, 3, 12, 18), 40);
  tally.end_repeat();
  return tally;
}

TEST(AbTally, ARepeatCountsWithItsMedianStepAndTheRowWithTheMedianRepeat) {
  const Tally tally = two_repeats();
  ASSERT_EQ(tally.repeat_ms.size(), 2u);
  EXPECT_DOUBLE_EQ(tally.repeat_ms[0], 20) << "one slow step does not count";
  EXPECT_DOUBLE_EQ(tally.repeat_ms[1], 30);
  const ResultRow row = make_row(kSizes, tally, true, 4);
  EXPECT_EQ(row.batch, 4);
  EXPECT_EQ(row.steps, "decode");
  EXPECT_EQ(row.steps_measured, 6);
  EXPECT_EQ(row.repeats, 2);
  EXPECT_DOUBLE_EQ(row.step_ms.value, 25);
  EXPECT_DOUBLE_EQ(row.step_ms.lo, 20);
  EXPECT_DOUBLE_EQ(row.step_ms.hi, 30);
  EXPECT_DOUBLE_EQ(row.tokens_per_second.value, 4 / 0.025);
  EXPECT_DOUBLE_EQ(row.tokens_per_second.lo, 4 / 0.030);
  EXPECT_DOUBLE_EQ(row.tokens_per_second.hi, 4 / 0.020);
}

TEST(AbTally, ARepeatWithoutStepsLeavesNoMedian) {
  Tally tally;
  tally.end_repeat();
  EXPECT_TRUE(tally.repeat_ms.empty());
}

TEST(AbTally, BytesAreExpertsOfAllLayersDenseWeightsAndTheKeysAndValuesAttendedTo) {
  const ResultRow row = make_row(kSizes, two_repeats(), true, 4);
  EXPECT_DOUBLE_EQ(row.distinct_experts, 4);
  EXPECT_DOUBLE_EQ(row.distinct_experts_plain, 6);
  EXPECT_DOUBLE_EQ(row.dense_bytes_per_step, 50000 + 40 * 16);
  EXPECT_DOUBLE_EQ(row.bytes_per_step, 4 * 3 * 1000 + 50000 + 40 * 16);
}

TEST(AbTally, TheFloorIsTheShareOfTheStepThatReadingItsBytesTakes) {
  ResultRow row = make_row(kSizes, two_repeats(), true, 4);
  row.bytes_per_step = 50e6;
  set_floor(row, 10);  // 5 ms of 25
  EXPECT_DOUBLE_EQ(row.read_gbps, 10);
  EXPECT_DOUBLE_EQ(row.floor_share, 0.2);
}

TEST(AbTally, MixedRowsClaimNeitherSpeedNorBytes) {
  ResultRow row = make_row(kSizes, two_repeats(), false, 4);
  set_floor(row, 10);
  EXPECT_EQ(row.steps, "mixed");
  EXPECT_DOUBLE_EQ(row.step_ms.value, 25);
  EXPECT_DOUBLE_EQ(row.distinct_experts, 4);
  EXPECT_EQ(row.tokens_per_second.value, 0);
  EXPECT_EQ(row.bytes_per_step, 0);
  EXPECT_EQ(row.floor_share, 0);
  EXPECT_FALSE(row.speedup);
}

TEST(AbTally, ATokenAttendedToAllTokensBeforeIt) {
  Positions positions;
  positions.add_prompt(10);
  positions.add_prompt(3);
  EXPECT_EQ(positions.attend({token(1)}), 10) << "the first new token follows the prompt";
  EXPECT_EQ(positions.attend({token(1), token(2)}), 11 + 3);
  EXPECT_EQ(positions.attend({token(2), token(1)}), 4 + 12);
  EXPECT_EQ(positions.attend({token(2, -1)}), 0) << "an end without a token attended to nothing";
  EXPECT_EQ(positions.attend({token(2)}), 5);
}

TEST(AbTally, SpeedupsArePairedByRepeatBeforeTheMedian) {
  Tally first, other;
  first.repeat_ms = {10, 20, 40};
  other.repeat_ms = {5, 20, 10};  // ratios 2, 1, 4
  EXPECT_DOUBLE_EQ(paired_speedup(first, other).value, 2);
  other.repeat_ms = {10, 5, 40};  // ratios 1, 4, 1; the medians 20 and 10 would say 2
  const Estimate speedup = paired_speedup(first, other);
  EXPECT_DOUBLE_EQ(speedup.value, 1);
  EXPECT_DOUBLE_EQ(speedup.lo, 1);
  EXPECT_DOUBLE_EQ(speedup.hi, 4);
}

TEST(AbTally, ColdCopiesMakeFourCachesAndNoneAreMadeWithoutNeed) {
  EXPECT_EQ(cold_copies_for(0, 100), 0) << "no experts to copy";
  EXPECT_EQ(cold_copies_for(100, 100), 4);
  EXPECT_EQ(cold_copies_for(150, 100), 3);
  EXPECT_EQ(cold_copies_for(399, 100), 2);
  EXPECT_EQ(cold_copies_for(400, 100), 0) << "large enough by itself";
  EXPECT_EQ(cold_copies_for(5000, 100), 0);
}

}  // namespace
}  // namespace carpool
