// Computed blocks that are shared: exact matches only, each tenant by itself, held while in use, evicted when room is
// needed, and not a block lost.
#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "model/golden_test_util.h"

namespace carpool {
namespace {

constexpr int kBlock = KvCache::kBlockTokens;

class PrefixCacheTest : public ::testing::Test {
 protected:
  static constexpr int kBlocks = 12;
  struct Table {
    PrefixCache::Hold hold;
    std::vector<int> blocks;
  };

  PrefixCacheTest() : kv_(read_model_config(golden::kFolder + "/float32_untied"), kBlocks * kBlock), cache_(kv_) {}

  static std::vector<int> text(int first, int tokens) {
    std::vector<int> out(static_cast<size_t>(tokens));
    std::iota(out.begin(), out.end(), first);
    return out;
  }
  // A sequence that has computed all of `tokens`, shared and released its blocks.
  void leave(int tenant, const std::vector<int>& tokens) {
    Table t;
    cache_.match(tenant, tokens, t.hold, t.blocks);
    const auto need = KvCache::blocks_for(static_cast<int64_t>(tokens.size())) - t.hold.blocks;
    ASSERT_TRUE(cache_.take(need, t.blocks));
    cache_.insert(tenant, tokens, t.hold, t.blocks);
    cache_.release(t.hold, t.blocks);
  }
  // Blocks that a request of these tokens finds.
  int found(int tenant, const std::vector<int>& tokens, PrefixReason reason) {
    Table t;
    EXPECT_EQ(name(cache_.match(tenant, tokens, t.hold, t.blocks)), std::string(name(reason)));
    const int out = t.hold.blocks;
    EXPECT_EQ(static_cast<size_t>(out), t.blocks.size());
    cache_.release(t.hold, t.blocks);
    return out;
  }
  void expect_all_there() { EXPECT_EQ(kv_.free_blocks() + cache_.unheld(), kBlocks); }

  KvCache kv_;
  PrefixCache cache_;
};

TEST_F(PrefixCacheTest, FindsFullBlocksOfTheSameTokensOnly) {
  leave(0, text(0, 40));  // two full blocks, and eight tokens that go back to the pool
  EXPECT_EQ(cache_.blocks(), 2);
  expect_all_there();
  EXPECT_EQ(found(0, text(0, 40), PrefixReason::kWhole), 2);
  EXPECT_EQ(found(0, text(0, 31), PrefixReason::kWhole), 1);
  EXPECT_EQ(found(0, text(0, 15), PrefixReason::kNoMatch), 0);
  EXPECT_EQ(found(0, text(0, 60), PrefixReason::kDiverged), 2);
  std::vector<int> other = text(0, 40);
  other[17] = 999;  // in the second block
  EXPECT_EQ(found(0, other, PrefixReason::kDiverged), 1);
  other[0] = 999;
  EXPECT_EQ(found(0, other, PrefixReason::kNoMatch), 0);
}

TEST_F(PrefixCacheTest, TheSameBlockAfterOtherTextIsNotTheSame) {
  std::vector<int> a = text(0, 32), b = text(100, 32);
  std::copy(a.begin() + kBlock, a.end(), b.begin() + kBlock);  // equal second blocks
  leave(0, a);
  EXPECT_EQ(found(0, b, PrefixReason::kNoMatch), 0);
}

TEST_F(PrefixCacheTest, TenantsDoNotSeeEachOthersBlocks) {
  leave(1, text(0, 32));
  EXPECT_EQ(found(2, text(0, 32), PrefixReason::kOtherTenant), 0);
  EXPECT_EQ(found(1, text(0, 32), PrefixReason::kWhole), 2);
  leave(2, text(0, 32));
  EXPECT_EQ(cache_.blocks(), 4) << "each has its own";
  EXPECT_EQ(found(2, text(0, 32), PrefixReason::kWhole), 2);
}

TEST_F(PrefixCacheTest, TwoSequencesWithTheSamePromptEndWithOneSetOfBlocks) {
  const auto tokens = text(0, 36);
  Table a, b;
  ASSERT_TRUE(cache_.take(3, a.blocks));
  ASSERT_TRUE(cache_.take(3, b.blocks));
  const int tail = b.blocks[2];
  cache_.insert(0, tokens, a.hold, a.blocks);
  cache_.insert(0, tokens, b.hold, b.blocks);
  EXPECT_EQ(b.hold.blocks, 2);
  EXPECT_EQ(b.blocks, (std::vector<int>{a.blocks[0], a.blocks[1], tail})) << "the duplicates went back";
  EXPECT_EQ(kv_.free_blocks(), kBlocks - 4);
  EXPECT_EQ(cache_.unheld(), 0);
  cache_.release(a.hold, a.blocks);
  EXPECT_EQ(cache_.unheld(), 0) << "the other one still uses them";
  cache_.release(b.hold, b.blocks);
  EXPECT_EQ(cache_.unheld(), 2);
  expect_all_there();
}

TEST_F(PrefixCacheTest, BlocksThatWereTakenForAPromptGoBackWhenSomebodyElseHasComputedIt) {
  const auto tokens = text(0, 40);
  Table late;
  ASSERT_TRUE(cache_.take(3, late.blocks));
  leave(0, text(0, 32));
  EXPECT_EQ(cache_.match(0, tokens, late.hold, late.blocks), PrefixReason::kWhole);
  EXPECT_EQ(late.hold.blocks, 2);
  EXPECT_EQ(late.blocks.size(), 3u);
  EXPECT_EQ(kv_.free_blocks(), kBlocks - 3);
  cache_.release(late.hold, late.blocks);
  expect_all_there();
}

TEST_F(PrefixCacheTest, EvictsTheLeastRecentlyUsedEndsFirstAndNothingThatIsHeld) {
  leave(0, text(0, 64));     // four blocks
  leave(0, text(1000, 64));  // four others
  EXPECT_EQ(found(0, text(0, 64), PrefixReason::kWhole), 4) << "used last now";
  Table held;
  cache_.match(0, text(1000, 16), held.hold, held.blocks);
  Table big;
  EXPECT_FALSE(cache_.take(12, big.blocks)) << "one block is held";
  EXPECT_EQ(cache_.blocks(), 8) << "what fails evicts nothing";
  ASSERT_TRUE(cache_.take(8, big.blocks));
  EXPECT_EQ(found(0, text(1000, 64), PrefixReason::kEvicted), 1) << "only what is held is left of the older one";
  EXPECT_EQ(found(0, text(0, 64), PrefixReason::kEvicted), 3) << "of the newer one its end went";
  cache_.release(big.hold, big.blocks);
  cache_.release(held.hold, held.blocks);
  expect_all_there();
  EXPECT_EQ(found(7, text(0, 64), PrefixReason::kOtherTenant), 0) << "evicted is said to whose it was only";
}

TEST_F(PrefixCacheTest, FlushForgetsWhatNobodyHolds) {
  leave(0, text(0, 64));
  Table held;
  cache_.match(0, text(0, 16), held.hold, held.blocks);
  cache_.flush();
  EXPECT_EQ(cache_.blocks(), 1);
  cache_.release(held.hold, held.blocks);
  cache_.flush();
  EXPECT_EQ(kv_.free_blocks(), kBlocks);
  EXPECT_EQ(found(0, text(0, 64), PrefixReason::kNoMatch), 0);
}

// Random sequences over few different texts: no block is ever in two tables unless the tree shares it, a match always
// gives the blocks that were inserted for these very tokens, and at the end all blocks are there.
TEST_F(PrefixCacheTest, NoBlockIsLostOrMixedUpUnderRandomUse) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::vector<int>> content(kBlocks);  // what a block's owner computed: the text up to its end
    struct Live {
      int tenant;
      std::vector<int> tokens;
      Table table;
    };
    std::vector<Live> live;
    const auto check_content = [&](const Live& s) {
      for (int b = 0; b < s.table.hold.blocks; ++b) {
        std::vector<int> path(s.tokens.begin(), s.tokens.begin() + (b + 1) * kBlock);
        path.push_back(s.tenant);
        ASSERT_EQ(content[static_cast<size_t>(s.table.blocks[static_cast<size_t>(b)])], path) << "seed " << seed;
      }
    };
    for (int op = 0; op < 60; ++op) {
      if (random() % 3 != 0 && live.size() < 4) {
        Live s{static_cast<int>(random() % 2), {}, {}};
        const size_t length = 1 + random() % 70;
        while (s.tokens.size() < length)
          s.tokens.push_back(s.tokens.size() % 16 == 15 ? static_cast<int>(random() % 2) : 5);
        cache_.match(s.tenant, s.tokens, s.table.hold, s.table.blocks);
        check_content(s);
        const auto all = KvCache::blocks_for(static_cast<int64_t>(length));
        if (!cache_.take(all - s.table.hold.blocks, s.table.blocks)) {
          cache_.release(s.table.hold, s.table.blocks);
          continue;
        }
        for (size_t b = static_cast<size_t>(s.table.hold.blocks); b < length / kBlock; ++b) {
          auto& mine = content[static_cast<size_t>(s.table.blocks[b])];
          mine.assign(s.tokens.begin(), s.tokens.begin() + static_cast<std::ptrdiff_t>((b + 1) * kBlock));
          mine.push_back(s.tenant);
        }
        live.push_back(std::move(s));
      } else if (!live.empty()) {
        std::swap(live[random() % live.size()], live.back());
        Live& s = live.back();
        if (random() % 4 != 0) {
          cache_.insert(s.tenant, s.tokens, s.table.hold, s.table.blocks);
          check_content(s);
        }
        if (random() % 3 != 0) {
          cache_.release(s.table.hold, s.table.blocks);
          live.pop_back();
        }
      }
      std::vector<int> uses(kBlocks);
      int private_blocks = 0;
      for (const Live& s : live) {
        for (size_t b = static_cast<size_t>(s.table.hold.blocks); b < s.table.blocks.size(); ++b, ++private_blocks)
          ++uses[static_cast<size_t>(s.table.blocks[b])];
      }
      for (const int n : uses) ASSERT_LE(n, 1) << "seed " << seed;
      ASSERT_EQ(kv_.free_blocks() + cache_.blocks() + private_blocks, kBlocks) << "seed " << seed;
    }
    for (Live& s : live) cache_.release(s.table.hold, s.table.blocks);
    expect_all_there();
    cache_.flush();
    ASSERT_EQ(kv_.free_blocks(), kBlocks) << "seed " << seed;
  }
}

}  // namespace
}  // namespace carpool
