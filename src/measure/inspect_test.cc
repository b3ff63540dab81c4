// The arithmetic of inspect against loaded models and brute force.
#include "measure/inspect.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <set>

#include "base/error.h"
#include "base/source_dir_test_util.h"
#include "model/gguf_names.h"
#include "model/kv_cache.h"

namespace carpool {
namespace {

std::string golden(const std::string& name) { return source_dir() + "/tests/golden/qwen3_moe/" + name; }

Model load(const std::string& name) {
  LoadOptions options;
  options.threads = 1;
  return Model::load(golden(name), options);
}

std::vector<int> random_tokens(int n, int vocab) {
  std::mt19937 random(5);
  std::uniform_int_distribution<int> pick(0, vocab - 1);
  std::vector<int> out;
  for (int i = 0; i < n; ++i) out.push_back(pick(random));
  return out;
}

ModelConfig big_config() {  // the published sizes of Qwen3-30B-A3B
  ModelConfig c;
  c.family = "qwen3_moe";
  c.vocab = 151936;
  c.width = 2048;
  c.layers = 48;
  c.heads = 32;
  c.kv_heads = 4;
  c.head_dim = c.value_dim = 128;
  c.context = 40960;
  c.qk_norm = ModelConfig::QkNorm::kHead;
  c.moe_layer.assign(48, true);
  c.expert_width = 768;
  c.n_experts = 128;
  c.top_k = 8;
  return c;
}

// Plain routing; collects the union of the best k0 by its definition, for one k0.
class UnionOfBest final : public Policy {
 public:
  UnionOfBest(size_t k0, double& sum) : k0_(k0), sum_(sum) {}
  void select(const RouterInput& in, Scratch& scratch, Selection& out) const override {
    select_plain(in, scratch, out);
    std::set<int> best, plain;
    for (int t = 0; t < out.rows(); ++t) {
      const auto row = out.row(t);
      plain.insert(row.begin(), row.end());
      best.insert(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(std::min(k0_, row.size())));
    }
    const bool guarded = out.rows() < 2 || best.size() < static_cast<size_t>(in.top_k);
    sum_ += static_cast<double>(guarded ? plain.size() : best.size());
  }
  const PolicyProperties& properties() const override { return properties_; }
  std::string spec() const override { return "test"; }
  bool is_plain(int) const override { return true; }
  void check(int, int) const override {}

 private:
  size_t k0_;
  double& sum_;
  PolicyProperties properties_;
};

// Runs the streams as count_on_text cuts them; returns what plain routing's own counters say.
RoutingCounters run_streams(Model& model, const std::vector<int>& tokens, int batch, int steps, const Policy& policy) {
  const int blocks = KvCache::blocks_for(steps);
  KvCache kv(model.config(), int64_t{blocks} * KvCache::kBlockTokens * batch);
  std::vector<std::vector<int>> tables(static_cast<size_t>(batch));
  for (auto& table : tables) EXPECT_TRUE(kv.take(blocks, table));
  RoutingCounters counters;
  Rows rows;
  const size_t length = tokens.size() / static_cast<size_t>(batch);
  for (int t = 0; t < steps; ++t) {
    rows.clear();
    for (size_t b = 0; b < tables.size(); ++b)
      rows.push(tokens[b * length + static_cast<size_t>(t)], t, tables[b].data(), {Phase::kDecode, false, 0}, false);
    model.forward(rows, kv, policy, {.routing = &counters});
  }
  return counters;
}

TEST(Inspect, UniformUnionIsKForOneRowAndNearsAllExperts) {
  EXPECT_DOUBLE_EQ(uniform_union(128, 8, 1), 8);
  EXPECT_DOUBLE_EQ(uniform_union(4, 2, 2), 3);  // the second row's two experts are new with probability 1/2 each
  EXPECT_DOUBLE_EQ(uniform_union(16, 16, 3), 16);
  EXPECT_GT(uniform_union(128, 8, 256), 127.9);
  EXPECT_LE(uniform_union(128, 8, 256), 128);
}

TEST(Inspect, UniformUnionIsTheMeanOfRandomBatches) {
  constexpr int E = 32, K = 4, B = 6, kTrials = 4000;
  std::mt19937 random(11);
  std::vector<int> experts(E);
  for (int e = 0; e < E; ++e) experts[static_cast<size_t>(e)] = e;
  double sum = 0;
  for (int i = 0; i < kTrials; ++i) {
    std::set<int> used;
    for (int b = 0; b < B; ++b) {
      std::shuffle(experts.begin(), experts.end(), random);
      used.insert(experts.begin(), experts.begin() + K);
    }
    sum += static_cast<double>(used.size());
  }
  // A trial's size has a standard deviation below 2; six standard errors of the mean are 6 * 2 / sqrt(4000) = 0.19.
  EXPECT_NEAR(sum / kTrials, uniform_union(E, K, B), 0.19);
}

TEST(Inspect, UniformOeaIsTheMeanOfRandomBatchesWithTheGuardOnEachOfThem) {
  constexpr int E = 16, K0 = 2, K = 4, kTrials = 20000;
  std::mt19937 random(12);
  std::vector<int> experts(E);
  for (int e = 0; e < E; ++e) experts[static_cast<size_t>(e)] = e;
  for (const int batch : {2, 3}) {
    double sum = 0;
    int guarded = 0;
    for (int i = 0; i < kTrials; ++i) {
      std::set<int> used;
      for (int b = 0; b < batch; ++b) {
        std::shuffle(experts.begin(), experts.end(), random);
        used.insert(experts.begin(), experts.begin() + K0);
      }
      const bool plain = used.size() < static_cast<size_t>(K);
      guarded += plain;
      sum += plain ? uniform_union(E, K, batch) : static_cast<double>(used.size());
    }
    ASSERT_GT(guarded, 100);
    // A trial lies between 4 and 9.25, so its standard deviation is below 2.7; six standard errors are 0.115.
    EXPECT_NEAR(sum / kTrials, uniform_oea(E, K0, K, batch), 0.115) << batch;
  }
  // Two rows with two experts each of four: the union is 2, 3 or 4 with probability 1/6, 4/6, 1/6; 3 is K. Plain: 3.75.
  EXPECT_NEAR(uniform_oea(4, 2, 3, 2), (3.75 + 4 * 3 + 4) / 6, 1e-12);
  EXPECT_EQ(uniform_oea(128, 3, 8, 1), 8) << "a lone row stays plain";
  EXPECT_NEAR(uniform_oea(128, 8, 8, 16), uniform_union(128, 8, 16), 1e-12);
  EXPECT_NEAR(uniform_oea(128, 4, 8, 256), uniform_union(128, 4, 256), 1e-8) << "far above the guard";
}

TEST(Inspect, TheTextRunsNoFurtherThanTheContext) {
  Model model = load("bf16_tied");
  const int context = model.config().context;
  const auto counted = count_on_text(model, random_tokens(context + 40, model.config().vocab), 1, context + 40);
  ASSERT_TRUE(counted);
  EXPECT_EQ(counted->steps, context);
}

TEST(Inspect, ALoneRowAndASmallUnionStayPlain) {
  EXPECT_EQ(oea_distinct(12, 20, 8, 4), 12);
  EXPECT_EQ(oea_distinct(7.5, 20, 8, 4), 20);
  EXPECT_EQ(oea_distinct(12, 20, 8, 1), 20);
}

TEST(Inspect, ShownSettingsAreKHalfAndThreeEighths) {
  EXPECT_EQ(shown_k0(8), (std::vector<int>{8, 4, 3}));
  EXPECT_EQ(shown_k0(16), (std::vector<int>{16, 8, 6}));
  EXPECT_EQ(shown_k0(2), (std::vector<int>{2, 1}));
  EXPECT_EQ(shown_k0(1), (std::vector<int>{1}));
}

TEST(Inspect, CountsTheParametersOfAPublishedModel) {
  const Parameters p = count_parameters(big_config());
  EXPECT_EQ(p.per_expert, 4718592);
  EXPECT_EQ(p.total, 30532122624);  // the tensors of the published checkpoint together
  EXPECT_NEAR(static_cast<double>(p.active), 3.04e9, 0.01e9);
}

TEST(Inspect, AssumedBytesAndCountedParametersEqualThoseOfLoadedModels) {
  for (const char* name :
       {"float32_untied", "bf16_tied", "dense_layers", "all_experts_bias", "../glm_moe_dsa/glm5",
        "../glm_moe_dsa/glm52", "../glm_moe_dsa/by_frequency", "../glm4_moe/glm45", "../glm4_moe/air",
        "../glm4_moe_lite/flash", "../deepseek_v3/v3", "../deepseek_v3/direct_queries", "../deepseek_v2/v2"}) {
    const Model model = load(name);
    const StepBytes bytes = assumed_bytes(model.config(), AssumedFormats::all(model.weights().head.format));
    EXPECT_EQ(bytes.per_expert, static_cast<double>(model.weights().bytes_per_expert())) << name;
    EXPECT_EQ(bytes.dense, static_cast<double>(model.weights().dense_bytes_per_step())) << name;
    EXPECT_EQ(bytes.kv_per_token * KvCache::kBlockTokens,
              static_cast<double>(KvCache::bytes_for(model.config(), KvCache::kBlockTokens)))
        << name;
    int64_t elements = 0;
    const std::string unused = fmt::format("model.layers.{}.", model.config().layers);
    const WeightSource source = open_weights(golden(name));
    for (const TensorInfo& t : source.tensors()) {
      if (t.name.starts_with(unused)) continue;
      elements += std::accumulate(t.shape.begin(), t.shape.end(), int64_t{1}, std::multiplies<>());
    }
    EXPECT_EQ(count_parameters(model.config()).total, elements) << name;
  }
}

TEST(Inspect, CountsOnATextWhatBruteForceCounts) {
  Model model = load("bf16_tied");
  const ModelConfig& c = model.config();
  for (const int batch : {1, 3, 7}) {
    const std::vector<int> tokens = random_tokens(batch * 20, c.vocab);
    const auto counted = count_on_text(model, tokens, batch, 12);
    ASSERT_TRUE(counted);
    EXPECT_EQ(counted->batch, batch);
    EXPECT_EQ(counted->steps, 12);
    ASSERT_EQ(counted->distinct.size(), static_cast<size_t>(c.top_k));
    for (int k0 = 1; k0 <= c.top_k; ++k0) {
      double sum = 0;
      run_streams(model, tokens, batch, 12, UnionOfBest(static_cast<size_t>(k0), sum));
      EXPECT_DOUBLE_EQ(counted->distinct[static_cast<size_t>(k0) - 1], sum / (12 * c.moe_layers()))
          << "batch " << batch << " k0 " << k0;
    }
    const RoutingCounters plain = run_streams(model, tokens, batch, 12, *make_policy("topk"));
    EXPECT_DOUBLE_EQ(counted->distinct.back(),
                     static_cast<double>(plain.distinct_experts) / static_cast<double>(plain.layers));
  }
}

TEST(Inspect, DenseLayersDoNotDiluteTheCounts) {
  Model model = load("dense_layers");
  const auto counted = count_on_text(model, random_tokens(40, model.config().vocab), 1);
  ASSERT_TRUE(counted);
  EXPECT_DOUBLE_EQ(counted->distinct.back(), model.config().top_k);
}

TEST(Inspect, EqualStreamsLoadTheExpertsOfOne) {
  Model model = load("float32_untied");
  const std::vector<int> once = random_tokens(16, model.config().vocab);
  std::vector<int> tokens;
  for (int b = 0; b < 5; ++b) tokens.insert(tokens.end(), once.begin(), once.end());
  const auto counted = count_on_text(model, tokens, 5);
  ASSERT_TRUE(counted);
  EXPECT_DOUBLE_EQ(counted->distinct.back(), model.config().top_k);
}

TEST(Inspect, SkewLiesBetweenEvenAndOneExpert) {
  Model model = load("float32_untied");
  const ModelConfig& c = model.config();
  const auto counted = count_on_text(model, random_tokens(200, c.vocab), 4);
  ASSERT_TRUE(counted);
  EXPECT_GE(counted->busiest_share, 1.0 / c.n_experts);
  EXPECT_LE(counted->busiest_share, 1.0 / c.top_k + 1e-12);  // every token uses K different ones
  EXPECT_GE(counted->even_experts, c.top_k - 1e-9);
  EXPECT_LE(counted->even_experts, c.n_experts + 1e-9);
}

TEST(Inspect, ATextTooShortForABatchIsNotCounted) {
  Model model = load("float32_untied");
  EXPECT_FALSE(count_on_text(model, random_tokens(31, model.config().vocab), 4));
  EXPECT_TRUE(count_on_text(model, random_tokens(32, model.config().vocab), 4));
}

TEST(Inspect, PredictsBytesAndSpeedFromExpertsContextAndBandwidth) {
  const ModelConfig c = big_config();
  const StepBytes bytes = assumed_bytes(c, AssumedFormats::all(Format::kBF16));
  const auto rows = predict(c, bytes, {{1, 16}, 100, 50, {}});
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(rows[3].policy, "topk");
  EXPECT_EQ(rows[4].policy, "oea:k0=4");
  EXPECT_EQ(rows[5].policy, "oea:k0=3");
  const double experts = uniform_union(128, 8, 16),
               expected = experts * 48 * 4718592 * 2 + bytes.dense + 1600 * bytes.kv_per_token;
  EXPECT_DOUBLE_EQ(rows[3].bytes_per_step, expected);
  EXPECT_DOUBLE_EQ(rows[3].tokens_per_second_bound, 16 * 50e9 / expected);
  EXPECT_NEAR(rows[5].distinct_experts, uniform_union(128, 3, 16), 1e-9) << "16 rows hardly ever share that much";
  EXPECT_DOUBLE_EQ(rows[5].distinct_experts_plain, experts);
  EXPECT_EQ(rows[1].distinct_experts, rows[0].distinct_experts) << "a lone row stays plain";
}

TEST(Inspect, ATextTakesPrecedenceOverUniformRouting) {
  const ModelConfig c = big_config();
  TextRouting text;
  text.batch = 16;
  text.distinct = {10, 20, 30, 40, 50, 60, 65, 70};
  const auto rows = predict(c, assumed_bytes(c, AssumedFormats::all(Format::kBF16)), {{8, 16}, 0, 50, {text}});
  EXPECT_FALSE(rows[0].text);
  EXPECT_EQ(rows[0].distinct_experts, rows[0].uniform);
  EXPECT_EQ(rows[3].distinct_experts, 70);
  EXPECT_EQ(rows[4].distinct_experts, 40);
  EXPECT_EQ(rows[5].distinct_experts, 30);
  EXPECT_EQ(rows[5].distinct_experts_plain, 70);
}

TEST(Inspect, AModelWithoutRoutedExpertsHasOneRowPerBatch) {
  ModelConfig c = big_config();
  c.moe_layer.assign(48, false);
  c.dense_width = 6144;
  c.expert_width = c.n_experts = c.top_k = 0;
  const StepBytes bytes = assumed_bytes(c, AssumedFormats::all(Format::kF32));
  const auto rows = predict(c, bytes, {{1, 4}, 0, 10, {}});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].bytes_per_step, bytes.dense);
}

TEST(Inspect, SaysThatBoundsDoNotHoldForWeightsBelowFourCaches) {
  InspectReport r;
  r.config = big_config();
  r.bytes = assumed_bytes(r.config, AssumedFormats::all(Format::kBF16));
  r.input = {{16}, 512, 50, {}};
  r.rows = predict(r.config, r.bytes, r.input);
  r.bytes.weights = 400e6;
  const std::string sentence = "the bounds do not hold";
  for (const auto& [cache, said] : {std::pair<size_t, bool>{0, false}, {100000000, false}, {101000000, true}}) {
    r.cache_bytes = cache;
    EXPECT_EQ(inspect_text(r).find(sentence) != std::string::npos, said) << cache;
  }
  EXPECT_NE(inspect_text(r).find("400.00 MB are less than four times the last-level cache of 101.00 MB"),
            std::string::npos)
      << inspect_text(r);
}

TEST(Inspect, TextAndJsonSayTheSame) {
  InspectReport r;
  r.facts = {"carpool inspect m", "abc", "a machine", "m (qwen3_moe)", {{"weights", "none in the directory"}}};
  r.config = big_config();
  r.parameters = count_parameters(r.config);
  r.bytes = assumed_bytes(r.config, AssumedFormats::all(Format::kBF16));
  TextRouting text{16, 64, {10, 20, 30, 40, 50, 60, 65, 70.25}, 0.05, 90.5};
  r.input = {{16}, 512, 50, {text}};
  r.rows = predict(r.config, r.bytes, r.input);
  const std::string shown = inspect_text(r);
  for (const char* part :
       {"carpool inspect m", "30.53 billion", "3.04 billion", "9.44 MB", "61.06 GB", "assumed bf16", "50.0 GB/s",
        "70.2", "8 per token of 128", "oea:k0=4", "90.5 of 128", "5.0 %", "6.4 times", "none in the directory"}) {
    EXPECT_NE(shown.find(part), std::string::npos) << part << "\n" << shown;
  }
  const json::value root = inspect_json(r);
  for (const char* key : {"command", "commit", "machine", "results"}) EXPECT_TRUE(root.as_object().contains(key));
  const json::object& row = root.at("results").as_array().at(0).as_object();
  EXPECT_EQ(row.at("policy").as_string(), "topk");
  EXPECT_EQ(row.at("distinct_experts").as_double(), 70.25);
  EXPECT_EQ(row.at("distinct_experts_from").as_string(), "text");
  EXPECT_EQ(row.at("read_gbps").as_double(), 50);
  EXPECT_EQ(row.at("bytes_per_step").as_double(), r.rows[0].bytes_per_step);
}

}  // namespace
}  // namespace carpool
