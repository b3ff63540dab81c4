// Which rows run next, without a model's arithmetic: the order of admission, decode first, the shared chunk, and
// blocks that come back in every state.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include "model/golden_test_util.h"

namespace carpool {
namespace {

class SchedulerTest : public ::testing::Test {
 protected:
  SchedulerTest() : kv_(read_model_config(golden::kFolder + "/float32_untied"), 16 * 8) {}

  RequestId add(Scheduler& scheduler, int prompt, int max_tokens) {
    auto s = std::make_unique<Sequence>();
    s->id = next_++;
    s->request.prompt.assign(static_cast<size_t>(prompt), 1);
    s->request.max_tokens = max_tokens;
    s->tokens = s->request.prompt;
    scheduler.add(std::move(s));
    return next_ - 1;
  }
  // Gives every owner of the batch one more token, as the engine does.
  static void extend(Batch& batch) {
    for (Sequence* s : batch.owners) s->tokens.push_back(2);
  }

  KvCache kv_;
  Batch batch_;
  RequestId next_ = 1;
};

TEST_F(SchedulerTest, NothingToDoIsSaid) {
  Scheduler scheduler(kv_, 4, 8);
  EXPECT_FALSE(scheduler.next(batch_));
}

TEST_F(SchedulerTest, TheChunkIsSharedByPromptsOldestFirst) {
  Scheduler scheduler(kv_, 4, 8);
  add(scheduler, 5, 2);
  add(scheduler, 6, 2);
  ASSERT_TRUE(scheduler.next(batch_));
  EXPECT_EQ(batch_.prefill_rows, 8);
  EXPECT_EQ(batch_.rows.positions, (std::vector<int>{0, 1, 2, 3, 4, 0, 1, 2}));
  ASSERT_EQ(batch_.owners.size(), 1u) << "only a finished prompt brings logits";
  EXPECT_EQ(batch_.rows.logit_rows, std::vector<int>{4});
}

TEST_F(SchedulerTest, DecodeRowsComeFirstAndDoNotCountAgainstTheChunk) {
  Scheduler scheduler(kv_, 4, 3);
  add(scheduler, 3, 9);
  ASSERT_TRUE(scheduler.next(batch_));
  extend(batch_);
  add(scheduler, 7, 2);
  for (const int expected : {3, 3, 1}) {
    ASSERT_TRUE(scheduler.next(batch_));
    EXPECT_EQ(batch_.decode_rows, 1);
    EXPECT_EQ(batch_.prefill_rows, expected);
    EXPECT_EQ(batch_.rows.info[0].phase, Phase::kDecode);
    extend(batch_);
  }
  ASSERT_TRUE(scheduler.next(batch_));
  EXPECT_EQ(batch_.decode_rows, 2);
  EXPECT_EQ(batch_.prefill_rows, 0);
}

TEST_F(SchedulerTest, TheBatchLimitAndThePoolHoldRequestsBackInOrder) {
  Scheduler narrow(kv_, 2, 64);
  for (int i = 0; i < 3; ++i) add(narrow, 2, 2);
  narrow.next(batch_);
  EXPECT_EQ(narrow.running(), 2);
  EXPECT_EQ(narrow.waiting(), 1);
  for (RequestId id = 1; id <= 3; ++id) EXPECT_NE(narrow.remove(id), nullptr);

  Scheduler pool(kv_, 8, 64);
  add(pool, 90, 8);  // 97 positions: 7 of 8 blocks
  add(pool, 20, 8);  // 2 blocks: waits
  add(pool, 4, 4);   // would fit, but nobody overtakes
  pool.next(batch_);
  EXPECT_EQ(pool.running(), 1);
  EXPECT_EQ(pool.waiting(), 2);
  EXPECT_EQ(kv_.free_blocks(), 1);
}

TEST_F(SchedulerTest, RemoveWorksInEveryStateAndReturnsTheBlocks) {
  Scheduler scheduler(kv_, 1, 4);
  const RequestId running = add(scheduler, 10, 4), waiting = add(scheduler, 3, 4);
  scheduler.next(batch_);
  EXPECT_EQ(scheduler.remove(99), nullptr);
  ASSERT_NE(scheduler.remove(waiting), nullptr);
  EXPECT_EQ(scheduler.waiting(), 0);
  ASSERT_NE(scheduler.remove(running), nullptr);
  EXPECT_EQ(scheduler.remove(running), nullptr);
  EXPECT_EQ(kv_.free_blocks(), kv_.total_blocks());
}

TEST_F(SchedulerTest, TheLastTokenNeedsNoRoomOfItsOwn) {
  Scheduler scheduler(kv_, 1, 4);
  add(scheduler, 10, 7);  // positions 0..15: exactly one block
  scheduler.next(batch_);
  EXPECT_EQ(kv_.free_blocks(), kv_.total_blocks() - 1);
}

}  // namespace
}  // namespace carpool
