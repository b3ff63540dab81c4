// The engine as its users see it: the same text whoever shares the batch, requests that join, leave and are
// cancelled at any step, a pool that is whole again afterwards, and every refused value with its sentence.
#include "engine/engine.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/error.h"
#include "model/model_copy_test_util.h"

namespace carpool {
namespace {

using golden::kFolder;

struct Result {
  std::vector<int> tokens;
  FinishReason finish = FinishReason::kNone;
  bool operator==(const Result&) const = default;
};

void collect(const Engine& engine, std::map<RequestId, Result>& results) {
  for (const Event& e : engine.last_step().events) {
    if (e.token >= 0) results[e.id].tokens.push_back(e.token);
    if (e.finish != FinishReason::kNone) results[e.id].finish = e.finish;
  }
}

std::map<RequestId, Result> run_to_end(Engine& engine) {
  std::map<RequestId, Result> results;
  while (engine.step()) collect(engine, results);
  return results;
}

Request request_of(std::vector<int> prompt, int max_tokens = 24) {
  Request r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  return r;
}

std::vector<int> some_prompt(unsigned seed, int length, int vocab) {
  std::vector<int> out;
  for (int i = 0; i < length; ++i) {
    seed = seed * 1664525u + 1013904223u;
    out.push_back(static_cast<int>(seed >> 8) % vocab);
  }
  return out;
}

std::vector<int> alone(Model& model, const Request& request) {
  Engine engine(model, nullptr, make_policy("topk"), {1, 512, 0});
  const RequestId id = engine.submit(request);
  return run_to_end(engine)[id].tokens;
}

// The request among `neighbours` that arrive while it runs and end at different times; a few are cancelled.
std::vector<int> in_company(Model& model, const Request& request, int neighbours, const EngineOptions& options) {
  Engine engine(model, nullptr, make_policy("topk"), options);
  std::map<RequestId, Result> results;
  RequestId own = 0;
  std::vector<RequestId> others;
  for (int step = 0, joined = 0; own == 0 || engine.running() + engine.waiting() > 0 || joined < neighbours; ++step) {
    for (int burst = 0; burst < 1 + neighbours / 8 && joined < neighbours; ++burst, ++joined) {
      const auto seed = static_cast<unsigned>(joined);
      others.push_back(
          engine.submit(request_of(some_prompt(seed, 1 + joined * 5 % 23, model.config().vocab), 1 + joined * 7 % 19)));
    }
    if (own == 0 && (step == 1 || joined == neighbours)) own = engine.submit(request);
    if (step % 5 == 4 && !others.empty()) engine.cancel(others[static_cast<size_t>(step) % others.size()]);
    engine.step();
    collect(engine, results);
  }
  EXPECT_EQ(engine.free_kv_blocks(), engine.total_kv_blocks());
  return results[own].tokens;
}

TEST(Engine, ARequestsTokensAreTheSameAloneAndAmongNeighboursThatComeAndGo) {
  for (const char* name : {"bf16_tied", "dense_layers"}) {
    for (const std::string& isa : cpu_isa_names()) {
      Model reference = golden::load(name, isa, 1);
      for (const int length : {1, 9, 40}) {
        const Request request = request_of(some_prompt(77, length, reference.config().vocab), 32);
        const std::vector<int> expected = alone(reference, request);
        ASSERT_EQ(expected.size(), 32u);
        for (const int threads : {1, 2}) {
          Model model = golden::load(name, isa, threads);
          for (const int chunk : {1, 7, 512}) {
            for (const int n : {1, 3, 16, 63}) {
              EXPECT_EQ(in_company(model, request, n, {64, chunk, 0}), expected)
                  << name << " " << isa << " threads " << threads << " chunk " << chunk << " neighbours " << n;
            }
          }
        }
      }
    }
  }
}

// Of every family: the text of a request does not know who else is served.
TEST(KnownProblemT10, GreedyTokensAreTheSameAloneAndInABatchForEveryFamily) {
  for (const std::string& name : golden::all_cases()) {
    Model model = golden::load(name);
    Request request = request_of(some_prompt(77, 20, model.config().vocab), 32);
    request.ignore_eos = true;
    const std::vector<int> expected = alone(model, request);
    ASSERT_EQ(expected.size(), 32u) << name;
    EXPECT_EQ(alone(model, request), expected) << name << ", again";
    for (const int n : {1, 7, 31}) {
      EXPECT_EQ(in_company(model, request, n, {32, 16, 0}), expected) << name << " among " << n;
    }
  }
}

TEST(Engine, GreedyTokensAreThoseOfTransformersForAllPromptsInOneBatch) {
  for (const std::string& name : golden::all_cases()) {
    Model model = golden::load(name);
    Engine engine(model, nullptr, make_policy("topk"), {64, 32, 0});
    const auto prompts = golden::prompts(golden::folder(name));
    for (const auto& p : prompts) {
      Request request = request_of(p.tokens, 64);
      request.ignore_eos = true;  // as the reference does
      engine.submit(std::move(request));
    }
    const auto results = run_to_end(engine);
    for (size_t i = 0; i < prompts.size(); ++i)
      EXPECT_EQ(results.at(static_cast<RequestId>(i) + 1).tokens, prompts[i].greedy) << name;
  }
}

TEST(Engine, SampledTokensDependOnTheSeedAndNotOnTheBatch) {
  Model model = golden::load("bf16_tied");
  Request request = request_of(some_prompt(5, 6, 90), 40);
  request.sampling.temperature = 1;
  request.sampling.seed = 42;
  const auto first = alone(model, request);
  EXPECT_EQ(alone(model, request), first);
  EXPECT_EQ(in_company(model, request, 9, {16, 7, 0}), first);
  request.sampling.seed = 43;
  EXPECT_NE(alone(model, request), first);
}

TEST(Engine, AnIsolatedRequestIsPlainAmongOeaNeighboursAndASharedOneIsCounted) {
  Model model = golden::load("bf16_tied");
  Request request = request_of(some_prompt(5, 6, 90), 32);
  const auto expected = alone(model, request);
  request.isolated = true;
  Engine engine(model, nullptr, make_policy("oea:k0=1,guard=off,min_batch=1"), {16, 64, 0});
  const RequestId own = engine.submit(request);
  for (unsigned n = 0; n < 9; ++n) engine.submit(request_of(some_prompt(n, 8, 90), 32));
  EXPECT_EQ(run_to_end(engine).at(own).tokens, expected);
  const RoutingCounters& c = engine.decode_routing();
  EXPECT_GT(c.plain_rows[static_cast<size_t>(PlainReason::kIsolated)], 0);
  EXPECT_GT(c.plain_rows[static_cast<size_t>(PlainReason::kApplied)], 0);
  EXPECT_GT(c.rerouted_tokens, 0);
  EXPECT_LT(c.distinct_experts, c.distinct_plain);
}

TEST(Engine, PromptRowsStayPlainBesideRoutedDecodeRows) {
  Model model = golden::load("bf16_tied");
  Engine engine(model, nullptr, make_policy("oea:k0=1,guard=off,min_batch=1"), {16, 4, 0});
  for (unsigned n = 0; n < 4; ++n) engine.submit(request_of(some_prompt(n, 20, 90), 32));
  int mixed = 0;
  while (engine.step()) {
    const StepReport& r = engine.last_step();
    if (r.prefill_rows == 0 || r.decode_rows == 0) continue;
    ++mixed;
    EXPECT_EQ(r.routing.plain_rows[static_cast<size_t>(PlainReason::kPhase)],
              int64_t{r.prefill_rows} * r.routing.layers);
  }
  EXPECT_GT(mixed, 3);
}

TEST(Engine, RunningDecodesGetTheirRowInEveryStepWhilePromptsAreChunked) {
  Model model = golden::load("bf16_tied");
  Engine engine(model, nullptr, make_policy("topk"), {4, 3, 0});
  const RequestId first = engine.submit(request_of({1, 2}, 30));
  while (engine.last_step().events.empty()) ASSERT_TRUE(engine.step());
  engine.submit(request_of(some_prompt(1, 40, 90), 4));
  for (int i = 0; i < 13; ++i) {
    ASSERT_TRUE(engine.step());
    EXPECT_EQ(engine.last_step().events.at(0).id, first);
    EXPECT_LE(engine.last_step().prefill_rows, 3);
  }
}

TEST(Engine, CancelWorksWhileWaitingDuringThePromptAndWhileDecoding) {
  Model model = golden::load("bf16_tied");
  Engine engine(model, nullptr, make_policy("topk"), {2, 4, 0});
  const RequestId decoding = engine.submit(request_of({1, 2, 3}, 50));
  ASSERT_TRUE(engine.step());
  const RequestId prompting = engine.submit(request_of(some_prompt(3, 40, 90), 10));
  const RequestId waiting = engine.submit(request_of({4}, 10));
  ASSERT_TRUE(engine.step());
  EXPECT_EQ(engine.waiting(), 1);
  EXPECT_TRUE(engine.cancel(waiting));
  EXPECT_TRUE(engine.cancel(prompting));
  EXPECT_TRUE(engine.cancel(decoding));
  EXPECT_FALSE(engine.cancel(decoding)) << "twice";
  EXPECT_FALSE(engine.cancel(12345)) << "unknown";
  EXPECT_EQ(engine.free_kv_blocks(), engine.total_kv_blocks());
  std::map<RequestId, Result> results;
  ASSERT_TRUE(engine.step());
  collect(engine, results);
  ASSERT_EQ(results.size(), 3u);
  for (const auto& [id, r] : results) EXPECT_EQ(r.finish, FinishReason::kCancelled);
  EXPECT_FALSE(engine.step());
}

TEST(Engine, MoreRequestsThanThePoolHoldsAllEndAndThePoolIsWholeAgain) {
  Model model = golden::load("bf16_tied");
  Engine engine(model, nullptr, make_policy("topk"), {8, 16, 96});
  for (unsigned n = 0; n < 40; ++n)
    engine.submit(request_of(some_prompt(n, 1 + static_cast<int>(n) % 30, 90), 1 + static_cast<int>(n) % 40));
  int most = 0;
  std::map<RequestId, Result> results;
  while (engine.step()) {
    collect(engine, results);
    most = std::max(most, engine.running());
  }
  EXPECT_EQ(results.size(), 40u);
  for (const auto& [id, r] : results) EXPECT_EQ(r.tokens.size(), 1 + static_cast<size_t>(id - 1) % 40) << id;
  EXPECT_LT(most, 8) << "the pool, not the batch limit, must have been the bound";
  EXPECT_EQ(engine.free_kv_blocks(), engine.total_kv_blocks());
}

TEST(Engine, StopIdsEndARequestAndIgnoreEosGoesOn) {
  Model model = golden::load("bf16_tied");
  Request request = request_of(some_prompt(5, 6, 90), 20);
  const auto free = alone(model, request);
  request.stop_ids = {free[7]};
  Engine engine(model, nullptr, make_policy("topk"), {1, 64, 0});
  const RequestId id = engine.submit(request);
  const Result stopped = run_to_end(engine).at(id);
  const auto first = static_cast<size_t>(std::find(free.begin(), free.end(), free[7]) - free.begin());
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  EXPECT_EQ(stopped.tokens, std::vector<int>(free.begin(), free.begin() + static_cast<std::ptrdiff_t>(first) + 1));
}

// Every refused value ends in a sentence that names it.
TEST(Engine, WhatCannotBeServedIsRefusedWithASentence) {
  Model model = golden::load("bf16_tied");
  Engine engine(model, nullptr, make_policy("topk"), {4, 16, 64});
  const auto refused = [&](const char* part, auto change) {
    Request r = request_of({1, 2, 3}, 8);
    change(r);
    try {
      engine.submit(r);
      ADD_FAILURE() << "accepted, expected a sentence with: " << part;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kUsage);
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  refused("the prompt is empty", [](Request& r) { r.prompt.clear(); });
  refused("token id -1", [](Request& r) { r.prompt = {-1}; });
  refused("token id 100000", [](Request& r) { r.prompt = {100000}; });
  refused("token id 99999", [](Request& r) { r.stop_ids = {99999}; });
  refused("max_tokens must be at least 1, got 0", [](Request& r) { r.max_tokens = 0; });
  refused("max_tokens must be at least 1, got -5", [](Request& r) { r.max_tokens = -5; });
  refused("context length is 256", [](Request& r) { r.max_tokens = 2147483647; });
  refused("has 4 KV blocks", [](Request& r) { r.max_tokens = 70; });
  refused("temperature must be", [](Request& r) { r.sampling.temperature = -1; });
  refused("temperature must be", [](Request& r) { r.sampling.temperature = NAN; });
  refused("top_p must be", [](Request& r) { r.sampling.top_p = 0; });
  refused("top_p must be", [](Request& r) { r.sampling.top_p = NAN; });
  refused("top_k must be", [](Request& r) { r.sampling.top_k = -1; });
  refused("min_p must be", [](Request& r) { r.sampling.min_p = 1; });
  refused("at most 4 stop strings", [](Request& r) { r.stop_strings.assign(5, "x"); });
  refused("a stop string must have 1 to 256 bytes", [](Request& r) { r.stop_strings = {""}; });
  refused("at most 128 stop ids", [](Request& r) { r.stop_ids.assign(129, 1); });
  EXPECT_FALSE(engine.step());
}

// Any id of either list ends a text, wherever it stands in its list.
TEST(KnownProblemT17, EveryIdOfTheEndListsOfBothFilesEndsARequest) {
  const golden::GoldenPrompt prompt = golden::prompts(golden::folder("float32_untied")).at(0);
  std::vector<int> unused;  // ids that the text does not have
  for (int id = 0; unused.size() < 3; ++id) {
    if (std::find(prompt.greedy.begin(), prompt.greedy.end(), id) == prompt.greedy.end()) unused.push_back(id);
  }
  const int target = prompt.greedy.at(7);
  const auto end = std::find(prompt.greedy.begin(), prompt.greedy.end(), target) - prompt.greedy.begin();
  for (size_t place = 0; place <= 3; ++place) {
    std::vector<int> ids = unused;
    ids.insert(ids.begin() + static_cast<std::ptrdiff_t>(place), target);
    const golden::ModelCopy copy("float32_untied");
    copy.set("eos_token_id", fmt::format("[{}, {}, {}]", ids[0], ids[1], ids[2]));
    copy.set("eos_token_id", std::to_string(ids[3]), "generation_config.json");
    LoadOptions options;
    options.threads = 1;
    Model model = Model::load(copy.path(), options);
    EXPECT_EQ(model.config().eos_ids, ids);
    Engine engine(model, nullptr, make_policy("topk"), {1, 512, 0});
    const RequestId id = engine.submit(request_of(prompt.tokens, 40));
    const Result result = run_to_end(engine)[id];
    EXPECT_EQ(result.finish, FinishReason::kStop) << "place " << place;
    EXPECT_LE(static_cast<std::ptrdiff_t>(result.tokens.size()), end + 1);
    EXPECT_GE(static_cast<std::ptrdiff_t>(result.tokens.size()), end);
  }
}

// A private copy of a golden float32 model in which one row of the embedding is NaN.
class NanEmbedding {
 public:
  NanEmbedding(const std::string& name, int row, int width)
      : path_(std::filesystem::temp_directory_path() / ("carpool_engine_test_" + std::to_string(getpid()))) {
    std::filesystem::copy(kFolder + "/" + name, path_);
    const std::string file = (path_ / "model.safetensors").string();
    std::string bytes = read_text_file(file);
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);
    const json::value names = json::parse(bytes.substr(8, header));
    const auto begin = names.at("model.embed_tokens.weight").at("data_offsets").at(0).to_number<size_t>();
    for (int i = 0; i < width; ++i) {
      const float nan = NAN;
      std::memcpy(bytes.data() + 8 + header + begin + sizeof(float) * static_cast<size_t>(row * width + i), &nan,
                  sizeof nan);
    }
    std::ofstream(file, std::ios::binary) << bytes;
  }
  ~NanEmbedding() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// N2: a token whose embedding is NaN. Its request ends as numerical_error; the others keep every bit.
TEST(Engine, NonFiniteLogitsEndOneRequestAndLeaveItsNeighboursAlone) {
  const NanEmbedding copy("float32_untied", 95, 32);
  LoadOptions options;
  options.threads = 1;
  options.check_finite = false;
  Model model = Model::load(copy.path(), options);
  const Request healthy = request_of({1, 2, 3}, 20);
  const auto expected = alone(model, healthy);
  ASSERT_EQ(expected.size(), 20u) << "the broken token must not come up by itself";
  for (const char* policy : {"topk", "oea:k0=1,guard=off"}) {
    Engine engine(model, nullptr, make_policy(policy), {8, 16, 0});
    Request isolated = healthy;
    isolated.isolated = true;
    const RequestId good = engine.submit(isolated);
    const RequestId bad = engine.submit(request_of({1, 95, 3}, 20));
    const auto results = run_to_end(engine);
    EXPECT_EQ(results.at(bad).finish, FinishReason::kNumericalError) << policy;
    EXPECT_TRUE(results.at(bad).tokens.empty()) << policy;
    EXPECT_EQ(results.at(good).finish, FinishReason::kLength) << policy;
    EXPECT_EQ(results.at(good).tokens, expected) << policy;
    EXPECT_EQ(engine.free_kv_blocks(), engine.total_kv_blocks());
  }
}

TEST(Engine, APolicyThatDoesNotFitTheModelIsRefused) {
  Model model = golden::load("bf16_tied");  // K = 4
  try {
    Engine engine(model, nullptr, make_policy("oea:k0=5"), {4, 16, 64});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kConfig);
  }
}

}  // namespace
}  // namespace carpool
