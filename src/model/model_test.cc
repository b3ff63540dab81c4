// The model against transformers: tiny random checkpoints whose logits and greedy continuations are on file, and the
// promises that hold to the bit: a row is a row, plain means plain, padding is nothing.
//
// Golden files: python/golden/make_qwen3_moe.py. The greedy margins on file are far above the tolerance, so a wrong
// token is a wrong model and not a near-tie.
#include "model/model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/golden_test_util.h"

namespace carpool {
namespace {

using namespace golden;  // NOLINT(google-build-using-namespace)

// Largest |a - b| allowed between two float32 evaluations of a model of this size. Each of the L layers and the head
// adds sums of at most n = 48 terms, each of relative error n * 2^-24 of the sum of magnitudes; with logits of
// magnitude m and a growth of up to 2 per layer this stays below m * (L + 1) * 2^L * n * 2^-24.
float tolerance(const std::vector<float>& reference, int layers) {
  float m = 1;
  for (const float v : reference) m = std::max(m, std::abs(v));
  return m * static_cast<float>((layers + 1) * (1 << layers)) * 48 * 0x1p-24f;
}

void expect_close(const std::vector<float>& got, const std::vector<float>& want, int layers, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  const float bound = tolerance(want, layers);
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], bound) << what << " logit " << i;
}

TEST(ModelGolden, ThereAreCasesForEveryBranchOfTheFamily) { EXPECT_GE(cases().size(), 5u); }

TEST(ModelGolden, LogitsAgreeWithTransformersOnEveryIsa) {
  for (const std::string& isa : cpu_isa_names()) {
    for (const std::string& name : cases()) {
      Model model = load(name, isa);
      KvCache kv(model.config(), 4096);
      for (const GoldenPrompt& g : prompts(kFolder + "/" + name)) {
        Place place(kv, 128);
        const auto logits = prefill(model, kv, place, g.tokens, 512);
        const std::string what = isa + " " + name;
        expect_close(logits.back(), g.last_logits, model.config().layers, what);
        const auto V = static_cast<size_t>(model.config().vocab);
        for (size_t p = 0; p * V < g.all_logits.size(); ++p) {
          expect_close(logits[p],
                       {g.all_logits.begin() + static_cast<std::ptrdiff_t>(p * V),
                        g.all_logits.begin() + static_cast<std::ptrdiff_t>((p + 1) * V)},
                       model.config().layers, what);
        }
        kv.give_back(place.blocks);
      }
    }
  }
}

TEST(ModelGolden, SixtyFourGreedyTokensAreThoseOfTransformers) {
  const auto topk = make_policy("topk");
  for (const std::string& isa : cpu_isa_names()) {
    for (const std::string& name : cases()) {
      Model model = load(name, isa);
      KvCache kv(model.config(), 4096);
      for (const GoldenPrompt& g : prompts(kFolder + "/" + name)) {
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
