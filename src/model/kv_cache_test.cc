#include "model/kv_cache.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "model/golden_test_util.h"

namespace carpool {
namespace {

ModelConfig small() { return read_model_config(golden::kFolder + "/float32_untied"); }

TEST(KvCache, BlocksAreHandedOutOnceAndComeBackWhole) {
  KvCache kv(small(), 100);  // rounded up to 7 blocks of 16
  EXPECT_EQ(kv.total_blocks(), 7);
  std::vector<int> a, b;
  EXPECT_TRUE(kv.take(3, a));
  EXPECT_TRUE(kv.take(4, b));
  EXPECT_EQ(kv.free_blocks(), 0);
  std::set<int> all(a.begin(), a.end());
  all.insert(b.begin(), b.end());
  EXPECT_EQ(all.size(), 7u) << "no block belongs to two sequences";
  EXPECT_EQ(*all.begin(), 0);
  EXPECT_EQ(*all.rbegin(), 6);
  kv.give_back(a);
  EXPECT_TRUE(a.empty());
  EXPECT_EQ(kv.free_blocks(), 3);
}

TEST(KvCache, WhatDoesNotFitTakesNothing) {
  KvCache kv(small(), 32);
  std::vector<int> a;
  EXPECT_FALSE(kv.take(3, a));
  EXPECT_TRUE(a.empty());
  EXPECT_EQ(kv.free_blocks(), 2);
  EXPECT_TRUE(kv.take(0, a));
}

TEST(KvCache, LayersHaveMemoryOfTheirOwn) {
  const ModelConfig config = small();
  KvCache kv(config, 16);
  kv.layer(0).keys[0] = 1;
  kv.layer(0).values[0] = 2;
  EXPECT_EQ(kv.layer(1).keys[0], 0);
  EXPECT_EQ(kv.layer(0).keys[0], 1);
  EXPECT_NE(kv.layer(0).keys, kv.layer(0).values);
}

TEST(KvCache, APoolLargerThanTheMachineIsRefusedWithBothNumbers) {
  for (const int64_t tokens : {int64_t{1} << 40, INT64_MAX / 2}) {
    try {
      KvCache kv(small(), tokens);
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kNoMemory);
      EXPECT_NE(std::string(e.what()).find("MiB are available"), std::string::npos) << e.what();
    }
  }
}

TEST(KvCache, BlocksForRoundsUp) {
  EXPECT_EQ(KvCache::blocks_for(0), 0);
  EXPECT_EQ(KvCache::blocks_for(1), 1);
  EXPECT_EQ(KvCache::blocks_for(16), 1);
  EXPECT_EQ(KvCache::blocks_for(17), 2);
}

}  // namespace
}  // namespace carpool
