// What the fields of requests mean to the engine, their defaults for each API, and everything that is refused.
#include "server/parameters.h"

#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <sstream>

#include "server/fields.h"
#include "server/generation.h"

namespace carpool {
namespace {

ModelConfig model(float temperature = 0) {
  ModelConfig config;
  config.vocab = 1000;
  config.context = 512;
  config.sampling.temperature = temperature;
  if (temperature > 0) config.sampling.top_k = 20, config.sampling.top_p = 0.9f;
  return config;
}

using Reader = std::function<Generation(const json::object&)>;

Generation completion(const json::object& body) { return read_completion(body, model()); }
Generation chat(const json::object& body) { return read_chat(body, model()); }
Generation native(const json::object& params) { return read_native(params, "sampling_params", {}, model()); }
Generation messages(const json::object& body) {
  json::object with = body;
  with.emplace("max_tokens", 10);
  return read_messages(with, model());
}

// "code|param", or "" when accepted.
std::string refusal(const Reader& read, const std::string& body) {
  try {
    read(read_body(body));
  } catch (const ApiError& e) {
    EXPECT_EQ(e.status(), 400) << body;
    EXPECT_EQ(e.type(), "invalid_request_error");
    return e.code() + "|" + e.param();
  }
  return "";
}

std::string list_of(size_t n, const std::string& item) {
  std::string out = "[";
  for (size_t i = 0; i < n; ++i) out += (i ? "," : "") + item;
  return out + "]";
}

std::string biases(int n) {
  std::string out = "{";
  for (int i = 0; i < n; ++i) out += (i ? ",\"" : "\"") + std::to_string(i) + "\":1";
  return out + "}";
}

struct Bad {
  const char* field;
  std::string value;
  const char* code;
};

void expect_refused(const Reader& read, const std::vector<Bad>& table, const std::string& prefix = "") {
  for (const Bad& bad : table) {
    const std::string body = std::string("{\"") + bad.field + "\":" + bad.value + "}";
    EXPECT_EQ(refusal(read, body), std::string(bad.code) + "|" + prefix + bad.field) << body.substr(0, 200);
  }
}

const std::vector<Bad>& sampling_table() {
  static const std::vector<Bad> table = {{"temperature", "-1", "invalid_value"},
                                         {"temperature", "101", "invalid_value"},
                                         {"temperature", "\"hot\"", "invalid_value"},
                                         {"top_p", "0", "invalid_value"},
                                         {"top_p", "1.01", "invalid_value"},
                                         {"top_p", "-0.5", "invalid_value"},
                                         {"top_k", "-2", "invalid_value"},
                                         {"top_k", "1.5", "invalid_value"},
                                         {"min_p", "1", "invalid_value"},
                                         {"min_p", "-0.1", "invalid_value"},
                                         {"presence_penalty", "2.1", "invalid_value"},
                                         {"frequency_penalty", "-2.1", "invalid_value"},
                                         {"repetition_penalty", "0", "invalid_value"},
                                         {"repetition_penalty", "2.5", "invalid_value"},
                                         {"seed", "1180591620717411303424", "invalid_value"},
                                         {"seed", "0.5", "invalid_value"},
                                         {"n", "0", "invalid_value"},
                                         {"n", "-3", "invalid_value"},
                                         {"n", "9", "too_many_items"},
                                         {"n", "1000000000", "too_many_items"},
                                         {"stop", list_of(5, "\"a\""), "too_many_items"},
                                         {"stop", list_of(500000, "\"a\""), "too_many_items"},
                                         {"stop", "[1]", "invalid_value"},
                                         {"stop", "\"\"", "invalid_value"},
                                         {"stop", "\"" + std::string(257, 'x') + "\"", "invalid_value"},
                                         {"stop_token_ids", list_of(129, "1"), "too_many_items"},
                                         {"logit_bias", biases(301), "too_many_items"},
                                         {"logit_bias", "{\"1000\":1}", "invalid_value"},
                                         {"logit_bias", "{\"-1\":1}", "invalid_value"},
                                         {"logit_bias", "{\"a\":1}", "invalid_value"},
                                         {"logit_bias", "{\"5\":100,\"05\":100}", "invalid_value"},
                                         {"logit_bias", "{\"-0\":1}", "invalid_value"},
                                         {"logit_bias", "{\"1\":\"a\"}", "invalid_value"},
                                         {"logit_bias", "[]", "invalid_value"},
                                         {"ignore_eos", "1", "invalid_value"},
                                         {"regex", "7", "invalid_value"},
                                         {"ebnf", "\"root\"", "unsupported_value"},
                                         {"json_schema", "\"{\"", "invalid_value"},
                                         {"bad_words", "[\"a\"]", "unsupported_value"},
                                         {"xtc_probability", "0.5", "unsupported_value"},
                                         {"typical_p", "0.9", "unsupported_value"}};
  return table;
}

TEST(Parameters, BadSamplingValuesAreRefusedByEveryApiWithTheirName) {
  expect_refused(completion, sampling_table());
  expect_refused(chat, sampling_table());
  expect_refused(native, sampling_table(), "sampling_params.");
  EXPECT_EQ(refusal(completion, R"({"stop_token_ids":[3,1000]})"), "invalid_value|stop_token_ids[1]");
  EXPECT_EQ(refusal(completion, R"({"logit_bias":{"7":101}})"), "invalid_value|logit_bias.7");
  EXPECT_EQ(refusal(completion, R"({"repetition_penalty":1.5,"repeat_penalty":1.2})"), "invalid_value|repeat_penalty");
}

TEST(Parameters, WhatWouldSilentlyChangeTheAnswerIsRefused) {
  expect_refused(completion, {{"suffix", "\"end\"", "unsupported_value"},
                              {"best_of", "3", "unsupported_value"},
                              {"guided_grammar", "\"root ::= a\"", "unsupported_value"},
                              {"structural_tag", "{\"a\":1}", "unsupported_value"},
                              {"grammar", "\"root ::= a\"", "unsupported_value"},
                              {"use_beam_search", "true", "unsupported_value"},
                              {"experts", "4", "unsupported_value"},
                              {"lora_path", "\"a\"", "unsupported_value"}});
  EXPECT_EQ(refusal(completion, R"({"response_format":{"type":"structural_tag"}})"),
            "unsupported_value|response_format.type");
  EXPECT_EQ(refusal(completion, R"({"structured_outputs":{"whitespace_pattern":" "}})"),
            "unsupported_value|structured_outputs.whitespace_pattern");
  expect_refused(chat, {{"tools", list_of(129, "{}"), "too_many_items"},
                        {"functions", "[{}]", "unsupported_value"},
                        {"function_call", "\"auto\"", "unsupported_value"},
                        {"chat_template", "\"{{ messages }}\"", "unsupported_value"},
                        {"modalities", "[\"text\",\"audio\"]", "unsupported_value"},
                        {"web_search_options", "{}", "unsupported_value"},
                        {"echo", "true", "unsupported_value"}});
  EXPECT_EQ(refusal(chat, R"({"response_format":{"type":"json_schema","json_schema":{}}})"),
            "missing_field|response_format.json_schema.schema");
  expect_refused(messages,
                 {{"tools", list_of(129, "{}"), "too_many_items"}, {"mcp_servers", "[{}]", "unsupported_value"}});
  EXPECT_EQ(refusal(native, R"({"unheard_of":1})"), "unsupported_value|sampling_params");
}

TEST(Parameters, NeutralValuesOfWhatIsNotSupportedAreAccepted) {
  EXPECT_EQ(refusal(completion, R"({"suffix":null,"best_of":1,"use_beam_search":false,"typical_p":1.0,"grammar":"",
            "response_format":{"type":"text"},"user":"me","service_tier":"auto","unheard_of":{"x":1}})"),
            "");
  EXPECT_EQ(refusal(chat, R"({"tools":[],"tool_choice":"none","functions":null,"modalities":["text"],"store":false})"),
            "");
  EXPECT_EQ(refusal(messages, R"({"tools":[],"thinking":{"type":"disabled"},"metadata":{"user_id":"a"}})"), "");
}

TEST(Parameters, LogprobsHaveEachApisShapeAndLimit) {
  EXPECT_EQ(completion({}).logprobs, -1);
  EXPECT_EQ(completion({{"logprobs", 0}}).logprobs, 0);
  EXPECT_EQ(completion({{"logprobs", 5}}).request.logprobs, 5);
  EXPECT_FALSE(completion({{"logprobs", 5}}).request.prompt_logprobs);
  EXPECT_TRUE(completion({{"logprobs", 5}, {"echo", true}}).request.prompt_logprobs);
  EXPECT_EQ(completion({{"logprobs", 1}, {"prompt_logprobs", 3}}).request.logprobs, 3);
  EXPECT_EQ(refusal(completion, R"({"logprobs":21})"), "too_many_items|logprobs");
  EXPECT_EQ(refusal(completion, R"({"logprobs":-1})"), "invalid_value|logprobs");
  EXPECT_EQ(refusal(completion, R"({"logprobs":true})"), "invalid_value|logprobs");
  EXPECT_EQ(refusal(completion, R"({"prompt_logprobs":1,"stream":true})"), "unsupported_value|prompt_logprobs");
  EXPECT_EQ(chat({{"logprobs", true}}).logprobs, 0);
  EXPECT_EQ(chat({{"logprobs", true}, {"top_logprobs", 20}}).logprobs, 20);
  EXPECT_EQ(refusal(chat, R"({"logprobs":true,"top_logprobs":21})"), "too_many_items|top_logprobs");
  EXPECT_EQ(refusal(chat, R"({"top_logprobs":2})"), "invalid_value|top_logprobs");
  EXPECT_EQ(refusal(chat, R"({"logprobs":3})"), "invalid_value|logprobs");
}

TEST(Parameters, LengthsHaveEachApisNameAndDefault) {
  EXPECT_EQ(completion({}).request.max_tokens, 16);
  EXPECT_FALSE(completion({}).max_tokens_given);
  EXPECT_EQ(native({}).request.max_tokens, 128);
  EXPECT_EQ(native({{"max_new_tokens", 7}}).request.max_tokens, 7);
  EXPECT_EQ(chat({{"max_tokens", 3}, {"max_completion_tokens", 5}}).request.max_tokens, 5);
  EXPECT_TRUE(chat({{"max_tokens", 3}}).max_tokens_given);
  EXPECT_EQ(refusal(completion, R"({"max_tokens":0})"), "invalid_value|max_tokens");
  EXPECT_EQ(refusal(completion, R"({"max_tokens":-5})"), "invalid_value|max_tokens");
  EXPECT_EQ(refusal(completion, R"({"max_tokens":3000000000})"), "invalid_value|max_tokens");
  EXPECT_EQ(refusal(chat, R"({"max_completion_tokens":0})"), "invalid_value|max_completion_tokens");
  EXPECT_EQ(refusal(native, R"({"max_new_tokens":0})"), "invalid_value|sampling_params.max_new_tokens");
  EXPECT_EQ(refusal(completion, R"({"max_tokens":4,"min_tokens":5})"), "invalid_value|min_tokens");
  EXPECT_EQ(refusal([](const json::object& b) { return read_messages(b, model()); }, "{}"), "missing_field|max_tokens");
  const Generation scored = completion({{"max_tokens", 0}, {"echo", true}});
  EXPECT_EQ(scored.request.max_tokens, 0);
  EXPECT_TRUE(scored.request.prompt_logprobs);
  EXPECT_EQ(scored.logprobs, -1);
}

TEST(Parameters, OnlyDefaultsAreCutToWhatTheContextLeaves) {
  const RequestLimits limits{1000, 512, 256};
  const auto fitted = [&](int prompt, bool given, int max_tokens) {
    Request request;
    request.max_tokens = max_tokens;
    fit_max_tokens(prompt, limits, given, request);
    return request.max_tokens;
  };
  EXPECT_EQ(fitted(10, false, 16), 16);
  EXPECT_EQ(fitted(250, false, 16), 6);
  EXPECT_EQ(fitted(10, false, INT32_MAX), 246);
  EXPECT_EQ(fitted(400, false, 16), 1);
  EXPECT_EQ(fitted(10, true, 5000), 5000);
}

// Each score is about 100 bytes of an answer that is made whole in memory.
TEST(Parameters, LengthsStayWithinTheLimitOfLogProbabilities) {
  const RequestLimits limits{1000, 1 << 17, 1 << 17};
  constexpr size_t kMost = size_t{2} << 20;
  const auto lengths = [&](Generation g, const std::vector<size_t>& prompts) {
    Job job;
    job.generation = std::move(g);
    for (const size_t n : prompts) job.prompts.push_back({false, "", std::vector<int>(n, 1)});
    return fit_lengths(job, limits);
  };
  const auto refused = [&](const Generation& g, const std::vector<size_t>& prompts) {
    try {
      lengths(g, prompts);
    } catch (const ApiError& e) {
      return e.code() + "|" + e.param();
    }
    return std::string();
  };
  using Lengths = std::vector<int>;
  json::object asked{{"n", 8}, {"logprobs", true}, {"top_logprobs", 20}};
  EXPECT_EQ(lengths(chat({{"n", 8}}), {100}), Lengths{(1 << 17) - 100});
  EXPECT_EQ(lengths(chat({{"logprobs", true}}), {100}), Lengths{(1 << 17) - 100});
  EXPECT_EQ(lengths(chat(asked), {100}), Lengths{static_cast<int>(kMost / (8 * 21))}) << "would be 2 GB of JSON";
  asked["min_tokens"] = 12483;
  EXPECT_EQ(lengths(chat(asked), {100}), Lengths{12483});
  asked["min_tokens"] = 12484;
  EXPECT_EQ(refused(chat(asked), {100}), "too_many_items|logprobs");
  asked["min_tokens"] = 0;
  asked["max_tokens"] = 12483;
  EXPECT_EQ(lengths(chat(asked), {100}), Lengths{12483});
  asked["max_tokens"] = 12484;
  EXPECT_EQ(refused(chat(asked), {100}), "too_many_items|logprobs") << "what was asked for is not cut";
  // Scores of prompts are what they are: the default has what they leave.
  Generation scored = native({{"n", 4}});
  scored.request.logprobs = 20;
  const std::vector<size_t> prompts(256, 50);
  EXPECT_EQ(lengths(scored, prompts), Lengths(256, 97)) << "of 128";
  scored.request.prompt_logprobs = true;
  EXPECT_EQ(lengths(scored, prompts), Lengths(256, 47));
  EXPECT_EQ(refused(scored, std::vector<size_t>(256, 97)), "too_many_items|logprobs");
}

TEST(Parameters, TemperatureComesFromTheRequestThenTheModelThenTheApi) {
  EXPECT_FLOAT_EQ(completion({}).request.sampling.temperature, 1);
  EXPECT_FLOAT_EQ(messages({}).request.sampling.temperature, 1);
  const Generation own = read_chat({}, model(0.6f));
  EXPECT_FLOAT_EQ(own.request.sampling.temperature, 0.6f);
  EXPECT_EQ(own.request.sampling.top_k, 20);
  EXPECT_FLOAT_EQ(own.request.sampling.top_p, 0.9f);
  const Generation asked = read_chat({{"temperature", 0}, {"top_k", -1}, {"top_p", 1}}, model(0.6f));
  EXPECT_FLOAT_EQ(asked.request.sampling.temperature, 0);
  EXPECT_EQ(asked.request.sampling.top_k, 0);
  EXPECT_FLOAT_EQ(asked.request.sampling.top_p, 1);
  EXPECT_EQ(refusal(completion, R"({"temperature":1e-9})"), "") << "tiny temperatures are greedy, not errors";
}

TEST(Parameters, EveryFieldReachesTheEngine) {
  const Generation g = read_completion(
      read_body(R"({"model":"m","routing":"isolated","n":3,"seed":7,"stream":true,"min_p":0.1,"repeat_penalty":1.5,
                "presence_penalty":-1,"frequency_penalty":0.5,"logit_bias":{"3":-100,"4":2.5},"stop":["a","b"],
                "stop_token_ids":[5],"include_stop_str_in_output":true,"skip_special_tokens":false,"ignore_eos":true,
                "min_tokens":2,"cache_prompt":false,"return_token_ids":true,"return_tokens_as_token_ids":true,
                "add_special_tokens":false,"stream_options":{"include_usage":true,"continuous_usage_stats":true}})"),
      model());
  EXPECT_EQ(g.model, "m");
  EXPECT_EQ(g.routing.text, "isolated");
  EXPECT_EQ(g.n, 3);
  EXPECT_TRUE(g.stream && g.include_usage && g.continuous_usage && g.return_token_ids && g.tokens_as_ids);
  EXPECT_FALSE(g.add_special_tokens);
  const Request& r = g.request;
  EXPECT_EQ(r.sampling.seed, 7u);
  EXPECT_FLOAT_EQ(r.sampling.min_p, 0.1f);
  EXPECT_FLOAT_EQ(r.sampling.repetition_penalty, 1.5f);
  EXPECT_FLOAT_EQ(r.sampling.presence_penalty, -1);
  EXPECT_FLOAT_EQ(r.sampling.frequency_penalty, 0.5f);
  EXPECT_EQ(r.sampling.logit_bias, (std::vector<std::pair<int, float>>{{3, -100}, {4, 2.5f}}));
  EXPECT_EQ(r.stop_strings, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(r.stop_ids, std::vector<int>{5});
  EXPECT_TRUE(r.include_stop && r.ignore_eos);
  EXPECT_FALSE(r.skip_special || r.cache_prefix);
  EXPECT_EQ(r.min_tokens, 2);
  EXPECT_EQ(messages({{"stop_sequences", {"x"}}}).request.stop_strings, std::vector<std::string>{"x"});
  EXPECT_EQ(native({{"sampling_seed", 9}, {"no_stop_trim", true}}).request.sampling.seed, 9u);
  EXPECT_TRUE(native({{"no_stop_trim", true}}).request.include_stop);
}

TEST(Parameters, SeedsAreFreshWhenNoneIsGiven) {
  EXPECT_NE(completion({}).request.sampling.seed, completion({}).request.sampling.seed);
  EXPECT_FALSE(completion({{"seed", -1}}).seed_given);
  EXPECT_EQ(read_completion(read_body(R"({"seed":18446744073709551615})"), model()).request.sampling.seed, UINT64_MAX);
  EXPECT_EQ(completion({{"seed", -2}}).request.sampling.seed, UINT64_MAX - 1);
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

TEST(Parameters, ValuesOfWrongTypesAreNeverMoreThanTheClientsMistake) {
  const std::vector<std::string> names = words(
      "model routing stream stream_options n best_of seed temperature top_p top_k min_p repetition_penalty "
      "repeat_penalty presence_penalty frequency_penalty logit_bias stop stop_sequences stop_token_ids no_stop_trim "
      "include_stop_str_in_output skip_special_tokens ignore_eos max_tokens max_completion_tokens max_new_tokens "
      "min_tokens min_new_tokens logprobs top_logprobs prompt_logprobs echo suffix tools tool_choice functions "
      "response_format json_schema regex choice guided_json guided_regex guided_choice structured_outputs "
      "output_format output_config modalities thinking cache_prompt cache_salt return_token_ids user grammar experts");
  const std::vector<std::string> values = words(
      "null true 0 -1 -0.0 1e308 -9223372036854775808 18446744073709551615 \"\" \"x\" [] {} [null] [[]] [{}] [1e300] "
      "{\"a\":1} {\"type\":1} {\"type\":{}} {\"1\":[]} [\"\"]");
  const Reader readers[] = {completion, chat, native, messages};
  int accepted = 0;
  for (const std::string& field : names) {
    for (const std::string& value : values) {
      const json::object body = read_body("{\"" + field + "\":" + value + "}");
      for (const Reader& read : readers) {
        try {
          const Generation g = read(body);
          check(g.request.sampling, 1000);
          ++accepted;
        } catch (const ApiError& e) {
          EXPECT_EQ(e.status(), 400) << field << " " << value;
          EXPECT_FALSE(e.param().empty()) << field << " " << value;
        }
      }
    }
  }
  EXPECT_GT(accepted, 100);
}

TEST(Parameters, SaltedPrefixesAreNotShared) {
  EXPECT_TRUE(completion({}).request.cache_prefix);
  EXPECT_FALSE(completion({{"cache_salt", "s"}}).request.cache_prefix);
}

}  // namespace
}  // namespace carpool
