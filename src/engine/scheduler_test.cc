// Which rows run next, without a model's arithmetic: the order of admission, decode first, the shared chunk, who gives
// way when blocks run out, what is reused, and blocks that come back in every state.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <numeric>

#include "model/golden_test_util.h"

namespace carpool {
namespace {

class SchedulerTest : public ::testing::Test {
 protected:
  static constexpr int kBlocks = 8;

  SchedulerTest() : kv_(read_model_config(golden::kFolder + "/float32_untied"), 16 * kBlocks) {}

  static std::unique_ptr<Sequence> sequence(RequestId id, std::vector<int> prompt, int max_tokens) {
    auto s = std::make_unique<Sequence>();
    s->id = id;
    s->request.prompt = std::move(prompt);
    s->request.max_tokens = max_tokens;
    s->tokens = s->request.prompt;
    return s;
  }
  RequestId add(Scheduler& scheduler, int prompt, int max_tokens, int tenant = 0) {
    auto s = sequence(next_++, std::vector<int>(static_cast<size_t>(prompt), 1), max_tokens);
    s->request.tenant = tenant;
    scheduler.add(std::move(s));
    return next_ - 1;
  }
  // A prompt of first, first + 1, ...
  RequestId add_text(Scheduler& scheduler, int first, int prompt, int max_tokens) {
    std::vector<int> text(static_cast<size_t>(prompt));
    std::iota(text.begin(), text.end(), first);
    scheduler.add(sequence(next_++, std::move(text), max_tokens));
    return next_ - 1;
  }
  // Gives every owner of the batch one more token, as the engine does.
  static void extend(Batch& batch) {
    for (Sequence* s : batch.owners) s->tokens.push_back(2);
  }
  // One step: what the model and the engine do. Decode rows were re-routed in a layer if `routed`.
  bool step(Scheduler& scheduler, bool routed = false) {
    if (!scheduler.next(batch_)) return false;
    std::vector<RowRouting> rows(static_cast<size_t>(batch_.rows.size()));
    for (int r = 0; r < batch_.decode_rows; ++r) rows[static_cast<size_t>(r)].reasons[0] = routed;
    scheduler.computed(batch_, rows, 0.01);
    extend(batch_);
    for (const auto& s : std::vector<Sequence*>(batch_.owners)) {
      if (s->generated() >= s->request.max_tokens) scheduler.remove(s->id);
    }
    return true;
  }
  const Sequence& find(const Scheduler& scheduler, RequestId id) {
    for (const auto& s : scheduler.sequences()) {
      if (s->id == id) return *s;
    }
    throw std::runtime_error("does not run");
  }

  KvCache kv_;
  Batch batch_;
  RequestId next_ = 1;
};

TEST_F(SchedulerTest, NothingToDoIsSaid) {
  Scheduler scheduler(kv_, {.max_batch = 4, .chunk = 8});
  EXPECT_FALSE(scheduler.next(batch_));
}

TEST_F(SchedulerTest, TheChunkIsSharedByPromptsOldestFirst) {
  Scheduler scheduler(kv_, {.max_batch = 4, .chunk = 8});
  add(scheduler, 5, 2);
  add(scheduler, 6, 2);
  ASSERT_TRUE(scheduler.next(batch_));
  EXPECT_EQ(batch_.prefill_rows, 8);
  EXPECT_EQ(batch_.rows.positions, (std::vector<int>{0, 1, 2, 3, 4, 0, 1, 2}));
  ASSERT_EQ(batch_.owners.size(), 1u) << "only a finished prompt brings logits";
  EXPECT_EQ(batch_.rows.logit_rows, std::vector<int>{4});
  EXPECT_EQ(batch_.admitted, (std::vector<RequestId>{1, 2}));
}

TEST_F(SchedulerTest, DecodeRowsComeFirstAndDoNotCountAgainstTheChunk) {
  Scheduler scheduler(kv_, {.max_batch = 4, .chunk = 3});
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

TEST_F(SchedulerTest, ALongPromptOfOneTenantDoesNotKeepAnothersWaiting) {
  Scheduler scheduler(kv_, {.max_batch = 4, .chunk = 16});
  add(scheduler, 90, 2, 0);
  add(scheduler, 20, 2, 0);
  add(scheduler, 10, 2, 1);
  ASSERT_TRUE(scheduler.next(batch_));
  EXPECT_EQ(batch_.rows.positions, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7}));
  ASSERT_EQ(batch_.parts.size(), 2u);
  EXPECT_EQ(batch_.parts[1].sequence->request.tenant, 1);
  ASSERT_TRUE(scheduler.next(batch_));
  EXPECT_EQ(batch_.parts[0].rows, 14) << "what the other does not need goes to the oldest";
  EXPECT_EQ(batch_.parts[1].rows, 2);
}

TEST_F(SchedulerTest, PromptRowsBesideDecodeRowsAreCutToTheTarget) {
  KvCache roomy(read_model_config(golden::kFolder + "/float32_untied"), 16 * 64);
  Scheduler scheduler(roomy, {.max_batch = 4, .chunk = 100, .step_target_s = 0.05});
  add(scheduler, 10, 9);
  add(scheduler, 500, 9);
  const auto run = [&] {
    EXPECT_TRUE(scheduler.next(batch_));
    scheduler.computed(batch_, std::vector<RowRouting>(static_cast<size_t>(batch_.rows.size())),
                       0.002 * batch_.prefill_rows);
    extend(batch_);
  };
  run();
  EXPECT_EQ(batch_.prefill_rows, 100) << "nobody waits for a next token yet";
  run();
  EXPECT_EQ(batch_.decode_rows, 1);
  EXPECT_EQ(batch_.prefill_rows, 25) << "2 ms each";
}

TEST_F(SchedulerTest, TheBatchLimitAndThePoolHoldRequestsBackInOrder) {
  Scheduler narrow(kv_, {.max_batch = 2, .chunk = 64});
  for (int i = 0; i < 3; ++i) add(narrow, 2, 2);
  narrow.next(batch_);
  EXPECT_EQ(narrow.running(), 2);
  EXPECT_EQ(narrow.waiting(), 1);
  for (RequestId id = 1; id <= 3; ++id) EXPECT_NE(narrow.remove(id), nullptr);

  Scheduler pool(kv_, {.max_batch = 8, .chunk = 64});
  add(pool, 90, 8);  // 97 positions: 7 of 8 blocks
  add(pool, 20, 8);  // 2 blocks: waits
  add(pool, 4, 4);   // would fit, but nobody overtakes
  pool.next(batch_);
  EXPECT_EQ(pool.running(), 1);
  EXPECT_EQ(pool.waiting(), 2);
  EXPECT_EQ(kv_.free_blocks(), 1);
}

TEST_F(SchedulerTest, RemoveWorksInEveryStateAndReturnsTheBlocks) {
  Scheduler scheduler(kv_, {.max_batch = 1, .chunk = 4});
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
  Scheduler scheduler(kv_, {.max_batch = 1, .chunk = 4});
  add(scheduler, 10, 7);  // positions 0..15: exactly one block
  scheduler.next(batch_);
  EXPECT_EQ(kv_.free_blocks(), kv_.total_blocks() - 1);
}

TEST_F(SchedulerTest, OneTenantsFloodDoesNotKeepAnotherWaiting) {
  Scheduler scheduler(kv_, {.max_batch = 2, .chunk = 64});
  for (int i = 0; i < 50; ++i) add(scheduler, 10, 3, 0);
  step(scheduler);
  const RequestId other = add(scheduler, 10, 3, 1);
  std::vector<RequestId> admitted;
  while (step(scheduler)) admitted.insert(admitted.end(), batch_.admitted.begin(), batch_.admitted.end());
  const auto turn = std::find(admitted.begin(), admitted.end(), other) - admitted.begin();
  EXPECT_LE(turn, 1) << "among the next two";
}

TEST_F(SchedulerTest, WhenBlocksRunOutTheNewestGivesWayAndComesBackWithItsTokens) {
  Scheduler scheduler(kv_, {.max_batch = 4, .chunk = 64, .preempt = true});
  const RequestId first = add(scheduler, 40, 60), second = add(scheduler, 40, 60);  // 7 blocks each at their ends
  while (scheduler.preemptions() == 0) ASSERT_TRUE(step(scheduler));
  EXPECT_EQ(scheduler.running(), 1);
  EXPECT_EQ(find(scheduler, first).id, first) << "the oldest goes on";
  EXPECT_EQ(batch_.decode_rows, 1);
  EXPECT_EQ(scheduler.waiting(), 1);
  int steps = 0;
  while (scheduler.running() + scheduler.waiting() > 0) {
    ASSERT_TRUE(step(scheduler));
    ASSERT_LT(++steps, 200);
    if (scheduler.running() == 0) continue;
    const Sequence& s = *scheduler.sequences().front();
    if (s.id == second && batch_.prefill_rows > 0) {
      ASSERT_GT(s.prompt_end, 40) << "prompt and generated tokens";
    }
  }
  EXPECT_EQ(kv_.free_blocks(), kBlocks);
}

TEST_F(SchedulerTest, ASequenceThatCameBackIsNotCountedAsAdmittedAgain) {
  Scheduler scheduler(kv_, {.max_batch = 4, .chunk = 64, .preempt = true});
  add(scheduler, 40, 60);
  add(scheduler, 40, 60);
  size_t admitted = 0;
  while (step(scheduler)) admitted += batch_.admitted.size();
  EXPECT_EQ(admitted, 2u);
  EXPECT_GE(scheduler.preemptions(), 1);
}

TEST_F(SchedulerTest, NobodyIsAdmittedWhoWouldAtOnceMakeSomebodyGiveWay) {
  Scheduler scheduler(kv_, {.max_batch = 8, .chunk = 128, .preempt = true});
  add(scheduler, 48, 40);  // 3 blocks, soon a fourth
  add(scheduler, 60, 40);  // 4 more, and one is left for the first
  add(scheduler, 10, 3);   // would take that one
  step(scheduler);
  EXPECT_EQ(scheduler.running(), 2);
  EXPECT_EQ(scheduler.preemptions(), 0);
}

TEST_F(SchedulerTest, ASequenceThatNeedsTheWholePoolRunsAlone) {
  Scheduler scheduler(kv_, {.max_batch = 4, .chunk = 64, .preempt = true});
  add(scheduler, 10, 16 * kBlocks - 10 + 1);
  add(scheduler, 16 * kBlocks, 1);
  int steps = 0;
  while (scheduler.running() + scheduler.waiting() > 0) {
    ASSERT_TRUE(step(scheduler));
    ASSERT_LT(++steps, 300);
  }
  EXPECT_EQ(kv_.free_blocks(), kBlocks);
}

TEST_F(SchedulerTest, APromptThatWasComputedBeforeIsNotComputedAgain) {
  Scheduler scheduler(kv_, {.max_batch = 4, .chunk = 64, .prefix_cache = true});
  add_text(scheduler, 0, 40, 3);
  while (step(scheduler)) {
  }
  EXPECT_EQ(scheduler.prefix_cache().unheld(), 2);
  add_text(scheduler, 0, 40, 3);
  ASSERT_TRUE(step(scheduler));
  EXPECT_EQ(batch_.rows.positions, (std::vector<int>{32, 33, 34, 35, 36, 37, 38, 39}));
  EXPECT_EQ(batch_.parts[0].sequence->stats.cached_tokens, 32);
  EXPECT_EQ(scheduler.prefix_queries(), 80);
  EXPECT_EQ(scheduler.prefix_hits(), 32);
  EXPECT_EQ(scheduler.prefix_reasons()[static_cast<size_t>(PrefixReason::kWhole)], 1);
  EXPECT_EQ(scheduler.prefix_reasons()[static_cast<size_t>(PrefixReason::kNoMatch)], 1);
}

TEST_F(SchedulerTest, AWholePromptInTheCacheStillComputesItsLastBlock) {
  Scheduler scheduler(kv_, {.max_batch = 4, .chunk = 64, .prefix_cache = true});
  for (int i = 0; i < 2; ++i) {
    add_text(scheduler, 0, 32, 1);
    ASSERT_TRUE(step(scheduler));
    ASSERT_EQ(batch_.owners.size(), 1u) << "its logits are wanted";
    EXPECT_EQ(batch_.rows.positions.front(), i == 0 ? 0 : 16);
  }
  EXPECT_EQ(kv_.free_blocks() + scheduler.prefix_cache().unheld(), kBlocks);
}

TEST_F(SchedulerTest, RequestsOfOnePromptThatComeTogetherComputeItOnce) {
  for (const int chunk : {7, 16, 64}) {
    Scheduler scheduler(kv_, {.max_batch = 4, .chunk = chunk, .prefix_cache = true});
    for (int i = 0; i < 3; ++i) add_text(scheduler, 0, 33, 2);
    int rows = 0;
    while (step(scheduler)) rows += batch_.prefill_rows;
    EXPECT_EQ(rows, 33 + 1 + 1) << "chunk " << chunk;
    EXPECT_EQ(scheduler.prefix_hits(), 64);
    scheduler.prefix_cache().flush();
  }
}

TEST_F(SchedulerTest, PromptsThatOnlyBeginAlikePartWaysWhereTheyDiffer) {
  Scheduler scheduler(kv_, {.max_batch = 4, .chunk = 64, .prefix_cache = true});
  add_text(scheduler, 0, 50, 2);
  auto s = sequence(next_++, std::vector<int>(33, 7), 2);
  std::iota(s->tokens.begin(), s->tokens.begin() + 16, 0);
  s->request.prompt = s->tokens;
  scheduler.add(std::move(s));
  add_text(scheduler, 100, 10, 2);
  ASSERT_TRUE(step(scheduler));
  EXPECT_EQ(batch_.prefill_rows, 60) << "the second waits for the first block of the first, the third for nobody";
  ASSERT_TRUE(step(scheduler));
  EXPECT_EQ(batch_.prefill_rows, 17) << "and needs only that one";
}

TEST_F(SchedulerTest, ACancelledPromptLeavesWhatItComputed) {
  Scheduler scheduler(kv_, {.max_batch = 4, .chunk = 40, .prefix_cache = true});
  const RequestId id = add_text(scheduler, 0, 100, 3);
  ASSERT_TRUE(step(scheduler));
  ASSERT_NE(scheduler.remove(id), nullptr);
  EXPECT_EQ(scheduler.prefix_cache().unheld(), 2);
  EXPECT_EQ(kv_.free_blocks(), kBlocks - 2);
  add_text(scheduler, 0, 100, 3);
  ASSERT_TRUE(step(scheduler));
  EXPECT_EQ(batch_.rows.positions.front(), 32);
}

TEST_F(SchedulerTest, WhatAPolicyDecidedNeverEntersTheCache) {
  for (const bool routed : {false, true}) {
    Scheduler scheduler(kv_, {.max_batch = 4, .chunk = 64, .prefix_cache = true});
    add_text(scheduler, 0, 20, 30);
    while (step(scheduler, routed)) {
    }
    EXPECT_EQ(scheduler.prefix_cache().unheld(), routed ? 1 : 3)
        << "48 positions, 16 of them in the prompt's full block";
    scheduler.prefix_cache().flush();
  }
}

TEST_F(SchedulerTest, OneRoutedRowSpoilsAllThatComesAfterIt) {
  Scheduler scheduler(kv_, {.max_batch = 4, .chunk = 64, .prefix_cache = true});
  add_text(scheduler, 0, 16, 60);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(step(scheduler, i == 5));
  ASSERT_NE(scheduler.remove(1), nullptr);
  EXPECT_EQ(scheduler.prefix_cache().unheld(), 1);
}

TEST_F(SchedulerTest, ARequestMayStayOutOfTheCache) {
  Scheduler scheduler(kv_, {.max_batch = 4, .chunk = 64, .prefix_cache = true});
  for (int i = 0; i < 2; ++i) {
    auto s = sequence(next_++, std::vector<int>(40, 1), 2);
    s->request.cache_prefix = false;
    scheduler.add(std::move(s));
    while (step(scheduler)) {
    }
    EXPECT_EQ(kv_.free_blocks(), kBlocks);
  }
  EXPECT_EQ(scheduler.prefix_reasons()[static_cast<size_t>(PrefixReason::kOff)], 2);
  EXPECT_EQ(scheduler.prefix_queries(), 0);
}

TEST_F(SchedulerTest, APersonIsNotToldThatSomebodyElseHasTheSamePrompt) {
  Scheduler scheduler(kv_, {.max_batch = 4, .chunk = 64, .prefix_cache = true});
  add(scheduler, 40, 1, 0);
  ASSERT_TRUE(step(scheduler));
  add(scheduler, 40, 3, 1);
  ASSERT_TRUE(step(scheduler));
  EXPECT_EQ(batch_.prefill_rows, 40);
  EXPECT_EQ(scheduler.sequences()[0]->stats.prefix, PrefixReason::kNoMatch);
  EXPECT_EQ(scheduler.prefix_reasons()[static_cast<size_t>(PrefixReason::kOtherTenant)], 1) << "the operator is";
}

TEST_F(SchedulerTest, APreemptedSequenceComesBackToItsCachedBlocks) {
  Scheduler scheduler(kv_, {.max_batch = 4, .chunk = 64, .prefix_cache = true, .preempt = true});
  add_text(scheduler, 0, 40, 60);
  add_text(scheduler, 500, 40, 60);
  int recomputed = 0;
  bool gave_way = false;
  while (step(scheduler)) {
    if (gave_way) recomputed += batch_.prefill_rows;
    gave_way |= scheduler.preemptions() > 0;
  }
  EXPECT_GT(recomputed, 0);
  EXPECT_LT(recomputed, 60) << "less than prompt and generated tokens";
  EXPECT_EQ(kv_.free_blocks() + scheduler.prefix_cache().unheld(), kBlocks);
}

TEST_F(SchedulerTest, RowsThatOnlyScoreAPromptAreBounded) {
  Scheduler scheduler(kv_, {.max_batch = 2, .chunk = 64, .score_rows = 5, .prefix_cache = true});
  for (int i = 0; i < 2; ++i) {
    auto s = sequence(next_++, std::vector<int>(40, 1), 2);
    s->request.prompt_logprobs = true;
    s->prompt_scores = std::make_shared<std::vector<TokenLogprobs>>(1);
    scheduler.add(std::move(s));
  }
  int scored = 0, steps = 0;
  while (scheduler.next(batch_)) {
    EXPECT_LE(batch_.rows.logit_rows.size(), 7u);
    scheduler.computed(batch_, std::vector<RowRouting>(static_cast<size_t>(batch_.rows.size())), 0.01);
    for (size_t i = 0; i < batch_.owners.size(); ++i) {
      Sequence& s = *batch_.owners[i];
      const int next = batch_.rows.positions[static_cast<size_t>(batch_.rows.logit_rows[i])] + 1;
      if (next == s.size()) {
        s.tokens.push_back(2);
      } else {
        EXPECT_EQ(static_cast<int>(s.prompt_scores->size()), next) << "every token once, in order";
        s.prompt_scores->emplace_back();
        ++scored;
      }
    }
    for (Sequence* s : std::vector<Sequence*>(batch_.owners)) {
      if (s->generated() == 2) scheduler.remove(s->id);
    }
    ASSERT_LT(++steps, 100);
  }
  EXPECT_EQ(scored, 2 * 39) << "the second one too, although its prompt lies in the cache";
}

}  // namespace
}  // namespace carpool
