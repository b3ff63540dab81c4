// Draws against their frequencies, and every change of logits against numbers worked out by hand.
#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>

namespace carpool {
namespace {

std::map<int, int> histogram(const std::vector<float>& logits, SamplingParams params, int draws = 20000) {
  Sampler sampler;
  std::map<int, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[sampler.pick(logits, params, i)];
  return counts;
}

TEST(Sampler, GreedyTakesTheHighestLogitAndTheLowestIdOnTies) {
  Sampler sampler;
  EXPECT_EQ(sampler.pick(std::vector<float>{1, 3, 2}, {}, 0), 1);
  EXPECT_EQ(sampler.pick(std::vector<float>{1, 3, 3, 3}, {}, 0), 1);
  EXPECT_EQ(sampler.pick(std::vector<float>{-INFINITY, -5, -INFINITY}, {}, 0), 1);
  SamplingParams tiny;
  tiny.temperature = 1e-9f;
  EXPECT_EQ(sampler.pick(std::vector<float>{1e30f, 2e30f, 0}, tiny, 0), 1);
  SamplingParams top1{1.0f, 1, 1.0f, 0.0f, 9};
  EXPECT_EQ(sampler.pick(std::vector<float>{2, 5, 5}, top1, 3), 1);
}

// Several tokens tie for the best: one of them is taken, always the same, also where top_k = 1 is the only cut.
TEST(KnownProblemT9, TiesGiveOneTokenAndItIsTheLowestId) {
  std::vector<float> logits(1200, -3.0f);
  for (const size_t id : {41, 17, 900, 1199}) logits[id] = 2.5f;
  Sampler sampler;
  for (const float temperature : {0.0f, 1e-9f, 0.3f, 1.0f, 50.0f}) {
    for (uint64_t seed = 0; seed < 300; ++seed) {
      Request request;
      request.sampling.temperature = temperature;
      request.sampling.top_k = temperature < 1e-5f ? 0 : 1;
      request.sampling.seed = seed;
      request.logprobs = 3;
      ASSERT_EQ(sampler.pick(logits, request.sampling, 0), 17) << temperature << " seed " << seed;
      const Draw draw = sampler.sample(logits, request, std::vector<int>{5}, {});
      ASSERT_EQ(draw.token, 17) << temperature << " seed " << seed;
      ASSERT_EQ(draw.logprobs->chosen.token, 17);
      ASSERT_EQ(draw.logprobs->top.size(), 3u);
      for (const auto& [place, id] : {std::pair{0, 17}, {1, 41}, {2, 900}}) {
        ASSERT_EQ(draw.logprobs->top[static_cast<size_t>(place)].token, id);
      }
    }
  }
  // A cut through a tie keeps as many as it says, the lowest.
  const auto kept = histogram(logits, {1.0f, 2, 1.0f, 0.0f, 7}, 2000);
  EXPECT_EQ(kept.size(), 2u);
  EXPECT_TRUE(kept.contains(17) && kept.contains(41));
}

TEST(Sampler, NonFiniteLogitsAreReportedAndNeverSampled) {
  Sampler sampler;
  const SamplingParams hot{1.0f, 0, 1.0f, 0.0f, 0};
  for (const SamplingParams& p : {SamplingParams{}, hot}) {
    EXPECT_EQ(sampler.pick(std::vector<float>{1, NAN, 2}, p, 0), -1);
    EXPECT_EQ(sampler.pick(std::vector<float>{1, INFINITY, 2}, p, 0), -1);
    EXPECT_EQ(sampler.pick(std::vector<float>{-INFINITY, -INFINITY}, p, 0), -1);
  }
}

// 20,000 draws: a frequency p has a standard error of at most 0.0036; the bound is five of them.
TEST(Sampler, FrequenciesFollowTheSoftmaxAtTheTemperature) {
  const std::vector<float> logits = {0, 1, 2, 3};
  for (const float temperature : {0.5f, 1.0f, 2.0f}) {
    double total = 0;
    for (const float v : logits) total += std::exp(v / temperature);
    const auto counts = histogram(logits, {temperature, 0, 1.0f, 0.0f, 5});
    for (int i = 0; i < 4; ++i) {
      const double expected = std::exp(logits[static_cast<size_t>(i)] / temperature) / total;
      const auto it = counts.find(i);
      EXPECT_NEAR(it == counts.end() ? 0 : it->second / 20000.0, expected, 0.018) << temperature << " " << i;
    }
  }
}

TEST(Sampler, TopKTopPAndMinPCutTheTail) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};
  const auto ids = [&](SamplingParams p) {
    std::vector<int> out;
    for (const auto& [id, n] : histogram(logits, p)) out.push_back(id);
    return out;
  };
  EXPECT_EQ(ids({1, 0, 1, 0, 1}), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(ids({1, 2, 1, 0, 1}), (std::vector<int>{0, 1}));
  EXPECT_EQ(ids({1, 0, 0.7f, 0, 1}), (std::vector<int>{0, 1}));
  EXPECT_EQ(ids({1, 0, 0.9f, 0, 1}), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(ids({1, 0, 1e-6f, 0, 1}), (std::vector<int>{0}));
  EXPECT_EQ(ids({1, 0, 1, 0.2f, 1}), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(ids({1, 0, 1, 0.99f, 1}), (std::vector<int>{0}));
}

// The tokens that are left when a sorted vocabulary is cut, and their mass, the long way.
std::map<int, double> cut_sorted(const std::vector<float>& logits, const SamplingParams& p) {
  std::vector<int> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::sort(ids.begin(), ids.end(),
            [&](int a, int b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < ids.size()) ids.resize(static_cast<size_t>(p.top_k));
  const auto mass = [&](int id) { return std::exp((double{logits[id]} - logits[ids[0]]) / p.temperature); };
  double total = 0, kept = 0;
  for (const int id : ids) total += mass(id);
  std::map<int, double> out;
  for (const int id : ids) {
    if (!out.empty() && (kept >= p.top_p * total || mass(id) < p.min_p)) break;
    kept += out[id] = mass(id);
  }
  for (auto& [id, m] : out) m /= kept;
  return out;
}

TEST(Sampler, CutsOfALargeVocabularyAreThoseOfSortingIt) {
  std::vector<float> logits(1200);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(12 * uniform_of(3, i)) - 400 * (i % 7 == 0);
  logits[8] = logits[9] = logits[10] = 12.5f;
  logits[11] = -INFINITY;
  for (const SamplingParams& p :
       {SamplingParams{1, 0, 0.9f, 0, 1}, SamplingParams{0.3f, 0, 0.99f, 0, 2}, SamplingParams{1, 40, 1, 0, 3},
        SamplingParams{2, 300, 0.5f, 0, 4}, SamplingParams{1, 2, 1, 0, 5}, SamplingParams{0.5f, 0, 1, 0.4f, 6},
        SamplingParams{1, 100, 0.8f, 0.1f, 7}, SamplingParams{50, 0, 0.97f, 0, 8}, SamplingParams{3, 1200, 1, 0, 9}}) {
    const std::map<int, double> expected = cut_sorted(logits, p);
    const std::map<int, int> drawn = histogram(logits, p, 2000);
    for (const auto& [id, n] : drawn) EXPECT_TRUE(expected.contains(id)) << id << " of seed " << p.seed;
    for (const auto& [id, share] : expected) {
      const auto it = drawn.find(id);  // five standard errors
      EXPECT_NEAR(it == drawn.end() ? 0 : it->second / 2000.0, share, 5 * std::sqrt(share / 2000) + 2e-3) << id;
    }
  }
}

TEST(Sampler, TheDrawIsAFunctionOfSeedAndIndexAlone) {
  const std::vector<float> logits(50, 0.0f);
  Sampler a, b;
  const SamplingParams p{1.0f, 0, 1.0f, 0.0f, 123};
  b.pick(std::vector<float>{1, 2, 3}, p, 0);
  std::map<int, int> seen;
  for (int i = 0; i < 200; ++i) {
    const int token = a.pick(logits, p, i);
    EXPECT_EQ(b.pick(logits, p, i), token);
    ++seen[token];
  }
  EXPECT_GT(seen.size(), 30u) << "draws of different indices must differ";
  EXPECT_NE(uniform_of(1, 0), uniform_of(2, 0));
  EXPECT_NE(uniform_of(1, 0), uniform_of(1, 1));
}

// The greedy token after `generated`, given the prompt {0}; the model has no end tokens.
int greedy(const std::vector<float>& logits, const std::vector<int>& generated, const SamplingParams& params,
           Request request = {}) {
  Sampler sampler;
  request.prompt = {0};
  request.sampling = params;
  std::vector<int> tokens = {0};
  tokens.insert(tokens.end(), generated.begin(), generated.end());
  std::vector<float> work = logits;
  const int token = sampler.sample(work, request, tokens, {}).token;
  EXPECT_EQ(std::memcmp(work.data(), logits.data(), logits.size() * sizeof(float)), 0) << "given back as they were";
  return token;
}

TEST(Penalties, RepetitionDividesPositiveAndMultipliesNegativeLogitsOfPromptAndText) {
  SamplingParams p;
  p.repetition_penalty = 2;
  EXPECT_EQ(greedy({4, 2.1f, 0}, {}, p), 1) << "token 0 of the prompt falls to 2";
  EXPECT_EQ(greedy({4, 1.9f, 0}, {}, p), 0);
  EXPECT_EQ(greedy({0, 4, 2.1f}, {1}, p), 2);
  EXPECT_EQ(greedy({0, 4, 1.9f}, {1, 1, 1}, p), 1) << "once, however often it occurs";
  EXPECT_EQ(greedy({-9, -2, -3.9f}, {1}, p), 2) << "-2 becomes -4";
  EXPECT_EQ(greedy({-9, -2, -4.1f}, {1}, p), 1);
  p.repetition_penalty = 0.5f;
  EXPECT_EQ(greedy({2, 3.9f, 0}, {}, p), 0) << "below 1 it favours what was there";
}

TEST(Penalties, PresenceCountsOnceAndFrequencyEachTimeAndThePromptNot) {
  SamplingParams presence;
  presence.presence_penalty = 1.5f;
  EXPECT_EQ(greedy({3, 1, 2.9f}, {}, presence), 0);
  EXPECT_EQ(greedy({0, 3, 1.6f}, {1}, presence), 2) << "3 - 1.5";
  EXPECT_EQ(greedy({0, 3, 1.4f}, {1, 1, 1}, presence), 1);
  SamplingParams frequency;
  frequency.frequency_penalty = 0.5f;
  EXPECT_EQ(greedy({3, 1, 2.9f}, {}, frequency), 0);
  EXPECT_EQ(greedy({0, 3, 1.9f}, {1, 2, 1}, frequency), 1) << "3 - 2 * 0.5 against 1.9 - 0.5";
  EXPECT_EQ(greedy({0, 3, 2.1f}, {1, 2, 1, 1}, frequency), 2) << "3 - 3 * 0.5 against 2.1 - 0.5";
  frequency.frequency_penalty = -0.5f;
  EXPECT_EQ(greedy({0, 2, 2.9f}, {1, 1}, frequency), 1) << "2 + 2 * 0.5";
  SamplingParams all;
  all.repetition_penalty = 2;
  all.presence_penalty = 1;
  all.frequency_penalty = 0.25f;
  all.logit_bias = {{1, 10.0f}};
  // 8 / 2 - 1 - 2 * 0.25 + 10 = 12.5
  EXPECT_EQ(greedy({0, 8, 12.4f}, {1, 1}, all), 1);
  EXPECT_EQ(greedy({0, 8, 12.6f}, {1, 1}, all), 2);
}

TEST(Penalties, CountsOfOneRequestDoNotReachTheNext) {
  Sampler sampler;
  Request hard, soft;
  hard.prompt = soft.prompt = {0};
  hard.sampling.frequency_penalty = soft.sampling.frequency_penalty = 2;
  std::vector<float> logits = {0, 5, 4};
  EXPECT_EQ(sampler.sample(logits, hard, std::vector<int>{0, 1, 1}, {}).token, 2);
  EXPECT_EQ(sampler.sample(logits, soft, std::vector<int>{0}, {}).token, 1);
  std::vector<float> wide = {0, 5, 4, 6};
  EXPECT_EQ(sampler.sample(wide, soft, std::vector<int>{0, 3}, {}).token, 1) << "a larger vocabulary";
}

TEST(Penalties, ExtremesStayFiniteAndBrokenLogitsAreStillSeen) {
  SamplingParams p;
  p.repetition_penalty = 1e-30f;
  EXPECT_EQ(greedy({1e20f, 0, 0}, {}, p), 0);
  p.logit_bias = {{1, 100.0f}, {2, -100.0f}};
  EXPECT_EQ(greedy({1, INFINITY, 0}, {1}, p), -1);
  EXPECT_EQ(greedy({1, NAN, 0}, {1}, p), -1);
  EXPECT_EQ(greedy({-INFINITY, -INFINITY, -1}, {1}, p), 2) << "what the model bans stays banned";
  EXPECT_EQ(greedy({-INFINITY, -INFINITY, -INFINITY}, {1}, p), -1);
}

TEST(LogitBias, IsAddedBeforeTheChoice) {
  SamplingParams p;
  p.logit_bias = {{2, 3.5f}, {0, -100.0f}};
  EXPECT_EQ(greedy({9, 4, 1}, {}, p), 2);
  p.logit_bias = {{2, 2.5f}, {0, -100.0f}};
  EXPECT_EQ(greedy({9, 4, 1}, {}, p), 1);
  p.temperature = 1;
  p.logit_bias = {{0, 100.0f}};
  EXPECT_EQ(greedy({0, 4, 1}, {}, p), 0) << "drawn, too";
}

TEST(MinTokens, NeitherEndTokensNorStopIdsComeBeforeThem) {
  Sampler sampler;
  Request r;
  r.prompt = {0};
  r.min_tokens = 2;
  r.stop_ids = {3};
  std::vector<float> logits = {1, 2, 5, 4};
  const std::vector<int> ends = {2};
  EXPECT_EQ(sampler.sample(logits, r, std::vector<int>{0}, ends).token, 1);
  EXPECT_EQ(sampler.sample(logits, r, std::vector<int>{0, 1}, ends).token, 1);
  EXPECT_EQ(sampler.sample(logits, r, std::vector<int>{0, 1, 1}, ends).token, 2);
  EXPECT_EQ(logits, (std::vector<float>{1, 2, 5, 4}));
  r.sampling.temperature = 1;
  for (int i = 0; i < 100; ++i) {
    r.sampling.seed = static_cast<uint64_t>(i);
    EXPECT_LT(sampler.sample(logits, r, std::vector<int>{0}, ends).token, 2);
  }
}

TEST(MinTokens, AMaskThatLeavesNothingIsLifted) {
  Sampler sampler;
  Request r;
  r.prompt = {0};
  r.min_tokens = 2;
  r.stop_ids = {0, 1, 1};
  r.sampling.logit_bias = {{0, 3.0f}};
  std::vector<float> logits = {1, 2, -INFINITY};
  EXPECT_EQ(sampler.sample(logits, r, std::vector<int>{0}, std::vector<int>{2}).token, 0) << "the bias stays";
  EXPECT_EQ(logits, (std::vector<float>{1, 2, -INFINITY}));
}

TEST(Logprobs, AreThoseOfTheModelWhateverTheRequestChanges) {
  Sampler sampler;
  Request r;
  r.prompt = {0};
  r.sampling.logit_bias = {{3, 50.0f}};
  r.sampling.temperature = 2;
  std::vector<float> logits = {std::log(8.0f), std::log(4.0f), std::log(2.0f), std::log(2.0f)};  // of 16
  EXPECT_EQ(sampler.sample(logits, r, r.prompt, {}).logprobs, nullptr);
  r.logprobs = 0;
  const Draw plain = sampler.sample(logits, r, r.prompt, {});
  EXPECT_EQ(plain.token, 3);
  ASSERT_NE(plain.logprobs, nullptr);
  EXPECT_EQ(plain.logprobs->chosen.token, 3);
  EXPECT_NEAR(plain.logprobs->chosen.logprob, std::log(1 / 8.0), 1e-6);
  EXPECT_TRUE(plain.logprobs->top.empty());
  r.logprobs = 3;
  const Draw top = sampler.sample(logits, r, r.prompt, {});
  ASSERT_EQ(top.logprobs->top.size(), 3u);
  const int ids[] = {0, 1, 2};  // 2 and 3 are equal: the lower id
  const double shares[] = {0.5, 0.25, 0.125};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(top.logprobs->top[i].token, ids[i]);
    EXPECT_NEAR(top.logprobs->top[i].logprob, std::log(shares[i]), 1e-6);
  }
}

TEST(Logprobs, TheBestAreInOrderWhateverTheOrderOfIds) {
  std::vector<float> logits(1000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>((i * 7919) % 250) * 0.1f;
  std::vector<int> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)]; });
  double sum = 0;
  for (const float v : logits) sum += std::exp(static_cast<double>(v));
  for (const int n : {0, 1, 4, 5, 20}) {
    const TokenLogprobs got = score(logits, 17, n);
    ASSERT_EQ(got.top.size(), static_cast<size_t>(n));
    for (size_t i = 0; i < got.top.size(); ++i) {
      EXPECT_EQ(got.top[i].token, order[i]);
      // Rounded to float32 once: half a unit in the last place of a number below 32.
      const double exact = static_cast<double>(logits[static_cast<size_t>(order[i])]) - std::log(sum);
      EXPECT_NEAR(got.top[i].logprob, exact, 1e-6);
    }
    EXPECT_NEAR(got.chosen.logprob, static_cast<double>(logits[17]) - std::log(sum), 1e-6);
  }
}

TEST(Logprobs, HugeLogitsDoNotOverflowAndBannedTokensAreNotListed) {
  const TokenLogprobs huge = score(std::vector<float>{3e38f, -3e38f, 3e38f}, 0, 3);
  EXPECT_NEAR(huge.chosen.logprob, std::log(0.5), 1e-6);
  EXPECT_EQ(huge.top[0].token, 0);
  EXPECT_EQ(huge.top[1].token, 2);
  const TokenLogprobs banned = score(std::vector<float>{-INFINITY, 1, -INFINITY}, 0, 3);
  EXPECT_EQ(banned.chosen.token, 0);
  EXPECT_EQ(banned.chosen.logprob, -INFINITY);
  ASSERT_EQ(banned.top.size(), 1u);
  EXPECT_EQ(banned.top[0].logprob, 0.0f);
  for (const float broken : {NAN, INFINITY}) EXPECT_EQ(score(std::vector<float>{1, broken}, 0, 2).chosen.token, -1);
  EXPECT_EQ(score(std::vector<float>{-INFINITY}, 0, 2).chosen.token, -1);
}

TEST(Sampler, BrokenLogitsGiveNoTokenAndNoLogprobs) {
  Sampler sampler;
  Request r;
  r.prompt = {0};
  r.logprobs = 2;
  std::vector<float> logits = {1, NAN, 2};
  const Draw draw = sampler.sample(logits, r, r.prompt, {});
  EXPECT_EQ(draw.token, -1);
  EXPECT_EQ(draw.logprobs, nullptr);
}

TEST(Sampler, WithNothingAskedForTheChoiceIsThatOfTheLogitsAlone) {
  Sampler sampler;
  Request r;
  r.prompt = {0, 1};
  r.sampling.temperature = 1;
  r.sampling.seed = 5;
  std::vector<float> logits(40);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 7);
  std::vector<int> tokens = r.prompt;
  for (int i = 0; i < 50; ++i) {
    const int token = sampler.sample(logits, r, tokens, std::vector<int>{6}).token;
    EXPECT_EQ(token, sampler.pick(logits, r.sampling, i));
    tokens.push_back(token);
  }
}

}  // namespace
}  // namespace carpool
