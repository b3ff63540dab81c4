// Structured output over a real socket: every spelling of the wish, whole and streamed, what is refused with which
// path, and that the embedded model, which knows nothing of JSON, writes what the schema accepts.
#include <gtest/gtest.h>

#include <cmath>
#include <ctime>

#include "grammar/schema_oracle_test_util.h"
#include "server/constraint_cache.h"
#include "server/live_server_test_util.h"

namespace carpool {
namespace {

const char* const kSchema = R"({"type":"object","properties":{"name":{"type":"string","maxLength":12},
    "age":{"type":"integer","minimum":0,"maximum":120},"tags":{"type":"array","items":{"enum":["sea","ship"]},"maxItems":3},
    "more":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/pair"}]}},"required":["name","age"],"additionalProperties":false,
    "$defs":{"pair":{"type":"array","prefixItems":[{"type":"boolean"},{"type":"number","minimum":0,"maximum":1}],
    "items":false,"minItems":2}}})";

class StructureServer : public testing::Test {
 protected:
  static void SetUpTestSuite() { server = new LiveServer(LiveServer::books()); }
  static void TearDownTestSuite() {
    delete server;
    server = nullptr;
  }

  static json::object completion(json::object more) {
    json::object body{{"prompt", "The old lighthouse keeper"},
                      {"max_tokens", 300},
                      {"temperature", 1},
                      {"seed", 3},
                      {"routing", "isolated"}};
    for (const auto& entry : more) body[entry.key()] = entry.value();
    return body;
  }
  static std::string text_of(const json::value& answer) {
    return std::string(answer.at("choices").at(0).at("text").as_string());
  }
  // "status code|param" of a refusal, "" of an answer.
  static std::string refusal(const std::string& path, const json::value& body) {
    const RawResponse response = server->post(path, json::serialize(body));
    if (response.status == 200) return "";
    const json::value error = json::parse(response.body).at("error");
    return std::to_string(response.status) + " " + std::string(error.at("code").as_string()) + "|" +
           (error.at("param").is_string() ? std::string(error.at("param").as_string()) : "");
  }
  static LiveServer* server;
};
LiveServer* StructureServer::server = nullptr;

TEST_F(StructureServer, ARandomTextModelWritesWhatTheSchemaAccepts) {
  const json::value schema = json::parse(kSchema);
  const json::object format{{"type", "json_schema"}, {"json_schema", json::object{{"name", "n"}, {"schema", schema}}}};
  for (int seed = 0; seed < 12; ++seed) {
    const json::value answer = server->ask(
        "/v1/completions",
        completion({{"seed", seed}, {"temperature", 0.5 + seed * 0.2}, {"n", 2}, {"response_format", format}}));
    for (const json::value& choice : answer.at("choices").as_array()) {
      const std::string text(choice.at("text").as_string());
      ASSERT_EQ(choice.at("finish_reason"), "stop") << text;
      const json::value value = parse_json(text, "the answer");
      EXPECT_TRUE(oracle_accepts(schema, value, schema)) << text;
    }
  }
}

TEST_F(StructureServer, EverySpellingOfTheWishGivesTheSameText) {
  const json::value schema = json::parse(kSchema);
  const std::string expected = text_of(server->ask("/v1/completions", completion({{"json_schema", schema}})));
  const json::object named{{"name", "n"}, {"strict", true}, {"schema", schema}};
  for (const json::object& wish :
       {json::object{{"response_format", json::object{{"type", "json_schema"}, {"json_schema", named}}}},
        json::object{{"response_format", json::object{{"type", "json_schema"}, {"schema", schema}}}},
        json::object{{"response_format", json::object{{"type", "json_object"}, {"schema", schema}}}},
        json::object{{"json_schema", json::serialize(schema)}}, json::object{{"guided_json", schema}},
        json::object{{"guided_json", json::serialize(schema)}},
        json::object{{"structured_outputs", json::object{{"json", schema}}}}}) {
    EXPECT_EQ(text_of(server->ask("/v1/completions", completion(wish))), expected) << json::serialize(wish);
  }
  const json::value native =
      server->ask("/generate", json::object{{"text", "The old lighthouse keeper"},
                                            {"routing", "isolated"},
                                            {"sampling_params", json::object{{"json_schema", json::serialize(schema)},
                                                                             {"temperature", 1},
                                                                             {"sampling_seed", 3},
                                                                             {"max_new_tokens", 300}}}});
  EXPECT_EQ(std::string(native.at("text").as_string()), expected);
  EXPECT_EQ(native.at("meta_info").at("finish_reason").at("type"), "stop");
}

TEST_F(StructureServer, ChoicesExpressionsAndObjects) {
  for (const char* field : {"choice", "guided_choice"}) {
    const std::string text =
        text_of(server->ask("/v1/completions", completion({{field, json::array{"north", "south"}}})));
    EXPECT_TRUE(text == "north" || text == "south") << text;
  }
  const json::object nested{{"choice", json::array{"east"}}};
  EXPECT_EQ(text_of(server->ask("/v1/completions", completion({{"structured_outputs", nested}}))), "east");
  for (const char* field : {"regex", "guided_regex"}) {
    const std::string text = text_of(server->ask("/v1/completions", completion({{field, "[A-Z][a-z]{2,8}, \\d{4}"}})));
    EXPECT_TRUE(std::regex_match(text, std::regex("[A-Z][a-z]{2,8}, \\d{4}"))) << text;
  }
  // The model may go on in a string for as long as it likes, so an object is only known to begin well.
  const json::value chat =
      server->ask("/v1/chat/completions",
                  json::object{{"messages", json::array{json::object{{"role", "user"}, {"content", "An object?"}}}},
                               {"max_tokens", 60},
                               {"seed", 1},
                               {"response_format", json::object{{"type", "json_object"}}}});
  const json::value& choice = chat.at("choices").at(0);
  const std::string text(choice.at("message").at("content").as_string());
  EXPECT_TRUE(text.starts_with("{")) << text;
  if (choice.at("finish_reason") == "stop") {
    EXPECT_TRUE(json::parse(text).is_object()) << text;
  }
  const json::value message = server->ask(
      "/v1/messages",
      json::object{{"messages", json::array{json::object{{"role", "user"}, {"content", "Say."}}}},
                   {"max_tokens", 60},
                   {"output_format",
                    json::object{{"type", "json_schema"}, {"schema", json::object{{"enum", json::array{1, "a"}}}}}}});
  const std::string said(message.at("content").at(0).at("text").as_string());
  EXPECT_TRUE(said == "1" || said == "\"a\"") << said;
  EXPECT_EQ(message.at("stop_reason"), "end_turn");
}

TEST_F(StructureServer, AStreamSaysWhatTheWholeSays) {
  const json::object wish{{"json_schema", json::parse(kSchema)}};
  const std::string whole = text_of(server->ask("/v1/completions", completion(wish)));
  json::object streamed = completion(wish);
  streamed["stream"] = true;
  std::string text;
  json::value finish;
  for (const RawEvent& event : server->stream("/v1/completions", streamed)) {
    if (event.data == "[DONE]") continue;
    const json::value chunk = json::parse(event.data);
    const json::value& choice = chunk.at("choices").at(0);
    text += choice.at("text").as_string().c_str();
    if (!choice.at("finish_reason").is_null()) finish = choice.at("finish_reason");
  }
  EXPECT_EQ(text, whole);
  EXPECT_EQ(finish, "stop");
}

TEST_F(StructureServer, LogprobsStayThoseOfTheModel) {
  const json::value forced =
      server->ask("/v1/completions", completion({{"choice", json::array{"Zz"}}, {"logprobs", 2}}));
  const json::value& scores = forced.at("choices").at(0).at("logprobs");
  EXPECT_LT(scores.at("token_logprobs").at(0).to_number<double>(), -0.5) << "forced, and the model did not expect it";
  double mass = 0;
  for (const auto& entry : scores.at("top_logprobs").at(0).as_object())
    mass += std::exp(entry.value().to_number<double>());
  EXPECT_LE(mass, 1.0001);
}

TEST_F(StructureServer, WhatCannotBeIsRefusedWithItsPath) {
  const auto schema_of = [](const char* text) {
    return json::object{{"type", "json_schema"}, {"json_schema", json::object{{"schema", json::parse(text)}}}};
  };
  const std::tuple<json::object, std::string> table[] = {
      {{{"response_format", schema_of(R"({"properties":{"a":{"type":"strin"}}})")}},
       "400 invalid_value|response_format.json_schema.schema.properties.a.type"},
      {{{"response_format", schema_of(R"({"not":{}})")}},
       "400 unsupported_value|response_format.json_schema.schema.not"},
      {{{"response_format", schema_of(R"({"$ref":"#"})")}}, "400 invalid_value|response_format.json_schema.schema"},
      {{{"response_format", json::object{{"type", "json_schema"}}}}, "400 missing_field|response_format.json_schema"},
      {{{"response_format", json::object{{"type", "xml"}}}}, "400 unsupported_value|response_format.type"},
      {{{"json_schema", "{"}}, "400 invalid_value|json_schema"},
      {{{"json_schema", 5}}, "400 invalid_value|json_schema"},
      {{{"regex", "(a"}}, "400 invalid_value|regex"},
      {{{"regex", "(?=a)"}}, "400 unsupported_value|regex"},
      {{{"guided_choice", json::array{1}}}, "400 invalid_value|guided_choice"},
      {{{"guided_regex", "a"}, {"guided_json", json::object{}}}, "400 invalid_value|guided_regex"},
      {{{"structured_outputs", json::object{{"grammar", "a"}}}}, "400 unsupported_value|structured_outputs.grammar"},
      {{{"ebnf", "root ::= a"}}, "400 unsupported_value|ebnf"},
  };
  for (const auto& [wish, expected] : table) {
    EXPECT_EQ(refusal("/v1/completions", completion(wish)), expected) << json::serialize(wish);
  }
  EXPECT_EQ(refusal("/generate", json::object{{"text", "a"}, {"sampling_params", json::object{{"regex", "["}}}}),
            "400 invalid_value|sampling_params.regex");
  EXPECT_EQ(refusal("/generate", json::object{{"text", "a"}, {"regex", "a"}}), "400 unsupported_value|regex")
      << "its place is sampling_params";
}

// Of this process, server and client, which others on the machine do not lengthen.
double cpu_seconds() {
  timespec t{};
  EXPECT_EQ(::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t), 0);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// X6: what is invalid, deep or exponential is the client's mistake, and the next request finds a server as before.
TEST_F(StructureServer, HostileWishesAreRefusedAndTheServerGoesOn) {
#ifdef CARPOOL_SANITIZED
  constexpr double kMost = 120;
#else
  constexpr double kMost = 20;  // seconds
#endif
  std::string deep(60000, '(');
  json::array many;
  for (int i = 0; i < 50000; ++i) many.emplace_back(i);
  for (const json::object& wish :
       {json::object{{"regex", deep}}, json::object{{"regex", "((((a{99}){99}){99}){99})"}},
        json::object{{"regex", "((a{0,250}){0,250}b?)*"}}, json::object{{"json_schema", json::object{{"enum", many}}}},
        json::object{{"json_schema", json::object{{"minLength", 1000000}}}},
        json::object{{"json_schema", json::parse(R"({"type":"array","minItems":1,"items":{"$ref":"#"}})")}}}) {
    const double start = cpu_seconds();
    EXPECT_EQ(refusal("/v1/completions", completion(wish)).substr(0, 4), "400 ") << json::serialize(wish).substr(0, 80);
    EXPECT_LT(cpu_seconds() - start, kMost);
  }
  EXPECT_EQ(text_of(server->ask("/v1/completions", completion({{"choice", json::array{"yes"}}}))), "yes");
}

TEST(ConstraintCache, EqualWishesShareAndTheLeastUsedGoes) {
  const Tokenizer tokenizer = make_dummy_tokenizer(300);
  ModelConfig config;
  config.vocab = 300;
  config.eos_ids = {kDummyEndToken};
  const auto wish = [](const std::string& regex) {
    StructureSpec spec;
    spec.kind = StructureSpec::Kind::kRegex;
    spec.path = "regex";
    spec.regex = regex;
    return spec;
  };
  ConstraintCache cache(tokenizer, config);
  const auto first = cache.get(wish("a+"));
  EXPECT_EQ(cache.get(wish("a+")), first);
  EXPECT_NE(cache.get(wish("b+")), first);
  EXPECT_EQ(cache.size(), 2u);
  ConstraintCache small(tokenizer, config, 1);
  EXPECT_NE(small.get(wish("a+")), small.get(wish("b+")));
  EXPECT_EQ(small.size(), 1u);
  EXPECT_THROW(cache.get(wish("(")), ApiError);
  EXPECT_EQ(cache.size(), 2u);
}

// Each of many requests that wait holds its own grammar.
TEST(ConstraintCache, WhatRequestsHoldIsCountedAndBeyondTheBudgetRefused) {
  const Tokenizer tokenizer = make_dummy_tokenizer(300);
  ModelConfig config;
  config.vocab = 300;
  config.eos_ids = {kDummyEndToken};
  const auto wish = [](int i) {
    StructureSpec spec;
    spec.kind = StructureSpec::Kind::kRegex;
    spec.path = "regex";
    spec.regex = std::to_string(i) + std::string(2000, '.');
    return spec;
  };
  constexpr size_t kBudget = size_t{1} << 20;
  ConstraintCache cache(tokenizer, config, kBudget, kBudget);
  std::vector<std::shared_ptr<Constraint>> held;
  std::string refusal;
  for (int i = 0; i < 4096 && refusal.empty(); ++i) {
    try {
      held.push_back(cache.get(wish(i)));
    } catch (const ApiError& error) {
      refusal = std::to_string(error.status()) + " " + error.code();
      EXPECT_GT(error.retry_after(), 0);
    }
    ASSERT_LE(cache.live_bytes(), kBudget);
  }
  EXPECT_EQ(refusal, "503 overloaded");
  EXPECT_GT(held.size(), 10u) << "a dot is not a class of its own each time";
  EXPECT_EQ(cache.get(wish(0)), held[0]) << "what lives is shared all the same";
  held.clear();
  EXPECT_NE(cache.get(wish(5000)), nullptr) << "there is room again";
}

}  // namespace
}  // namespace carpool
