// Every value that a user can set, at and beyond its limits: which field is named, with which code.
#include "engine/request.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>

namespace carpool {
namespace {

constexpr RequestLimits kLimits{.vocab = 100, .context = 256, .pool_positions = 4096};

Request good() {
  Request r;
  r.prompt = {1, 2, 3};
  r.max_tokens = 10;
  return r;
}

void expect_refused(const std::string& field, const std::string& code, const std::string& part,
                    const std::function<void(Request&)>& change, const RequestLimits& limits = kLimits) {
  Request r = good();
  change(r);
  try {
    check(r, limits);
    ADD_FAILURE() << field << ": not refused; wanted " << part;
  } catch (const RequestError& e) {
    EXPECT_EQ(e.field(), field);
    EXPECT_EQ(e.code(), code);
    EXPECT_EQ(e.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

void expect_accepted(const std::function<void(Request&)>& change, const RequestLimits& limits = kLimits) {
  Request r = good();
  change(r);
  EXPECT_NO_THROW(check(r, limits));
}

TEST(CheckOfARequest, AcceptsDefaultsAndEveryValueAtItsLimit) {
  expect_accepted([](Request&) {});
  expect_accepted([](Request& r) {
    r.max_tokens = r.min_tokens = 253;
    r.logprobs = 20;
    r.sampling = {100.0f, 2147483647, 1.0f, 0.999f, UINT64_MAX, 2.0f, 2.0f, -2.0f, {{0, -100.0f}, {99, 100.0f}}};
    r.stop_ids.assign(128, 99);
    r.stop_strings.assign(4, std::string(256, 'x'));
  });
  expect_accepted([](Request& r) {
    r.max_tokens = 0;
    r.prompt_logprobs = true;
    r.prompt.assign(256, 99);
  });
  expect_accepted([](Request& r) { r.sampling.temperature = 1e-9f; });
}

TEST(CheckOfARequest, RefusesNumbersOutsideTheirRangesAndNan) {
  const char* code = "invalid_value";
  const auto bad = [&](const char* field, const char* part, float SamplingParams::* value,
                       std::initializer_list<float> values) {
    for (const float v : values) expect_refused(field, code, part, [&](Request& r) { r.sampling.*value = v; });
    expect_refused(field, code, part, [&](Request& r) { r.sampling.*value = NAN; });
  };
  bad("temperature", "0 to 100, got", &SamplingParams::temperature, {-1, -1e-9f, 100.1f, INFINITY});
  bad("top_p", "above 0 and at most 1, got", &SamplingParams::top_p, {0, -0.5f, 1.01f, INFINITY});
  bad("min_p", "0 or more and below 1, got", &SamplingParams::min_p, {-0.1f, 1, INFINITY});
  bad("repetition_penalty", "above 0 and at most 2", &SamplingParams::repetition_penalty, {0, -1, 2.1f, INFINITY});
  bad("presence_penalty", "-2 to 2", &SamplingParams::presence_penalty, {-2.1f, 2.1f, INFINITY, -INFINITY});
  bad("frequency_penalty", "-2 to 2", &SamplingParams::frequency_penalty, {-2.1f, 2.1f, INFINITY, -INFINITY});
  expect_refused("top_k", code, "got -1", [](Request& r) { r.sampling.top_k = -1; });
  expect_refused("max_tokens", code, "max_tokens must be at least 1, got 0", [](Request& r) { r.max_tokens = 0; });
  expect_refused("max_tokens", code, "at least 1, got -5", [](Request& r) { r.max_tokens = -5; });
  expect_refused("max_tokens", code, "at least 0, got -1", [](Request& r) {
    r.max_tokens = -1;
    r.prompt_logprobs = true;
  });
  expect_refused("min_tokens", code, "got -1", [](Request& r) { r.min_tokens = -1; });
  expect_refused("min_tokens", code, "0 to max_tokens, which is 10, got 11", [](Request& r) { r.min_tokens = 11; });
  expect_refused("logprobs", code, "got -2", [](Request& r) { r.logprobs = -2; });
  for (const float bias : {100.5f, -INFINITY, NAN}) {
    expect_refused("logit_bias", code, "-100 to 100", [&](Request& r) { r.sampling.logit_bias = {{1, bias}}; });
  }
}

TEST(CheckOfARequest, HoldsTokenIdsAgainstTheRowsOfTheModel) {
  for (const int id : {-1, 100, 2147483647}) {
    const std::string part = "token id " + std::to_string(id);
    expect_refused("prompt", "invalid_value", part, [&](Request& r) { r.prompt[1] = id; });
    expect_refused("stop_token_ids", "invalid_value", part, [&](Request& r) { r.stop_ids = {5, id}; });
    expect_refused("logit_bias", "invalid_value", part, [&](Request& r) { r.sampling.logit_bias = {{id, 1.0f}}; });
  }
}

TEST(CheckOfARequest, CountsComeBeforeItems) {
  const char* code = "too_many_items";
  expect_refused("stop", code, "at most 4 stop strings are allowed, got 5",
                 [](Request& r) { r.stop_strings.assign(5, ""); });
  expect_refused("stop_token_ids", code, "128", [](Request& r) { r.stop_ids.assign(129, -1); });
  expect_refused("logit_bias", code, "300", [](Request& r) { r.sampling.logit_bias.assign(301, {-1, NAN}); });
  expect_refused("logprobs", code, "at most 20, got 21", [](Request& r) { r.logprobs = 21; });
  expect_refused("prompt", "context_length_exceeded", "256 tokens", [](Request& r) { r.prompt.assign(300, -1); });
}

TEST(CheckOfARequest, StopStringsHaveOneToTwoHundredFiftySixBytes) {
  for (const size_t bytes : {size_t{0}, size_t{257}}) {
    expect_refused("stop", "invalid_value", "1 to 256 bytes, got " + std::to_string(bytes),
                   [&](Request& r) { r.stop_strings = {"x", std::string(bytes, 'x')}; });
  }
  expect_refused("prompt", "invalid_value", "the prompt is empty", [](Request& r) { r.prompt.clear(); });
}

TEST(CheckOfARequest, WhatDoesNotFitIsRefusedWithBothNumbersInTheWordsClientsKnow) {
  const char* code = "context_length_exceeded";
  expect_refused("max_tokens", code,
                 "This model's maximum context length is 256 tokens. However, you requested 300 tokens (250 in the "
                 "messages, 50 in the completion). Please reduce",
                 [](Request& r) {
                   r.prompt.assign(250, 1);
                   r.max_tokens = 50;
                 });
  expect_refused("max_tokens", code, "requested 2147483650 tokens (3 in", [](Request& r) { r.max_tokens = INT32_MAX; });
  expect_refused("prompt", code, "requested 257 tokens (256 in the messages, 1 in the completion)", [](Request& r) {
    r.prompt.assign(256, 1);
    r.max_tokens = 1;
  });
  expect_refused("prompt", code, "requested 257 tokens (257 in the messages, 0 in the completion)", [](Request& r) {
    r.prompt.assign(257, 1);
    r.max_tokens = 0;
    r.prompt_logprobs = true;
  });
}

TEST(CheckOfARequest, TheWholePoolIsALimitOfItsOwn) {
  const RequestLimits small{.vocab = 100, .context = 256, .pool_positions = 64};
  expect_accepted([](Request& r) { r.max_tokens = 62; }, small);  // 3 + 62 tokens, the last is never stored
  expect_refused(
      "max_tokens", "context_length_exceeded", "4 KV blocks for 64 tokens. However, you requested 66",
      [](Request& r) { r.max_tokens = 63; }, small);
  expect_refused(
      "prompt", "context_length_exceeded", "(65 in the messages, 0 in the completion)",
      [](Request& r) {
        r.prompt.assign(65, 1);
        r.max_tokens = 0;
        r.prompt_logprobs = true;
      },
      small);
}

TEST(Names, OfReasonsAreDistinctAndNeverMissing) {
  std::set<std::string> names;
  for (int i = 0; i < kPrefixReasons; ++i) names.insert(name(static_cast<PrefixReason>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kPrefixReasons));
  EXPECT_EQ(names.count(""), 0u);
  EXPECT_STREQ(name(PrefixReason::kLogprobs), "prompt_logprobs");
}

}  // namespace
}  // namespace carpool
