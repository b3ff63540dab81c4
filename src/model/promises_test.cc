// The promises that hold to the bit at the level of logits: a row is a row, plain means plain, padding is nothing,
// isolated rows neither lend nor borrow, cold copies change nothing, and a step allocates nothing. A row is a row also
// with quantised weights, int8 activations and rounded key-value caches.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <random>

#include "io/test_files.h"
#include "model/golden_test_util.h"
#include "model/quantize.h"

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

#ifndef CARPOOL_SANITIZED  // which has an operator new of its own
// Counts every allocation of the test program; see AStepAllocatesNothingAfterWarmUp. Kept out of line: seen through,
// malloc and delete look mismatched.
[[gnu::noinline]] void* operator new(size_t n) {
  ++allocations;
  if (void* p = std::malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
#endif

namespace carpool {
namespace {

using namespace golden;  // NOLINT(google-build-using-namespace)

constexpr int kSteps = 12;      // of most tests
constexpr int kManySteps = 64;  // where the promise is about a whole text

// Decodes `tokens` one by one beside `neighbours` sequences that join at step n and leave at step 2n, under `policy`.
// Returns the row's logits of every step. `info` is the row's own.
struct Company {
  int neighbours = 0;
  int pads = 0;
  unsigned seed = 1;
  bool isolated = false;
  bool neighbours_isolated = false;
  int steps = kSteps;
  KvFormat kv = KvFormat::kF32;
};

std::vector<std::vector<float>> decode_in_company(Model& model, const Policy& policy, const std::vector<int>& tokens,
                                                  const Company& company) {
  KvCache kv(model.config(), int64_t{KvCache::kBlockTokens} * 5 * (company.neighbours + 1), company.kv);
  Place own(kv, company.steps);
  std::vector<Place> places;
  for (int n = 0; n < company.neighbours; ++n) places.emplace_back(kv, company.steps);
  RoutingCounters counters;
  std::vector<std::vector<float>> out;
  Rows rows;
  for (int t = 0; t < company.steps; ++t) {
    rows.clear();
    int own_row = 0;
    for (int n = 0; n <= company.neighbours; ++n) {
      if (n == company.neighbours / 2) {
        own_row = static_cast<int>(rows.logit_rows.size());
        rows.push(tokens[static_cast<size_t>(t) % tokens.size()], t, own.blocks.data(),
                  {Phase::kDecode, company.isolated, 0}, true);
      }
      const int start = n % 4, age = t - start;  // neighbour n lives from step n % 4 on, some for 5 steps only
      if (n == company.neighbours || age < 0 || (n % 3 == 0 && age > 5)) continue;
      const int token = static_cast<int>(
          (company.seed * 7919u + static_cast<unsigned>(n) * 104729u + static_cast<unsigned>(t) * 1299709u) %
          static_cast<unsigned>(model.config().vocab));
      rows.push(token, age, places[static_cast<size_t>(n)].blocks.data(),
                {Phase::kDecode, company.neighbours_isolated, 0}, n % 2 == 0);
    }
    for (int p = 0; p < company.pads; ++p) rows.push(-1, -1, nullptr, {Phase::kPad, false, 0}, false);
    // The own row's place among logit rows: neighbours with even n before it have logits too.
    own_row = 0;
    int own_index = -1;
    for (size_t r = 0; r < rows.tokens.size(); ++r) {
      if (rows.block_tables[r] == own.blocks.data()) own_index = static_cast<int>(r);
    }
    while (rows.logit_rows[static_cast<size_t>(own_row)] != own_index) ++own_row;
    out.push_back(row_of(model.forward(rows, kv, policy, {.routing = &counters}), own_row));
  }
  return out;
}

const std::vector<int> kTokens = {3, 17, 5, 90, 41, 2, 66, 8, 23, 71, 11, 50};

TEST(Promises, ARowIsARowAloneAndAmongNeighboursOnEveryIsaAndThreadCount) {
  const auto topk = make_policy("topk");
  for (const std::string& name : all_cases()) {
    for (const std::string& isa : cpu_isa_names()) {
      Model one = load(name, isa, 1);
      const auto alone = decode_in_company(one, *topk, kTokens, {});
      for (const int threads : {1, 2, 3}) {
        Model model = load(name, isa, threads);
        for (const int n : {1, 2, 3, 7, 16, 63}) {
          EXPECT_EQ(decode_in_company(model, *topk, kTokens, {n, n % 3}), alone)
              << name << " " << isa << " threads " << threads << " neighbours " << n;
        }
      }
    }
  }
}

TEST(Promises, ChunkSizesDoNotChangeTheBitsOfAnyPosition) {
  for (const std::string& name : all_cases()) {
    Model model = load(name);
    KvCache kv(model.config(), 4096);
    for (const GoldenPrompt& g : prompts(folder(name))) {
      Place whole(kv, 128);
      const auto expected = prefill(model, kv, whole, g.tokens, 512);
      for (const int chunk : {1, 3, 7, 16}) {
        Place place(kv, 128);
        EXPECT_EQ(prefill(model, kv, place, g.tokens, chunk), expected) << name << " chunk " << chunk;
        kv.give_back(place.blocks);
      }
      kv.give_back(whole.blocks);
    }
  }
}

TEST(Promises, PrefillAndDecodeOfTheSameTokensGiveTheSameBits) {
  Model model = load("float32_untied");
  KvCache kv(model.config(), 256);
  Place place(kv, kSteps);
  EXPECT_EQ(prefill(model, kv, place, kTokens, 5), decode_in_company(model, *make_policy("topk"), kTokens, {}));
}

TEST(Promises, PlainMeansPlainForK0EqualToKAndForABatchOfOne) {
  const auto company = [](int neighbours) { return Company{.neighbours = neighbours, .steps = kManySteps}; };
  for (const std::string& name : all_cases()) {
    Model model = load(name);
    const int K = model.config().top_k;
    const auto topk = make_policy("topk");
    const auto full = make_policy("oea:k0=" + std::to_string(K)), off = make_policy("oea:k0=0"),
               one = make_policy("oea:k0=1");
    const auto expected = decode_in_company(model, *topk, kTokens, company(0));
    EXPECT_EQ(decode_in_company(model, *one, kTokens, company(0)), expected) << name << ": a batch of one";
    for (const int n : {0, 3, 15}) {
      EXPECT_EQ(decode_in_company(model, *full, kTokens, company(n)), expected)
          << name << ": k0 = K, " << n << " neighbours";
      EXPECT_EQ(decode_in_company(model, *off, kTokens, company(n)), expected)
          << name << ": off, " << n << " neighbours";
    }
  }
}

TEST(Promises, SharedRoutingDependsOnNeighboursWhichShowsThatTheOtherTestsHavePower) {
  Model model = load("bf16_tied");
  const auto oea = make_policy("oea:k0=1,guard=off,min_batch=1");
  int different = 0;
  const auto first = decode_in_company(model, *oea, kTokens, {7, 0, 1});
  for (unsigned seed = 2; seed < 22; ++seed)
    different += decode_in_company(model, *oea, kTokens, {7, 0, seed}) != first;
  EXPECT_GT(different, 0);
}

TEST(Promises, AnIsolatedRowIsTheSameWhateverItsNeighboursAreUnderOea) {
  const auto oea = make_policy("oea:k0=1,guard=off,min_batch=1"), topk = make_policy("topk");
  for (const std::string& name : all_cases()) {
    Model model = load(name);
    const auto expected = decode_in_company(model, *topk, kTokens, {});
    for (unsigned seed = 1; seed < 6; ++seed) {
      EXPECT_EQ(decode_in_company(model, *oea, kTokens, {7, 2, seed, true}), expected) << name;
    }
  }
}

TEST(Promises, IsolatedNeighboursDoNotChangeARowUnderOea) {
  const auto oea = make_policy("oea:k0=1,guard=off,min_batch=1");
  Model model = load("bf16_tied");
  const auto alone = decode_in_company(model, *oea, kTokens, {});
  for (unsigned seed = 1; seed < 6; ++seed)
    EXPECT_EQ(decode_in_company(model, *oea, kTokens, {7, 0, seed, false, true}), alone);
}

TEST(Promises, PaddingRowsChangeNothingUnderOea) {
  const auto oea = make_policy("oea:k0=1");
  Model model = load("bf16_tied");
  const auto expected = decode_in_company(model, *oea, kTokens, {5});
  for (const int pads : {1, 8, 64}) EXPECT_EQ(decode_in_company(model, *oea, kTokens, {5, pads}), expected);
}

TEST(Promises, ColdCopiesOfTheExpertsKeepEveryBit) {
  const auto topk = make_policy("topk");
  Model model = load("bf16_tied");
  const auto expected = decode_in_company(model, *topk, kTokens, {3});
  model.set_cold_copies(3);
  EXPECT_EQ(model.weights().cold.size(), 3u);
  EXPECT_EQ(decode_in_company(model, *topk, kTokens, {3}), expected);
  model.set_cold_copies(0);
  EXPECT_TRUE(model.weights().cold_storage.empty());
}

TEST(Promises, RowsAndExpertsAreRecordedAsTheStepIs) {
  Model model = load("bf16_tied");
  KvCache kv(model.config(), 64 * 16);
  std::vector<Place> places;
  Rows rows;
  for (int n = 0; n < 12; ++n) places.emplace_back(kv, 1);
  for (int n = 0; n < 12; ++n) {
    rows.push(5 * n + 1, 0, places[static_cast<size_t>(n)].blocks.data(), {Phase::kDecode, n == 4, 0}, false);
  }
  rows.push(-1, -1, nullptr, {Phase::kPad, false, 0}, false);
  RoutingCounters counters;
  std::vector<RowRouting> row_routing(99, RowRouting{7, 7, {}});
  std::vector<std::vector<int64_t>> experts;
  const auto policy = make_policy("oea:k0=1,guard=off");
  for (int i = 0; i < 2; ++i) model.forward(rows, kv, *policy, {&counters, &row_routing, &experts});
  const int M = model.config().moe_layers();
  ASSERT_EQ(row_routing.size(), 13u);
  int64_t rerouted = 0, underfilled = 0, slots = 0;
  for (const RowRouting& row : row_routing) {
    rerouted += row.rerouted;
    underfilled += row.underfilled;
  }
  EXPECT_EQ(2 * rerouted, counters.rerouted_tokens) << "rows of the last step, counters of both";
  EXPECT_EQ(2 * underfilled, counters.underfilled_tokens);
  EXPECT_GT(rerouted, 0);
  EXPECT_EQ(row_routing[0].reasons[static_cast<size_t>(PlainReason::kApplied)], M);
  EXPECT_EQ(row_routing[4].reasons[static_cast<size_t>(PlainReason::kIsolated)], M);
  EXPECT_EQ(row_routing[12].reasons, RowRouting{}.reasons) << "a pad";
  ASSERT_EQ(experts.size(), static_cast<size_t>(M));
  for (const auto& layer : experts) {
    EXPECT_EQ(layer.size(), static_cast<size_t>(model.config().n_experts));
    for (const int64_t n : layer) slots += n;
  }
  EXPECT_EQ(slots, counters.slots);
}

TEST(Promises, CountersSayThatThePolicyRan) {
  Model model = load("bf16_tied");
  KvCache kv(model.config(), 64 * 16);
  std::vector<Place> places;
  Rows rows;
  for (int n = 0; n < 16; ++n) places.emplace_back(kv, 1);
  for (int n = 0; n < 16; ++n)
    rows.push(5 * n + 1, 0, places[static_cast<size_t>(n)].blocks.data(), {Phase::kDecode, false, 0}, false);
  RoutingCounters plain, oea;
  model.forward(rows, kv, *make_policy("topk"), {.routing = &plain});
  model.forward(rows, kv, *make_policy("oea:k0=1"), {.routing = &oea});
  EXPECT_EQ(plain.layers, model.config().moe_layers());
  EXPECT_EQ(plain.distinct_experts, plain.distinct_plain);
  EXPECT_EQ(plain.rerouted_tokens, 0);
  EXPECT_LT(oea.distinct_experts, oea.distinct_plain);
  EXPECT_GT(oea.rerouted_tokens, 0);
}

// A checkpoint whose every matrix has rows of 256, whole blocks of every format; the golden ones are too narrow.
// Weights are random, as large as keeps the size of what goes through them.
class QuantisedModels : public testing::Test {
 protected:
  static constexpr int kWidth = 256, kExperts = 6, kLayers = 2, kVocab = 96;

  void SetUp() override {
    folder_.write("config.json", R"({"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"],
      "hidden_size": 256, "moe_intermediate_size": 256, "intermediate_size": 256, "num_hidden_layers": 2,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "num_experts": 6, "num_experts_per_tok": 2,
      "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [], "hidden_act": "silu",
      "attention_bias": false, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
      "tie_word_embeddings": false, "vocab_size": 96})");
    const auto add = [&](const std::string& name, int rows, int cols) {
      std::string data;
      std::normal_distribution<float> normal(rows == 1 ? 1.0f : 0.0f, rows == 1 ? 0.1f : 1.0f / 16);
      for (int i = 0; i < rows * cols; ++i) {
        const float value = normal(random_);
        data.append(reinterpret_cast<const char*>(&value), sizeof(value));
      }
      parts_.push_back({name + ".weight", "F32", (rows == 1 ? "" : std::to_string(rows) + ",") + std::to_string(cols),
                        std::move(data)});
    };
    add("model.embed_tokens", kVocab, kWidth);
    add("model.norm", 1, kWidth);
    add("lm_head", kVocab, kWidth);
    for (int l = 0; l < kLayers; ++l) {
      const std::string layer = "model.layers." + std::to_string(l) + ".";
      for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) add(layer + norm, 1, kWidth);
      for (const char* norm : {"q_norm", "k_norm"}) add(layer + "self_attn." + norm, 1, 64);
      for (const char* matrix : {"q_proj", "o_proj"}) add(layer + "self_attn." + matrix, kWidth, kWidth);
      for (const char* matrix : {"k_proj", "v_proj"}) add(layer + "self_attn." + matrix, 128, kWidth);
      add(layer + "mlp.gate", kExperts, kWidth);
      for (int e = 0; e < kExperts; ++e) {
        for (const char* matrix : {"gate_proj", "up_proj", "down_proj"})
          add(layer + "mlp.experts." + std::to_string(e) + "." + matrix, kWidth, kWidth);
      }
    }
    folder_.write("model.safetensors", test::safetensors_file(parts_));
  }

  // The name of the GGUF file of the model in `format`.
  std::string quantised(Format format) {
    QuantizeOptions options;
    options.input = folder_.path();
    options.output = folder_.file(std::string(info(format).name) + ".gguf");
    options.format = format;
    options.threads = 2;
    quantize(options);
    return options.output;
  }

  static Model load_model(const std::string& path, int threads, Activations activations = Activations::kInt8) {
    LoadOptions options;
    options.threads = threads;
    options.activations = activations;
    if (const char* forced = std::getenv("CARPOOL_ISA")) options.isa = forced;
    return Model::load(path, options);
  }

  test::ScratchFolder folder_;
  std::mt19937 random_{77};
  std::vector<test::Part> parts_;
};

TEST_F(QuantisedModels, ARowIsARowAmongNeighboursInEveryChunkAndOnEveryThreadCount) {
  const char* forced = std::getenv("CARPOOL_ISA");
  // The scalar table is slow: there every format meets one of the caches, and tokens end in the second block of it
  // instead of the third.
  const bool slow = forced && std::string_view(forced) == "scalar";
  const int in_all = slow ? 18 : 36;
  const auto topk = make_policy("topk");
  std::vector<int> tokens;
  for (int t = 0; t < in_all; ++t) tokens.push_back((t * 37 + 11) % kVocab);
  for (const Format format : {Format::kQ8_0, Format::kQ4_0, Format::kNVFP4, Format::kQ4_K}) {
    const std::string path = quantised(format);
    Model one = load_model(path, 1), two = load_model(path, 2);
    const LayerWeights& layer = one.weights().layers.at(1);
    for (const PanelView& w : {layer.grouped.q, layer.o, layer.experts.gate_up.at(3), layer.experts.down.at(3)})
      ASSERT_EQ(w.format, format) << info(format).name;
    for (const KvFormat kv_format : {KvFormat::kBF16, KvFormat::kQ8}) {
      if (slow && (format == Format::kQ4_0 || format == Format::kQ4_K) != (kv_format == KvFormat::kQ8)) continue;
      const auto company = [&](int neighbours) {
        return Company{.neighbours = neighbours, .pads = neighbours % 2, .steps = in_all, .kv = kv_format};
      };
      const auto alone = decode_in_company(one, *topk, tokens, company(0));
      for (Model* model : {&one, &two}) {
        const std::string what = std::string(info(format).name) + ", cache " + std::string(name(kv_format)) + ", " +
                                 std::to_string(model->ops().threads()) + " threads";
        for (const int n : {0, 1, 3, 15})
          EXPECT_EQ(decode_in_company(*model, *topk, tokens, company(n)), alone) << what << ", neighbours " << n;
        for (const int chunk : {1, 7, 512}) {
          KvCache kv(model->config(), in_all, kv_format);
          const Place place(kv, in_all);
          EXPECT_EQ(prefill(*model, kv, place, tokens, chunk), alone) << what << ", chunk " << chunk;
        }
      }
    }
  }
}

TEST_F(QuantisedModels, TheFormatTheActivationsAndTheCacheChangeLogitsWhichShowsThatTheTestAboveRunsThem) {
  const auto topk = make_policy("topk");
  const auto logits = [&](const std::string& path, Activations activations, KvFormat kv) {
    Model model = load_model(path, 2, activations);
    return decode_in_company(model, *topk, kTokens, Company{.kv = kv});
  };
  const std::string path = quantised(Format::kQ8_0);
  const auto base = logits(path, Activations::kInt8, KvFormat::kBF16);
  EXPECT_NE(logits(path, Activations::kFloat, KvFormat::kBF16), base);
  EXPECT_NE(logits(path, Activations::kInt8, KvFormat::kQ8), base);
  EXPECT_NE(logits(path, Activations::kInt8, KvFormat::kF32), base);
  EXPECT_NE(logits(folder_.path(), Activations::kInt8, KvFormat::kBF16), base);
  EXPECT_EQ(logits(path, Activations::kInt8, KvFormat::kBF16), base);
}

TEST(Promises, AStepAllocatesNothingAfterWarmUp) {
#ifdef CARPOOL_SANITIZED
  GTEST_SKIP() << "a sanitizer owns operator new";
#endif
  using Case = std::pair<const char*, const char*>;
  for (const auto& [name, spec] : {Case{"bf16_tied", "topk"}, Case{"bf16_tied", "oea:k0=1"},
                                   Case{"bf16_tied", "prune:k0=1"}, Case{"glm_moe_dsa/glm5", "oea:k0=1"}}) {
    const auto policy = make_policy(spec);
    Model model = load(name);
    KvCache kv(model.config(), 64 * 16);
    std::vector<Place> places;
    Rows rows;
    for (int n = 0; n < 16; ++n) places.emplace_back(kv, 16);
    RoutingCounters counters;
    std::vector<RowRouting> row_routing;
    std::vector<std::vector<int64_t>> experts;
    const auto step = [&](int t, int rows_in_step) {
      rows.clear();
      for (int n = 0; n < rows_in_step; ++n) {
        rows.push((5 * n + 31 * t + 1) % 90, t, places[static_cast<size_t>(n)].blocks.data(),
                  {Phase::kDecode, false, 0}, true);
      }
      const int64_t before = allocations;
      model.forward(rows, kv, *policy, {&counters, &row_routing, &experts});
      return allocations - before;
    };
    constexpr int kWarm = 10;  // positions beyond which the indexer of one of the models chooses
    for (int t = 0; t < kWarm; ++t) step(t, 16);
    EXPECT_EQ(step(kWarm, 16), 0) << name << " " << spec;
    EXPECT_EQ(step(kWarm + 1, 9), 0) << name << " " << spec;
    EXPECT_EQ(step(kWarm + 2, 16), 0) << name << " " << spec;
  }
}

}  // namespace
}  // namespace carpool
