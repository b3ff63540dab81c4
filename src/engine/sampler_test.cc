#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace carpool {
namespace {

std::map<int, int> histogram(const std::vector<float>& logits, SamplingParams params, int draws = 20000) {
  Sampler sampler;
  std::map<int, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[sampler.sample(logits, params, i)];
  return counts;
}

TEST(Sampler, GreedyTakesTheHighestLogitAndTheLowestIdOnTies) {
  Sampler sampler;
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 3, 2}, {}, 0), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 3, 3, 3}, {}, 0), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{-INFINITY, -5, -INFINITY}, {}, 0), 1);
  SamplingParams tiny;
  tiny.temperature = 1e-9f;
  EXPECT_EQ(sampler.sample(std::vector<float>{1e30f, 2e30f, 0}, tiny, 0), 1);
  SamplingParams top1{1.0f, 1, 1.0f, 0.0f, 9};
  EXPECT_EQ(sampler.sample(std::vector<float>{2, 5, 5}, top1, 3), 1);
}

TEST(Sampler, NonFiniteLogitsAreReportedAndNeverSampled) {
  Sampler sampler;
  const SamplingParams hot{1.0f, 0, 1.0f, 0.0f, 0};
  for (const SamplingParams& p : {SamplingParams{}, hot}) {
    EXPECT_EQ(sampler.sample(std::vector<float>{1, NAN, 2}, p, 0), -1);
    EXPECT_EQ(sampler.sample(std::vector<float>{1, INFINITY, 2}, p, 0), -1);
    EXPECT_EQ(sampler.sample(std::vector<float>{-INFINITY, -INFINITY}, p, 0), -1);
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

TEST(Sampler, TheDrawIsAFunctionOfSeedAndIndexAlone) {
  const std::vector<float> logits(50, 0.0f);
  Sampler a, b;
  const SamplingParams p{1.0f, 0, 1.0f, 0.0f, 123};
  b.sample(std::vector<float>{1, 2, 3}, p, 0);
  std::map<int, int> seen;
  for (int i = 0; i < 200; ++i) {
    const int token = a.sample(logits, p, i);
    EXPECT_EQ(b.sample(logits, p, i), token);
    ++seen[token];
  }
  EXPECT_GT(seen.size(), 30u) << "draws of different indices must differ";
  EXPECT_NE(uniform_of(1, 0), uniform_of(2, 0));
  EXPECT_NE(uniform_of(1, 0), uniform_of(1, 1));
}

}  // namespace
}  // namespace carpool
