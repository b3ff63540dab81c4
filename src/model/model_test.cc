// Every family against transformers: tiny random checkpoints whose logits and greedy continuations are on file.
//
// Golden files: python/golden/make_<family>.py. The greedy margins on file are far above the tolerance, so a wrong
// token is a wrong model and not a near-tie. The promises that hold to the bit are in promises_test.cc.
#include "model/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "model/golden_test_util.h"

namespace carpool {
namespace {

using namespace golden;  // NOLINT(google-build-using-namespace)

// Terms of the longest sum that a logit is made of.
int longest_sum(const ModelConfig& c, int positions) {
  const int value = c.latent ? c.latent->value : c.value_dim;
  return std::max(
      {48, positions, c.width, c.q_width(), c.heads * value, c.dense_width, c.expert_width, c.shared_width});
}

// Largest |a - b| allowed between two float32 evaluations of a model of this size. Each of the L layers and the head
// adds sums of at most n terms, each of relative error n * 2^-24 of the sum of magnitudes; with logits of magnitude m
// and a growth of up to 2 per layer this stays below m * (L + 1) * 2^L * n * 2^-24.
float tolerance(const std::vector<float>& reference, const ModelConfig& c, int positions) {
  float m = 1;
  for (const float v : reference) m = std::max(m, std::abs(v));
  return m * static_cast<float>((c.layers + 1) * (1 << c.layers)) * static_cast<float>(longest_sum(c, positions)) *
         0x1p-24f;
}

// The largest difference and the least tolerance of the logits compared, for people who read the log.
struct Worst {
  float difference = 0, tolerance = INFINITY;
};

void expect_close(const std::vector<float>& got, const std::vector<float>& want, float bound, const std::string& what,
                  Worst& worst) {
  ASSERT_EQ(got.size(), want.size()) << what;
  worst.tolerance = std::min(worst.tolerance, bound);
  for (size_t i = 0; i < got.size(); ++i) {
    worst.difference = std::max(worst.difference, std::abs(got[i] - want[i]));
    ASSERT_NEAR(got[i], want[i], bound) << what << " logit " << i;
  }
}

// The logits of `prompt`, computed in chunks, against those on file.
void compare(Model& model, KvCache& kv, const GoldenPrompt& g, int chunk, const std::string& what, Worst& worst) {
  const int positions = static_cast<int>(g.tokens.size());
  Place place(kv, positions);
  const auto logits = prefill(model, kv, place, g.tokens, chunk);
  expect_close(logits.back(), g.last_logits, tolerance(g.last_logits, model.config(), positions), what, worst);
  const auto V = static_cast<size_t>(model.config().vocab);
  for (size_t p = 0; p * V < g.all_logits.size(); ++p) {
    const auto at = g.all_logits.begin() + static_cast<std::ptrdiff_t>(p * V);
    const std::vector<float> want(at, at + static_cast<std::ptrdiff_t>(V));
    expect_close(logits[p], want, tolerance(want, model.config(), positions), what, worst);
  }
  kv.give_back(place.blocks);
}

TEST(ModelGolden, ThereAreCasesForEveryFamily) {
  EXPECT_GE(cases().size(), 5u);
  for (const std::string& family : families()) EXPECT_FALSE(cases(family).empty()) << family;
}

TEST(ModelGolden, LogitsAgreeWithTransformersOnEveryIsa) {
  for (const std::string& isa : cpu_isa_names()) {
    for (const std::string& name : all_cases()) {
      Model model = load(name, isa);
      KvCache kv(model.config(), 4096);
      Worst worst;
      for (const GoldenPrompt& g : prompts(folder(name))) compare(model, kv, g, 512, isa + " " + name, worst);
      std::printf("%s %s: largest difference %.3g, least tolerance %.3g\n", isa.c_str(), name.c_str(), worst.difference,
                  worst.tolerance);
    }
  }
}

TEST(ModelGolden, SixtyFourGreedyTokensAreThoseOfTransformers) {
  const auto topk = make_policy("topk");
  for (const std::string& isa : cpu_isa_names()) {
    for (const std::string& name : all_cases()) {
      Model model = load(name, isa);
      KvCache kv(model.config(), 4096);
      for (const GoldenPrompt& g : prompts(folder(name))) {
        ASSERT_EQ(g.greedy.size(), 64u);
        Place place(kv, 128);
        std::vector<int> got{argmax(prefill(model, kv, place, g.tokens, 16).back())};
        for (int p = static_cast<int>(g.tokens.size()); got.size() < 64; ++p)
          got.push_back(argmax(decode(model, kv, place, got.back(), p, *topk)));
        EXPECT_EQ(got, g.greedy) << isa << " " << name;
        kv.give_back(place.blocks);
      }
    }
  }
}

}  // namespace
}  // namespace carpool
