// What serving many people adds: the same text with and without prefix cache, preemption and chunks, log-probabilities,
// scored prompts, several policies at once, what routing did to a request, and cancelling in every state.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "base/source_dir_test_util.h"
#include "engine/engine.h"
#include "model/canary.h"
#include "model/golden_test_util.h"

namespace carpool {
namespace {

struct Answer {
  std::vector<int> tokens;
  std::vector<std::shared_ptr<const TokenLogprobs>> logprobs;
  std::shared_ptr<const std::vector<TokenLogprobs>> prompt_logprobs;
  Event last;
};

void collect(const Engine& engine, std::map<RequestId, Answer>& answers) {
  for (const Event& e : engine.last_step().events) {
    Answer& a = answers[e.id];
    if (e.token >= 0) {
      a.tokens.push_back(e.token);
      a.logprobs.push_back(e.logprobs);
    }
    if (e.prompt_logprobs) {
      EXPECT_EQ(a.prompt_logprobs, nullptr) << "once";
      EXPECT_LE(a.tokens.size(), 1u) << "with the first event";
      a.prompt_logprobs = e.prompt_logprobs;
    }
    EXPECT_EQ(e.stats != nullptr, e.finish != FinishReason::kNone);
    if (e.finish != FinishReason::kNone) a.last = e;
  }
}

std::map<RequestId, Answer> run_to_end(Engine& engine) {
  std::map<RequestId, Answer> answers;
  while (engine.step()) collect(engine, answers);
  return answers;
}

Request request_of(std::vector<int> prompt, int max_tokens) {
  Request r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  return r;
}

std::vector<int> some_prompt(unsigned seed, int length, int vocab = 90) {
  std::vector<int> out;
  for (int i = 0; i < length; ++i) {
    seed = seed * 1664525u + 1013904223u;
    out.push_back(static_cast<int>(seed >> 8) % vocab);
  }
  return out;
}

Answer alone(LanguageModel& model, const Request& request) {
  EngineOptions options;
  options.max_batch = 1;
  options.chunk = 512;
  Engine engine(model, nullptr, make_policy("topk"), options);
  const RequestId id = engine.submit(request);
  return run_to_end(engine)[id];
}

EngineOptions small_pool(int64_t kv_tokens, int chunk = 32) {
  EngineOptions options;
  options.max_batch = 8;
  options.chunk = chunk;
  options.kv_tokens = kv_tokens;
  options.prefix_cache = true;
  options.preempt = true;
  return options;
}

void expect_all_there(const Engine& engine) {
  EXPECT_EQ(engine.free_kv_blocks() + engine.cached_kv_blocks(), engine.total_kv_blocks());
}

// Requests that begin alike and are sampled with penalties, among others that a policy re-routes.
std::vector<Request> alike(int n, const std::vector<int>& beginning, int max_tokens, int vocab) {
  std::vector<Request> out;
  for (int i = 0; i < n; ++i) {
    Request r = request_of(beginning, max_tokens);
    for (const int t : some_prompt(static_cast<unsigned>(i), 3 + i, vocab)) r.prompt.push_back(t);
    r.isolated = true;
    r.logprobs = 2;
    if (i % 2 == 1) {
      r.sampling.temperature = 0.8f;
      r.sampling.seed = static_cast<uint64_t>(i);
      r.sampling.repetition_penalty = 1.2f;
      r.sampling.frequency_penalty = 0.3f;
      r.sampling.logit_bias = {{3, 1.5f}};
    }
    out.push_back(r);
  }
  return out;
}

void expect_same_with_everything_on(LanguageModel& model, const std::vector<Request>& requests, int64_t kv_tokens) {
  std::vector<Answer> expected;
  for (const Request& r : requests) expected.push_back(alone(model, r));
  int64_t hits = 0, preemptions = 0;
  for (const int chunk : {5, 64}) {
    for (const bool cache : {false, true}) {
      for (const bool preempt : {false, true}) {
        EngineOptions options = small_pool(kv_tokens, chunk);
        options.prefix_cache = cache;
        options.preempt = preempt;
        Engine engine(model, nullptr, make_policy("oea:k0=1,guard=off,min_batch=1"), options);
        for (const int round : {0, 1}) {  // once more, with what the first round left in the cache
          std::map<RequestId, size_t> index;
          for (size_t i = 0; i < requests.size(); ++i) {
            index[engine.submit(requests[i])] = i;
            Request routed = requests[i];
            routed.isolated = false;
            engine.submit(routed);
          }
          const auto answers = run_to_end(engine);
          for (const auto& [id, i] : index) {
            const Answer& a = answers.at(id);
            EXPECT_EQ(a.tokens, expected[i].tokens)
                << "chunk " << chunk << " cache " << cache << " preempt " << preempt << " round " << round;
            for (size_t t = 0; t < std::min(a.tokens.size(), expected[i].tokens.size()); ++t)
              ASSERT_EQ(a.logprobs[t]->chosen.logprob, expected[i].logprobs[t]->chosen.logprob) << "to the bit";
          }
          expect_all_there(engine);
        }
        hits += engine.prefix_hits();
        preemptions += engine.preemptions();
        EXPECT_EQ(cache, engine.prefix_hits() > 0);
      }
    }
  }
  EXPECT_GT(hits, 0);
  EXPECT_GT(preemptions, 0);
}

TEST(EngineServing, AnIsolatedTextIsTheSameWithPrefixCachePreemptionAndChunksAsAlone) {
  Model model = golden::load("bf16_tied");
  expect_same_with_everything_on(model, alike(6, some_prompt(7, 36), 40, 90), 16 * 14);
}

TEST(EngineServing, TheEmbeddedModelKeepsItsTextToo) {
  LoadOptions load;
  load.threads = 2;
  Model model = Model::load(source_dir() + "/models/books-qwen3", load);
  expect_same_with_everything_on(model, alike(3, some_prompt(7, 40, 1000), 24, 1000), 16 * 9);
}

// The next turn of a conversation: the prompt is what was said before, the last answer included.
TEST(EngineServing, AnAnswerIsAPrefixOfTheNextTurnOnlyWhereNoPolicyDecided) {
  Model model = golden::load("bf16_tied");
  for (const bool isolated : {false, true}) {
    Engine engine(model, nullptr, make_policy("oea:k0=1,guard=off,min_batch=1"), small_pool(0));
    Request first = request_of(some_prompt(1, 40), 60);
    first.isolated = isolated;
    const RequestId id = engine.submit(first);
    for (unsigned n = 2; n < 6; ++n) engine.submit(request_of(some_prompt(n, 8), 60));
    Request second = request_of(first.prompt, 30);
    const Answer answer = run_to_end(engine).at(id);
    EXPECT_EQ(answer.last.stats->rerouted > 0, !isolated);
    second.prompt.insert(second.prompt.end(), answer.tokens.begin(), answer.tokens.end());
    second.prompt.push_back(5);
    second.isolated = true;
    second.logprobs = 0;
    const RequestId next = engine.submit(second);
    const Answer got = run_to_end(engine).at(next), expected = alone(model, second);
    EXPECT_EQ(got.last.stats->cached_tokens, isolated ? 96 : 32);
    EXPECT_EQ(got.tokens, expected.tokens);
    for (size_t t = 0; t < got.tokens.size(); ++t)
      EXPECT_EQ(got.logprobs[t]->chosen.logprob, expected.logprobs[t]->chosen.logprob) << "to the bit";
  }
}

TEST(EngineServing, LogprobsAreThoseOfTheModelAndASecondRequestScoresTheSameTextAlike) {
  Model model = golden::load("bf16_tied");
  Request write = request_of(some_prompt(3, 20), 30);
  write.logprobs = 3;
  const Answer written = alone(model, write);
  ASSERT_EQ(written.logprobs.size(), 30u);
  for (size_t i = 0; i < 30; ++i) {
    const TokenLogprobs& l = *written.logprobs[i];
    EXPECT_EQ(l.chosen.token, written.tokens[i]);
    ASSERT_EQ(l.top.size(), 3u);
    EXPECT_EQ(l.top[0].token, l.chosen.token) << "greedy";
    EXPECT_EQ(l.top[0].logprob, l.chosen.logprob);
    EXPECT_LT(l.chosen.logprob, 0);
    EXPECT_GE(l.top[1].logprob, l.top[2].logprob);
  }
  Request read = write;
  read.prompt.insert(read.prompt.end(), written.tokens.begin(), written.tokens.end());
  read.prompt_logprobs = true;
  read.logprobs = 1;
  for (const int max_tokens : {0, 1, 4}) {
    for (const int chunk : {7, 512}) {
      read.max_tokens = max_tokens;
      Engine engine(model, nullptr, make_policy("topk"), small_pool(16 * 16, chunk));
      for (const int round : {0, 1}) {
        const RequestId id = engine.submit(read);
        const Answer a = run_to_end(engine)[id];
        EXPECT_EQ(a.tokens.size(), static_cast<size_t>(max_tokens));
        EXPECT_EQ(a.last.finish, FinishReason::kLength);
        ASSERT_NE(a.prompt_logprobs, nullptr);
        const auto& scores = *a.prompt_logprobs;
        ASSERT_EQ(scores.size(), read.prompt.size());
        EXPECT_TRUE(scores[0].top.empty()) << "nothing comes before the first token";
        for (size_t i = 0; i < scores.size(); ++i) EXPECT_EQ(scores[i].chosen.token, read.prompt[i]);
        for (size_t i = 0; i < 30; ++i) {
          EXPECT_EQ(scores[20 + i].chosen.logprob, written.logprobs[i]->chosen.logprob) << "to the bit";
          EXPECT_EQ(scores[20 + i].top.size(), 1u);
        }
        EXPECT_EQ(a.last.stats->prefix, PrefixReason::kLogprobs);
        EXPECT_EQ(a.last.stats->cached_tokens, 0) << "round " << round;
      }
    }
  }
}

TEST(EngineServing, APromptOfOneTokenThatIsOnlyScoredEndsAtOnce) {
  CanaryModel model;
  Engine engine(model, nullptr, make_policy("topk"), small_pool(64));
  Request r = request_of({'a'}, 0);
  r.prompt_logprobs = true;
  const RequestId id = engine.submit(r);
  const Answer a = run_to_end(engine).at(id);
  EXPECT_EQ(a.last.finish, FinishReason::kLength);
  EXPECT_EQ(a.last.token, -1);
  ASSERT_NE(a.prompt_logprobs, nullptr);
  EXPECT_EQ(a.prompt_logprobs->size(), 1u);
}

TEST(EngineServing, ScoredPromptsOfManyShareTheRowsWithLogits) {
  CanaryModel model;
  EngineOptions options;
  options.max_batch = 4;
  options.chunk = 256;
  Engine engine(model, nullptr, make_policy("topk"), options);
  std::vector<RequestId> ids;
  for (int i = 0; i < 4; ++i) {
    Request r = request_of(std::vector<int>(100, 'a' + i), 2);
    r.prompt_logprobs = true;
    ids.push_back(engine.submit(r));
  }
  ids.push_back(engine.submit(request_of({'x', 'y'}, 2)));
  const auto answers = run_to_end(engine);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(answers.at(ids[i]).prompt_logprobs->size(), 100u);
  EXPECT_EQ(answers.at(ids[4]).tokens, CanaryModel::expected(std::vector<int>{'x', 'y'}, 2));
}

TEST(EngineServing, EachRequestIsDecidedByThePolicyItNames) {
  Model model = golden::load("bf16_tied");
  std::vector<std::unique_ptr<Policy>> policies;
  policies.push_back(make_policy("topk"));
  policies.push_back(make_policy("oea:k0=1,guard=off,min_batch=1"));
  Engine engine(model, nullptr, std::move(policies), small_pool(0));
  std::map<RequestId, int> policy_of;
  std::map<RequestId, Request> requests;
  for (unsigned n = 0; n < 8; ++n) {
    Request r = request_of(some_prompt(n, 8), 24);
    r.policy = static_cast<int>(n % 2);
    const RequestId id = engine.submit(r);
    policy_of[id] = r.policy;
    requests[id] = r;
  }
  const auto answers = run_to_end(engine);
  int64_t rerouted = 0;
  for (const auto& [id, policy] : policy_of) {
    const RequestStats& stats = *answers.at(id).last.stats;
    const int64_t pairs = 23 * model.config().moe_layers();  // the first token came from a prompt row
    const auto reason = policy == 0 ? PlainReason::kPolicy : PlainReason::kApplied;
    EXPECT_EQ(stats.rows[static_cast<size_t>(reason)], pairs);
    EXPECT_EQ(std::accumulate(stats.rows.begin(), stats.rows.end(), int64_t{0}), pairs);
    if (policy == 0) {
      EXPECT_EQ(stats.rerouted, 0);
      EXPECT_EQ(answers.at(id).tokens, alone(model, requests[id]).tokens) << "beside re-routed rows";
    }
    rerouted += stats.rerouted;
  }
  EXPECT_GT(rerouted, 0);
  Request unknown = request_of({1}, 1);
  unknown.policy = 2;
  EXPECT_THROW(engine.submit(unknown), RequestError);
}

TEST(EngineServing, ThePolicyCanBeSwitchedWhileRequestsRun) {
  Model model = golden::load("bf16_tied");
  Engine engine(model, nullptr, make_policy("topk"), small_pool(0));
  for (unsigned n = 0; n < 4; ++n) engine.submit(request_of(some_prompt(n, 8), 40));
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(engine.step());
  EXPECT_EQ(engine.routing().rerouted_tokens, 0);
  EXPECT_THROW(engine.set_policy(make_policy("oea:k0=5")), Error) << "K is 4";
  EXPECT_EQ(engine.policy().spec(), "topk");
  engine.set_policy(make_policy("oea:k0=1,guard=off,min_batch=1"));
  ASSERT_TRUE(engine.step());
  EXPECT_GT(engine.last_step().routing.plain_rows[static_cast<size_t>(PlainReason::kApplied)], 0);
  engine.set_policy(make_policy("topk"));
  ASSERT_TRUE(engine.step());
  EXPECT_EQ(engine.last_step().routing.plain_rows[static_cast<size_t>(PlainReason::kApplied)], 0);
}

TEST(EngineServing, ExpertsAreRecordedWhileAskedFor) {
  Model model = golden::load("bf16_tied");
  Engine engine(model, nullptr, make_policy("topk"), small_pool(0));
  engine.submit(request_of(some_prompt(1, 8), 20));
  ASSERT_TRUE(engine.step());
  std::vector<std::vector<int64_t>> counts;
  engine.record_experts(&counts);
  int64_t slots = 0;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(engine.step());
    slots += engine.last_step().routing.slots;
  }
  engine.record_experts(nullptr);
  ASSERT_TRUE(engine.step());
  ASSERT_EQ(static_cast<int>(counts.size()), model.config().moe_layers());
  int64_t sum = 0;
  for (const auto& layer : counts) sum = std::accumulate(layer.begin(), layer.end(), sum);
  EXPECT_EQ(sum, slots);
}

TEST(EngineServing, CancelEndsARequestWithinAStepInEveryState) {
  CanaryModel model;
  EngineOptions options = small_pool(16 * 8, 16);
  options.max_batch = 3;
  Engine engine(model, nullptr, make_policy("topk"), options);
  const RequestId oldest = engine.submit(request_of({'a', 'b'}, 100));
  const RequestId newest = engine.submit(request_of({'c', 'd'}, 100));
  std::map<RequestId, Answer> answers;
  while (engine.preemptions() == 0) {
    ASSERT_TRUE(engine.step());
    collect(engine, answers);
  }
  EXPECT_EQ(engine.running(), 1);
  const size_t kept = answers[newest].tokens.size();
  EXPECT_GT(kept, 10u);
  EXPECT_TRUE(engine.cancel(newest)) << "preempted";
  EXPECT_FALSE(engine.cancel(newest)) << "twice";
  ASSERT_TRUE(engine.step());
  collect(engine, answers);
  EXPECT_EQ(answers[newest].last.finish, FinishReason::kCancelled);
  EXPECT_EQ(answers[newest].last.stats->completion_tokens, static_cast<int>(kept));
  EXPECT_EQ(answers[newest].last.stats->preemptions, 1);
  EXPECT_TRUE(engine.cancel(oldest)) << "decoding";
  const RequestId prompting = engine.submit(request_of(std::vector<int>(60, 'e'), 10));
  ASSERT_TRUE(engine.step());
  EXPECT_TRUE(engine.cancel(prompting)) << "between chunks";
  const RequestId waiting = engine.submit(request_of({'f'}, 10));
  EXPECT_TRUE(engine.cancel(waiting)) << "never admitted";
  for (const auto& [id, a] : run_to_end(engine)) EXPECT_EQ(a.last.finish, FinishReason::kCancelled) << id;
  expect_all_there(engine);
  EXPECT_GT(engine.cached_kv_blocks(), 0) << "what the cancelled ones computed is kept";
}

TEST(EngineServing, CachedPrefixesAreForgottenOnlyWhileNothingRuns) {
  CanaryModel model;
  Engine engine(model, nullptr, make_policy("topk"), small_pool(16 * 8));
  engine.submit(request_of(std::vector<int>(40, 'a'), 4));
  EXPECT_FALSE(engine.flush_prefix_cache());
  ASSERT_TRUE(engine.step());
  EXPECT_FALSE(engine.flush_prefix_cache());
  while (engine.step()) {
  }
  EXPECT_GT(engine.cached_kv_blocks(), 0);
  EXPECT_TRUE(engine.flush_prefix_cache());
  EXPECT_EQ(engine.free_kv_blocks(), engine.total_kv_blocks());
}

TEST(EngineServing, ManyLongRequestsInATinyPoolAllEndWithTheirOwnText) {
  CanaryModel model;
  EngineOptions options = small_pool(16 * 20);
  options.max_batch = 64;
  Engine engine(model, nullptr, make_policy("topk"), options);
  std::map<RequestId, Request> requests;
  for (int i = 0; i < 64; ++i) {
    const Request r = request_of(some_prompt(static_cast<unsigned>(i), 1 + i % 40), 200);
    requests[engine.submit(r)] = r;
  }
  const auto answers = run_to_end(engine);
  for (const auto& [id, r] : requests) EXPECT_EQ(answers.at(id).tokens, CanaryModel::expected(r.prompt, 200)) << id;
  EXPECT_GT(engine.preemptions(), 10);
  expect_all_there(engine);
}

TEST(EngineServing, WhatEndedARequestIsSaid) {
  CanaryModel model;
  const std::vector<int> prompt{'a', 'b', 'c'};
  const auto text = CanaryModel::expected(prompt, 20);
  Engine engine(model, nullptr, make_policy("topk"), small_pool(0));
  Request r = request_of(prompt, 20);
  r.stop_ids = {text[9]};
  const RequestId id = engine.submit(r);
  const Answer a = run_to_end(engine).at(id);
  EXPECT_EQ(a.last.finish, FinishReason::kStop);
  EXPECT_EQ(a.last.matched_token, text[9]);
  EXPECT_EQ(a.last.stats->prompt_tokens, 3);
  EXPECT_EQ(a.last.stats->completion_tokens, static_cast<int>(a.tokens.size()));
}

TEST(EngineServing, AStepTargetOutsideItsRangeIsRefused) {
  CanaryModel model;
  for (const double target : {-1.0, std::nan(""), 1e9}) {
    EngineOptions options = small_pool(0);
    options.step_target_ms = target;
    EXPECT_THROW(Engine(model, nullptr, make_policy("topk"), options), Error);
  }
}

}  // namespace
}  // namespace carpool
