// The key-value pool that `carpool run` asks for; what the verb does is tested in tests/run_test.cc.
#include "cli/run.h"

#include <gtest/gtest.h>

#include <climits>
#include <vector>

namespace carpool {
namespace {

int64_t needed(const std::vector<size_t>& lengths, int max_tokens, int max_batch, int context = 4096) {
  return needed_kv_tokens(lengths, max_tokens, max_batch, context);
}

TEST(NeededKvTokens, AreWholeBlocksOfPromptAndNewTokensWithoutTheLast) {
  EXPECT_EQ(needed({1}, 1, 64), 16);
  EXPECT_EQ(needed({10}, 7, 64), 16);
  EXPECT_EQ(needed({10}, 8, 64), 32);
  EXPECT_EQ(needed({10, 10}, 8, 64), 64) << "blocks are not shared";
}

TEST(NeededKvTokens, CountTheLongestThatCanRunAtOnce) {
  EXPECT_EQ(needed({1, 100, 20, 50}, 1, 2), 112 + 64);
  EXPECT_EQ(needed({1, 100, 20, 50}, 1, 1), 112);
  EXPECT_EQ(needed({1, 100, 20, 50}, 1, 64), 16 + 112 + 32 + 64);
}

TEST(NeededKvTokens, AreBoundedByTheContextAndNeverNegative) {
  EXPECT_EQ(needed({10}, INT_MAX, 64, 512), 512);
  EXPECT_EQ(needed({0}, 0, 64), 16);
  EXPECT_EQ(needed({0}, INT_MIN, 64), 16);
  EXPECT_EQ(needed({10, 20}, 5, 0), 0);
  EXPECT_EQ(needed({10, 20}, 5, -3), 0);
  EXPECT_EQ(needed({}, 5, 4), 0);
}

}  // namespace
}  // namespace carpool
