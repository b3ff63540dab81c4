// Prompt rows are cut to a time, learn what rows cost here, and never stop altogether.
#include "engine/pacer.h"

#include <gtest/gtest.h>

namespace carpool {
namespace {

// A machine on which a step takes `decode` seconds and `row` more for every prompt row.
struct Machine {
  double decode, row;
  double seconds(int decode_rows, int prompt_rows) const { return (decode_rows > 0 ? decode : 0) + row * prompt_rows; }
};

// Steps with decode rows and a prompt that never ends, every tenth without; returns the rows of the last step.
int settle(Pacer& pacer, const Machine& machine, int chunk) {
  int rows = 0;
  for (int step = 0; step < 200; ++step) {
    rows = step % 10 == 0 ? 0 : pacer.prompt_rows(8, chunk);
    pacer.observe(8, rows, machine.seconds(8, rows));
  }
  return pacer.prompt_rows(8, chunk);
}

TEST(Pacer, WithoutATargetNothingIsCut) {
  Pacer pacer(0);
  EXPECT_EQ(settle(pacer, {0.02, 0.1}, 256), 256);
}

TEST(Pacer, RowsSettleWhereTheStepTakesTheTarget) {
  Pacer pacer(0.1);
  EXPECT_NEAR(settle(pacer, {0.02, 0.001}, 256), 80, 2);
  EXPECT_NEAR(settle(pacer, {0.05, 0.002}, 256), 25, 2) << "a machine that became slower";
  EXPECT_EQ(settle(pacer, {0.001, 0.0001}, 256), 256) << "the chunk stays the bound";
}

TEST(Pacer, PromptsGetOnWhateverTheTargetIs) {
  Pacer pacer(0.001);
  EXPECT_EQ(settle(pacer, {0.5, 0.1}, 256), Pacer::kLeastRows);
  EXPECT_EQ(settle(pacer, {0.5, 0.1}, 7), 7) << "the chunk is less than the least";
}

TEST(Pacer, WithoutDecodeRowsNobodyWaitsSoNothingIsCut) {
  Pacer pacer(0.01);
  settle(pacer, {0.02, 0.1}, 256);
  EXPECT_EQ(pacer.prompt_rows(0, 256), 256);
}

}  // namespace
}  // namespace carpool
