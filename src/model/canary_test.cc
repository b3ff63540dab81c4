// The canary sings the right text whatever the schedule, and another one after any mix-up.
#include "model/canary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <numeric>

#include "text/dummy_tokenizer.h"

namespace carpool {
namespace {

std::vector<int> ids(const std::string& text) { return {text.begin(), text.end()}; }

// One sequence on its way: tokens, how many of them are computed, and its blocks.
struct Song {
  std::vector<int> tokens;
  size_t prompt = 0;
  size_t computed = 0;
  int shift = 0;  // of its positions, by a mistake
  std::vector<int> blocks;

  Song(KvCache& kv, const std::string& text, int room) : tokens(ids(text)), prompt(text.size()) {
    EXPECT_TRUE(kv.take(KvCache::blocks_for(room), blocks));
  }
  std::vector<int> generated() const { return {tokens.begin() + static_cast<long>(prompt), tokens.end()}; }
  std::vector<int> expected() const {
    return CanaryModel::expected(std::span(tokens).first(prompt), static_cast<int>(tokens.size() - prompt));
  }
};

int best(const float* logits, int n) { return static_cast<int>(std::max_element(logits, logits + n) - logits); }

// One step: up to `chunk` tokens of every song; the songs whose tokens are all computed get their next one.
void step(CanaryModel& model, KvCache& kv, const std::vector<Song*>& songs, size_t chunk, const Policy& policy,
          const StepRecord& record = {}) {
  Rows rows;
  std::vector<Song*> owners;
  for (Song* song : songs) {
    const size_t end = std::min(song->tokens.size(), song->computed + chunk);
    for (; song->computed < end; ++song->computed) {
      const bool last = song->computed + 1 == song->tokens.size();
      rows.push(song->tokens[song->computed], static_cast<int>(song->computed) + song->shift, song->blocks.data(), {},
                last);
      if (last) owners.push_back(song);
    }
  }
  rows.push(-1, -1, nullptr, {Phase::kPad, false, 0}, false);
  const Matrix logits = model.forward(rows, kv, policy, record);
  for (size_t i = 0; i < owners.size(); ++i) {
    owners[i]->tokens.push_back(best(logits.row(static_cast<int>(i)), logits.cols));
  }
}

class Canary : public ::testing::Test {
 protected:
  CanaryModel model_;
  KvCache kv_{model_.config(), 4096};
  std::unique_ptr<Policy> topk_ = make_policy("topk");
};

const std::string kPrompt = "In the beginning the pool was without form, and void; and darkness was upon the cache.";

TEST_F(Canary, SingsWhatIsExpectedInChunksOfAnySize) {
  const std::vector<int> whole = CanaryModel::expected(ids(kPrompt), 60);
  for (const size_t chunk : {1, 3, 16, 17, 200}) {
    Song song(kv_, kPrompt, 160);
    while (song.generated().size() < 60) step(model_, kv_, {&song}, chunk, *topk_);
    EXPECT_EQ(song.generated(), whole) << chunk;
    kv_.give_back(song.blocks);
  }
}

TEST_F(Canary, TextsArePrintableAndDifferFromPromptToPrompt) {
  const Tokenizer tokenizer = make_dummy_tokenizer(model_.config().vocab);
  std::vector<int> seen(256);
  for (const std::string prompt : {"a", "b", "ab", "ba", " a", "a "}) {
    const std::vector<int> tokens = CanaryModel::expected(ids(prompt), 300);
    EXPECT_EQ(tokens, CanaryModel::expected(ids(prompt), 300));
    const std::string text = tokenizer.decode(tokens, true);
    EXPECT_EQ(text.size(), 300u);
    for (const char c : text) {
      EXPECT_TRUE(std::isalnum(static_cast<unsigned char>(c)) || c == ' ');
      ++seen[static_cast<unsigned char>(c)];
    }
    EXPECT_NE(tokens, CanaryModel::expected(ids(prompt + "x"), 300));
  }
  EXPECT_EQ(std::count_if(seen.begin(), seen.end(), [](int n) { return n > 0; }), 63);
}

TEST_F(Canary, ManySongsInOneStepDoNotDisturbEachOther) {
  std::vector<Song> songs;
  for (int i = 0; i < 20; ++i) songs.emplace_back(kv_, kPrompt.substr(static_cast<size_t>(i)), 140);
  std::vector<Song*> all;
  for (Song& song : songs) all.push_back(&song);
  for (int i = 0; i < 45; ++i) {
    std::rotate(all.begin(), all.begin() + 7, all.end());
    step(model_, kv_, {all.begin(), all.begin() + 1 + i % 20}, 16, *topk_);
  }
  for (const Song& song : songs) {
    EXPECT_GT(song.generated().size(), 5u);
    EXPECT_EQ(song.generated(), song.expected());
  }
}

TEST_F(Canary, ResumesAfterPreemptionAndOnSharedPrefixBlocks) {
  Song first(kv_, kPrompt, 160);
  while (first.generated().size() < 20) step(model_, kv_, {&first}, 64, *topk_);
  std::vector<int> old = first.blocks;
  first.blocks.clear();
  ASSERT_TRUE(kv_.take(10, first.blocks));  // other blocks; everything is computed once more
  first.computed = 0;
  while (first.generated().size() < 40) step(model_, kv_, {&first}, 24, *topk_);
  EXPECT_EQ(first.generated(), first.expected());

  Song second(kv_, kPrompt.substr(0, 70) + " Another end.", 160);  // shares 4 whole blocks, 64 tokens
  std::copy_n(old.begin(), 4, second.blocks.begin());
  second.computed = 64;
  while (second.generated().size() < 20) step(model_, kv_, {&second}, 64, *topk_);
  EXPECT_EQ(second.generated(), second.expected());
}

// Each kind of mix-up, once, after ten right tokens; the song goes on for 30 tokens.
void expect_wrong(const std::string& what, const std::function<void(Song&, Song&, KvCache&)>& mix_up) {
  CanaryModel model;
  KvCache kv(model.config(), 1024);
  const auto topk = make_policy("topk");
  Song song(kv, kPrompt, 140), other(kv, kPrompt.substr(3), 140);
  while (song.generated().size() < 10) step(model, kv, {&song, &other}, 50, *topk);
  ASSERT_EQ(song.generated(), song.expected());
  mix_up(song, other, kv);
  while (song.generated().size() < 40) step(model, kv, {&song}, 50, *topk);
  EXPECT_NE(song.generated(), song.expected()) << what;
}

TEST_F(Canary, AnyMixUpChangesTheText) {
  const auto copy_slot = [](KvCache& kv, int from, int from_slot, int to, int to_slot) {
    float key[2], value[2];
    const KvLayer layer = kv.layer(0);
    layer.block.load(layer.at(from, 0), from_slot, key, value);
    layer.block.store(layer.at(to, 0), to_slot, key, value);
  };
  expect_wrong("two blocks change places", [](Song& s, Song&, KvCache&) { std::swap(s.blocks[1], s.blocks[3]); });
  expect_wrong("the last block is another's",
               [](Song& s, Song& o, KvCache&) { s.blocks[s.computed / 16] = o.blocks[s.computed / 16]; });
  expect_wrong("the first block is another's", [](Song& s, Song& o, KvCache&) { s.blocks[0] = o.blocks[0]; });
  expect_wrong("a position is left out", [](Song& s, Song&, KvCache&) { s.shift = 1; });
  expect_wrong("a block was overwritten by another's", [&](Song& s, Song& o, KvCache& kv) {
    for (int slot = 0; slot < 16; ++slot) copy_slot(kv, o.blocks[2], slot, s.blocks[2], slot);
  });
  expect_wrong("the state before was overwritten", [&](Song& s, Song& o, KvCache& kv) {
    const auto p = s.computed - 1;
    copy_slot(kv, o.blocks[0], 0, s.blocks[p / 16], static_cast<int>(p % 16));
  });
  expect_wrong("one old position was overwritten",
               [&](Song& s, Song& o, KvCache& kv) { copy_slot(kv, o.blocks[0], 0, s.blocks[1], 7); });
  expect_wrong("another's token was taken", [](Song& s, Song& o, KvCache&) {
    s.tokens.back() = s.tokens.back() == o.tokens.back() ? o.tokens.back() + 1 : o.tokens.back();
  });
  expect_wrong("memory was never written", [](Song& s, Song&, KvCache& kv) {
    std::vector<int> fresh;
    ASSERT_TRUE(kv.take(1, fresh));
    s.blocks[0] = fresh[0];
  });
}

TEST_F(Canary, PoliciesAreRecordedAndHaveNoSayInTheText) {
  const auto oea = make_policy("oea:k0=2");
  oea->check(model_.config().n_experts, model_.config().top_k);
  std::vector<Song> songs;
  for (int i = 0; i < 8; ++i) songs.emplace_back(kv_, kPrompt.substr(static_cast<size_t>(i)), 140);
  std::vector<Song*> all;
  for (Song& song : songs) all.push_back(&song);
  RoutingCounters counters;
  std::vector<RowRouting> rows;
  std::vector<std::vector<int64_t>> experts;
  for (int i = 0; i < 12; ++i) step(model_, kv_, all, 100, *oea, {&counters, &rows, &experts});
  for (const Song& song : songs) EXPECT_EQ(song.generated(), song.expected());
  EXPECT_EQ(counters.layers, 12);
  EXPECT_LT(counters.distinct_experts, counters.distinct_plain);
  ASSERT_EQ(rows.size(), 9u) << "of the last step, with its pad";
  EXPECT_EQ(rows[0].reasons[static_cast<size_t>(PlainReason::kApplied)], 1);
  EXPECT_EQ(rows[8].reasons[static_cast<size_t>(PlainReason::kPhase)], 0);
  ASSERT_EQ(experts.size(), 1u);
  EXPECT_EQ(std::accumulate(experts[0].begin(), experts[0].end(), int64_t{0}), counters.slots);
}

TEST_F(Canary, ItsMemoryIsKnownBeforehand) {
  EXPECT_EQ(model_.step_bytes(1, 0), 8u + 64 * 4);
  EXPECT_EQ(model_.step_bytes(10, 3), 10 * (8u + 64 * 4) + 3 * 257 * 4);
  EXPECT_EQ(CanaryModel({.context = 128}).config().context, 128);
}

}  // namespace
}  // namespace carpool
