#include "model/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
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

TEST(KvCache, LayersHaveZeroedMemoryOfTheirOwnAtCacheLines) {
  const ModelConfig config = small();
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBF16, KvFormat::kQ8}) {
    KvCache kv(config, 40, format);
    const size_t bytes = kv.bytes() / static_cast<size_t>(config.layers);
    for (int l = 0; l < config.layers; ++l) {
      const KvLayer layer = kv.layer(l);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(layer.data) % 64, 0u);
      EXPECT_EQ(layer.at(2, config.kv_heads - 1) + layer.block.bytes, layer.data + bytes);
      for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(layer.data[i], std::byte{0});
      std::fill_n(layer.data, bytes, std::byte{1});
    }
  }
}

TEST(KvCache, SmallerElementsTakeLessMemory) {
  const ModelConfig config = small();
  const size_t f32 = KvCache::bytes_for(config, 100, KvFormat::kF32);
  EXPECT_EQ(f32, size_t{7} * 16 * 2 * static_cast<size_t>(config.kv_width() * config.layers) * sizeof(float));
  EXPECT_EQ(KvCache::bytes_for(config, 100), f32);
  EXPECT_EQ(KvCache::bytes_for(config, 100, KvFormat::kBF16), f32 / 2);
  EXPECT_LT(KvCache::bytes_for(config, 100, KvFormat::kQ8), f32 / 3);
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBF16, KvFormat::kQ8}) {
    EXPECT_EQ(KvCache(config, 100, format).bytes(), KvCache::bytes_for(config, 100, format));
  }
}

// Every format computes something else, close to the exact one; the default of a model in floating point is exact.
TEST(KvCache, TheFormatOfAModelsCacheChangesItsLogits) {
  std::vector<int> tokens;
  for (int i = 0; i < 40; ++i) tokens.push_back(3 + i * 11 % 50);
  const auto logits = [&](std::optional<KvFormat> format) {
    LoadOptions options;
    options.threads = 2;
    options.kv_format = format;
    Model model = Model::load(golden::kFolder + "/float32_untied", options);
    KvCache kv(model.config(), 48, model.kv_format());
    EXPECT_EQ(kv.format(), format.value_or(KvFormat::kF32));
    const golden::Place place(kv, 48);
    return golden::prefill(model, kv, place, tokens, 16).back();
  };
  const std::vector<float> exact = logits(std::nullopt);
  EXPECT_EQ(logits(KvFormat::kF32), exact);
  float largest = 0;
  for (const float x : exact) largest = std::max(largest, std::fabs(x));
  for (const KvFormat format : {KvFormat::kBF16, KvFormat::kQ8}) {
    const std::vector<float> rounded = logits(format);
    EXPECT_NE(rounded, exact) << name(format);
    // Keys and values are off by 2^-8 or less of the largest; what that does to logits has no small proven bound, so
    // this only tells rounding from a wrong layout.
    for (size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(rounded[i], exact[i], 0.25 * largest) << name(format);
  }
}

TEST(KvCache, ModelsWithBlockQuantisedWeightsKeepBfloat16UnlessTold) {
  EXPECT_EQ(default_kv_format(true), KvFormat::kBF16);
  EXPECT_EQ(default_kv_format(false), KvFormat::kF32);
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
