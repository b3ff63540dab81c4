// Constraints in the engine: masks meet stops, min_tokens, bias and log-probabilities, and survive preemption.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "engine/engine.h"
#include "grammar/constraint.h"
#include "grammar/structure.h"
#include "model/canary.h"
#include "text/dummy_tokenizer.h"

namespace carpool {
namespace {

// The canary speaks bytes, each a token; what it says is a hash, so it never wants what a grammar wants.
struct Canary {
  CanaryModel model;
  Tokenizer tokenizer = make_dummy_tokenizer(model.config().vocab);
  std::shared_ptr<const TokenTrie> trie =
      std::make_shared<const TokenTrie>(tokenizer, model.config().vocab, model.config().eos_ids);

  std::shared_ptr<Constraint> regex(const std::string& expression) const {
    StructureSpec spec;
    spec.kind = StructureSpec::Kind::kRegex;
    spec.path = "regex";
    spec.regex = expression;
    return std::make_shared<Constraint>(make_grammar(spec), trie);
  }
  Request request(const std::string& expression, int max_tokens = 64) const {
    Request r;
    r.prompt = {65, 66, 67};
    r.max_tokens = max_tokens;
    r.sampling.temperature = 1;
    r.sampling.seed = 1;
    r.isolated = true;
    r.constraint = regex(expression);
    return r;
  }
};

struct Ended {
  std::string text;
  std::vector<int> tokens;
  Event last;
  std::vector<std::shared_ptr<const TokenLogprobs>> logprobs;
};

std::map<RequestId, Ended> run(Engine& engine) {
  std::map<RequestId, Ended> out;
  while (engine.step()) {
    for (const Event& e : engine.last_step().events) {
      Ended& one = out[e.id];
      one.text += e.text;
      if (e.token >= 0) one.tokens.push_back(e.token);
      if (e.logprobs) one.logprobs.push_back(e.logprobs);
      if (e.finish != FinishReason::kNone) one.last = e;
    }
  }
  return out;
}

Ended run_one(Canary& canary, Request request) {
  Engine engine(canary.model, &canary.tokenizer, make_policy("topk"), {});
  const RequestId id = engine.submit(std::move(request));
  return run(engine)[id];
}

TEST(ConstraintInEngine, ATextEndsByItselfWhenItIsWhole) {
  Canary canary;
  const Ended ended = run_one(canary, canary.request("[a-c]{5}x"));
  EXPECT_EQ(ended.text.size(), 6u);
  EXPECT_EQ(ended.text.find_first_not_of("abc"), 5u) << ended.text;
  EXPECT_EQ(ended.last.finish, FinishReason::kStop);
  EXPECT_EQ(ended.last.matched_token, -1) << "no end token was needed";
  Request longer = canary.request("[a-c]{5}x");
  longer.ignore_eos = true;
  EXPECT_EQ(run_one(canary, longer).text, ended.text);
}

TEST(ConstraintInEngine, MaxTokensCutsATextAndAWholeOneOfThatLengthIsStillWhole) {
  Canary canary;
  EXPECT_EQ(run_one(canary, canary.request("[a-c]{5}x", 4)).last.finish, FinishReason::kLength);
  EXPECT_EQ(run_one(canary, canary.request("[a-c]{5}x", 6)).last.finish, FinishReason::kStop);
}

TEST(ConstraintInEngine, AnEndTokenComesOnlyWhereTheTextMayEnd) {
  Canary canary;
  ASSERT_FALSE(canary.model.config().eos_ids.empty());
  const int end = canary.model.config().eos_ids[0];
  Request eager = canary.request("a{3,40}");
  eager.sampling.logit_bias = {{end, 100}};
  Ended ended = run_one(canary, eager);
  EXPECT_EQ(ended.text, "aaa") << "the end is wanted from the start and may come after three";
  EXPECT_EQ(ended.last.matched_token, end);
  eager.min_tokens = 7;
  EXPECT_EQ(run_one(canary, eager).text, "aaaaaaa") << "not before min_tokens";
  eager.min_tokens = 60;
  EXPECT_EQ(run_one(canary, eager).text, std::string(40, 'a')) << "the grammar's end comes before min_tokens";
  eager.min_tokens = 0;
  eager.ignore_eos = true;
  EXPECT_EQ(run_one(canary, eager).text, std::string(40, 'a'));
}

TEST(ConstraintInEngine, StopsCutAndStopIdsOfTheTextComeWhereTheTextAllowsThem) {
  Canary canary;
  Request stopped = canary.request("abcdef");
  stopped.stop_strings = {"cd"};
  const Ended cut = run_one(canary, stopped);
  EXPECT_EQ(cut.text, "ab");
  EXPECT_EQ(cut.last.matched, "cd");
  Request by_id = canary.request("abc(d|e)f");
  by_id.stop_ids = {'d', 'f', 'z'};
  by_id.sampling.logit_bias = {{'z', 100}, {'d', 100}};
  const Ended ended = run_one(canary, by_id);
  EXPECT_EQ(ended.text, "abc");
  EXPECT_EQ(ended.last.matched_token, 'd');
}

TEST(ConstraintInEngine, BiasAndSeedChooseWithinTheMask) {
  Canary canary;
  Request r = canary.request("[ab]{30}");
  const std::string one = run_one(canary, r).text;
  EXPECT_EQ(run_one(canary, r).text, one);
  r.sampling.seed = 2;
  EXPECT_NE(run_one(canary, r).text, one);
  r.sampling.logit_bias = {{'b', 100}, {'c', 100}};
  EXPECT_EQ(run_one(canary, r).text, std::string(30, 'b'));
}

TEST(ConstraintInEngine, LogprobsAreOfTheModelsOwnDistribution) {
  Canary canary;
  Request r = canary.request("[ab]{3}");
  r.logprobs = 1;
  const Ended ended = run_one(canary, r);
  ASSERT_EQ(ended.logprobs.size(), 3u);
  for (const auto& scores : ended.logprobs) {
    EXPECT_LT(scores->chosen.logprob, scores->top[0].logprob) << "what the model wanted is not what it had to say";
  }
}

TEST(ConstraintInEngine, WhatTheVocabularyCannotSpellFailsClosed) {
  Canary canary;
  std::vector<std::string> tokens(static_cast<size_t>(canary.model.config().vocab));
  tokens['a'] = "a";
  StructureSpec spec;
  spec.kind = StructureSpec::Kind::kChoice;
  spec.path = "choice";
  spec.choices = {"ab"};
  Request r = canary.request("a");
  r.constraint = std::make_shared<Constraint>(make_grammar(spec), std::make_shared<const TokenTrie>(tokens));
  const Ended ended = run_one(canary, r);
  EXPECT_EQ(ended.text, "a");
  EXPECT_EQ(ended.last.finish, FinishReason::kConstraintError);
  EXPECT_STREQ(name(ended.last.finish), "constraint_error");
}

TEST(ConstraintInEngine, PreemptionCachesAndChunksChangeNoText) {
  Canary canary;
  const char* const expressions[] = {"(ab|ba){10,40}", "[a-e]{60}", "(\\d{1,3}, ){5,20}\\d", "x[yz]*"};
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    Request r = canary.request(expressions[i % 4], 70);
    for (int k = 0; k < 20 + i; ++k) r.prompt.push_back(70 + k % 9);
    r.sampling.seed = static_cast<uint64_t>(i);
    requests.push_back(std::move(r));
  }
  std::vector<std::string> expected;
  for (const Request& r : requests) expected.push_back(run_one(canary, r).text);
  int64_t preemptions = 0;
  for (const bool shared : {false, true}) {
    EngineOptions options;
    options.max_batch = 8;
    options.chunk = 7;
    options.kv_tokens = 256;
    options.prefix_cache = shared;
    options.preempt = true;
    Engine engine(canary.model, &canary.tokenizer, make_policy("topk"), options);
    std::map<RequestId, size_t> index;
    for (size_t i = 0; i < requests.size(); ++i) index[engine.submit(requests[i])] = i;
    auto ended = run(engine);
    for (const auto& [id, i] : index) EXPECT_EQ(ended[id].text, expected[i]) << i;
    preemptions += engine.preemptions();
  }
  EXPECT_GT(preemptions, 0);
}

TEST(ConstraintInSampler, TheMaskComesBeforeTheCutsAndABrokenRowStaysBroken) {
  Canary canary;
  const auto trie = std::make_shared<const TokenTrie>(std::vector<std::string>{"a", "b", "c", "", "d"});
  StructureSpec spec;
  spec.kind = StructureSpec::Kind::kChoice;
  spec.path = "choice";
  spec.choices = {"b", "c"};
  Request request;
  request.prompt = {0};
  request.constraint = std::make_shared<Constraint>(make_grammar(spec), trie);
  ConstraintCursor cursor(request.constraint);
  const auto mask = cursor.mask();
  std::vector<float> logits = {9, 1, 2, 8, 7};
  const std::vector<float> before = logits;
  const std::vector<int> ends = {3};
  Sampler sampler;
  request.sampling.temperature = 1;
  request.sampling.top_k = 1;
  EXPECT_EQ(sampler.sample(logits, request, request.prompt, ends, mask.get()).token, 2) << "the best that is allowed";
  request.sampling = {};
  EXPECT_EQ(sampler.sample(logits, request, request.prompt, ends, mask.get()).token, 2);
  EXPECT_EQ(logits, before) << "given back as they were";
  logits[0] = NAN;
  EXPECT_EQ(sampler.sample(logits, request, request.prompt, ends, mask.get()).token, -1);
  EXPECT_TRUE(Sampler::broken(logits));
  logits = {1, -INFINITY, -INFINITY, 1, 1};
  EXPECT_EQ(sampler.sample(logits, request, request.prompt, ends, mask.get()).token, -1) << "nothing that is allowed";
  EXPECT_FALSE(Sampler::broken(logits));
}

}  // namespace
}  // namespace carpool
