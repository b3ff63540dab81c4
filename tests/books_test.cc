// The embedded models, end to end: what transformers computes for it, and the same text for a request whoever shares
// the batch. Golden file: python/golden/make_model_golden.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "end_to_end_util.h"
#include "engine/engine.h"
#include "model/golden_test_util.h"

namespace carpool::end_to_end {
namespace {

// Each test runs on each of the models.
class Books : public testing::TestWithParam<const char*> {
 protected:
  std::string folder() const { return kSource + "/models/" + GetParam(); }
  json::value golden_file() const {
    const std::string name = std::string(GetParam()) + ".json";
    return parse_json(slurp(kSource + "/tests/golden/" + name), name);
  }
  Model load_books(const std::string& isa, int threads) const {
    LoadOptions options;
    options.isa = isa;
    options.threads = threads;
    return Model::load(folder(), options);
  }
};

INSTANTIATE_TEST_SUITE_P(Embedded, Books, testing::Values("books-qwen3", "books-glm"), [](const auto& model) {
  std::string name = model.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

struct Answer {
  std::vector<int> tokens;
  std::string text;
  bool operator==(const Answer&) const = default;
};

// Runs `prompts` together; neighbours that come and go are the callers' further prompts with other lengths.
std::map<RequestId, Answer> run(Engine& engine) {
  std::map<RequestId, Answer> out;
  while (engine.step()) {
    for (const Event& e : engine.last_step().events) {
      if (e.token >= 0) out[e.id].tokens.push_back(e.token);
      out[e.id].text += e.text;
    }
  }
  return out;
}

Request request_of(std::vector<int> prompt, int max_tokens) {
  Request r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  r.ignore_eos = true;
  return r;
}

TEST_P(Books, PromptsAreTokenizedAndContinuedAsTransformersDoesOnEveryIsa) {
  const Tokenizer tokenizer = Tokenizer::load(folder() + "/tokenizer.json");
  const json::value root = golden_file();
  for (const std::string& isa : cpu_isa_names()) {
    Model model = load_books(isa, 2);
    Engine engine(model, &tokenizer, make_policy("topk"), {16, 64, 0});
    for (const json::value& p : root.at("prompts").as_array()) {
      EXPECT_EQ(tokenizer.encode(std::string_view(p.at("text").as_string()), true, false),
                golden::ints(p.at("tokens")));
      engine.submit(request_of(golden::ints(p.at("tokens")), 64));
    }
    const auto answers = run(engine);
    RequestId id = 1;
    for (const json::value& p : root.at("prompts").as_array()) {
      EXPECT_EQ(answers.at(id).tokens, golden::ints(p.at("greedy"))) << isa;
      EXPECT_EQ(answers.at(id).text, std::string(p.at("greedy_text").as_string())) << isa;
      ++id;
    }
  }
}

// Each of the L layers and the head sums at most n terms with a relative error of n * 2^-24 of the sum of magnitudes;
// growth of up to 2 per layer, as in model_test.cc.
TEST_P(Books, LogitsAgreeWithTransformersWithinTheDerivedTolerance) {
  const json::value root = golden_file();
  for (const std::string& isa : cpu_isa_names()) {
    Model model = load_books(isa, 2);
    const ModelConfig& c = model.config();
    const int terms = std::max({c.width, c.dense_width, c.q_width()});
    KvCache kv(c, 1024);
    for (const json::value& p : root.at("prompts").as_array()) {
      golden::Place place(kv, 256);
      const auto got = golden::prefill(model, kv, place, golden::ints(p.at("tokens")), 64).back();
      const std::vector<float> want = golden::floats(p.at("last_logits"));
      ASSERT_EQ(got.size(), want.size());
      float largest = 1;
      for (const float v : want) largest = std::max(largest, std::abs(v));
      const float bound = largest * static_cast<float>(c.layers + 1) * std::exp2(static_cast<float>(c.layers)) *
                          static_cast<float>(terms) * 0x1p-24f;
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], bound) << isa << " logit " << i;
      kv.give_back(place.blocks);
    }
  }
}

TEST_P(Books, ARequestsTextIsTheSameAloneAndAmongNeighboursThatComeAndGo) {
  const Tokenizer tokenizer = Tokenizer::load(folder() + "/tokenizer.json");
  const std::vector<int> prompt =
      tokenizer.encode("The children ran down to the shore, where the old boat", true, false);
  for (const std::string& isa : cpu_isa_names()) {
    for (const int threads : {1, 2}) {
      Model model = load_books(isa, threads);
      Engine alone(model, &tokenizer, make_policy("topk"), {1, 512, 0});
      const RequestId id = alone.submit(request_of(prompt, 24));
      const Answer expected = run(alone).at(id);
      // The scalar oracle takes the largest company only; engine_test.cc has the whole grid on small models.
      const bool slow = isa == "scalar";
      for (const int chunk : slow ? std::vector<int>{7} : std::vector<int>{1, 7, 512}) {
        for (const int neighbours : slow ? std::vector<int>{63} : std::vector<int>{1, 15, 63}) {
          Engine engine(model, &tokenizer, make_policy("topk"), {64, chunk, 0});
          const auto neighbour = [&](int n) {
            return request_of(
                std::vector<int>(prompt.rbegin(), prompt.rbegin() + 1 + n % static_cast<int>(prompt.size())),
                1 + n * 5 % 11);
          };
          for (int n = 0; n < neighbours / 2; ++n) engine.submit(neighbour(n));
          const RequestId own = engine.submit(request_of(prompt, 24));
          for (int n = neighbours / 2; n < neighbours; ++n) engine.submit(neighbour(n));
          EXPECT_EQ(run(engine).at(own), expected)
              << isa << " threads " << threads << " chunk " << chunk << " neighbours " << neighbours;
        }
      }
    }
  }
}

TEST_P(Books, TheModelIsSmallEnoughForTheRepositoryAndHasRealRouting) {
  EXPECT_LE(fs::file_size(folder() + "/model.safetensors"), 30'000'000u);
  const ModelConfig config = read_model_config(folder());
  EXPECT_EQ(config.n_experts, 64);
  EXPECT_EQ(config.top_k, 8);
  EXPECT_GE(config.moe_layers(), config.layers - 1);
  EXPECT_FALSE(config.eos_ids.empty());
}

}  // namespace
}  // namespace carpool::end_to_end
