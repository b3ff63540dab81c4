// The generating endpoints over a real socket: the embedded model for texts and scores, the canary for mixed-up
// requests.
#include <gtest/gtest.h>

#include <cmath>
#include <thread>
#include <tuple>

#include "server/live_server_test_util.h"

namespace carpool {
namespace {

// What the canary says after `prompt`, a text of bytes.
std::string canary_text(const std::string& prompt, int n) {
  const std::vector<int> ids(prompt.begin(), prompt.end());
  std::string text;
  for (const int id : CanaryModel::expected(ids, n)) text += static_cast<char>(id);
  return text;
}

json::value data_of(const RawEvent& event) { return json::parse(event.data); }

class BooksServer : public testing::Test {
 protected:
  static void SetUpTestSuite() { server = new LiveServer(LiveServer::books(), {}, engine_options()); }
  static void TearDownTestSuite() {
    delete server;
    server = nullptr;
  }
  static EngineOptions engine_options() {
    EngineOptions options;
    options.prefix_cache = true;
    return options;
  }
  static LiveServer* server;
};
LiveServer* BooksServer::server = nullptr;

TEST_F(BooksServer, AnswersLmEvalsRequestsExactly) {
  const auto ids = [](const std::string& text) { return server->tokenizer().encode(text, false, false); };
  const std::vector<std::vector<int>> documents = {ids("It was the best of times"), ids("She said nothing."),
                                                   ids("Call me Ishmael, some years ago")};
  json::object body{{"max_tokens", 1}, {"logprobs", 1}, {"echo", true}, {"temperature", 0}, {"seed", 1234}};
  json::array list;
  for (const auto& d : documents) list.push_back(json::array(d.begin(), d.end()));
  body["prompt"] = list;
  const json::value together = server->ask("/v1/completions", body);
  const json::array& choices = together.at("choices").as_array();
  ASSERT_EQ(choices.size(), documents.size());
  for (size_t i = 0; i < documents.size(); ++i) {
    EXPECT_EQ(choices[i].at("index"), static_cast<int64_t>(i));
    const json::value& logprobs = choices[i].at("logprobs");
    const json::array& scores = logprobs.at("token_logprobs").as_array();
    const json::array& top = logprobs.at("top_logprobs").as_array();
    ASSERT_EQ(scores.size(), documents[i].size() + 1);
    ASSERT_EQ(top.size(), scores.size());
    EXPECT_TRUE(scores[0].is_null());
    EXPECT_TRUE(top[0].is_null());
    for (size_t t = 1; t < scores.size(); ++t) {
      double best = -1e9;
      for (const auto& entry : top[t].as_object()) best = std::max(best, entry.value().to_number<double>());
      EXPECT_GE(best, scores[t].to_number<double>());
      EXPECT_LE(best, 0);
    }
    // The generated token is greedy, so its score is the best: the comparison lm-eval makes.
    EXPECT_EQ(top.back().as_object().at(logprobs.at("tokens").as_array().back().as_string()), scores.back());
    json::object one = body;
    one["prompt"] = json::array(documents[i].begin(), documents[i].end());
    EXPECT_EQ(server->ask("/v1/completions", one).at("choices").at(0).at("logprobs"), logprobs) << "alone";
  }
}

TEST_F(BooksServer, AStreamSaysWhatTheWholeSays) {
  const json::object base{{"max_tokens", 24}, {"temperature", 0.8}, {"seed", 5}, {"routing", "isolated"}};
  const auto with = [&](json::object more) {
    json::object body = base;
    for (const auto& entry : more) body[entry.key()] = entry.value();
    return body;
  };
  const json::array messages{json::object{{"role", "user"}, {"content", "Tell me of the sea."}}};
  std::string text;
  const json::object completion = with({{"prompt", "The sea"}, {"logprobs", 2}});
  const json::value whole = server->ask("/v1/completions", completion);
  json::object streaming = completion;
  streaming["stream"] = true;
  streaming["stream_options"] = json::object{{"include_usage", true}};
  std::vector<RawEvent> events = server->stream("/v1/completions", streaming);
  EXPECT_EQ(events.back().data, "[DONE]");
  json::array tokens;
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    const json::value choice = data_of(events[i]).at("choices").at(0);
    text += std::string(choice.at("text").as_string());
    for (const json::value& t : choice.at("logprobs").at("token_logprobs").as_array()) tokens.push_back(t);
  }
  EXPECT_EQ(text, whole.at("choices").at(0).at("text").as_string());
  EXPECT_EQ(tokens, whole.at("choices").at(0).at("logprobs").at("token_logprobs").as_array());
  EXPECT_EQ(data_of(events[events.size() - 2]).at("usage").at("completion_tokens"),
            whole.at("usage").at("completion_tokens"));

  json::object chat = with({{"messages", messages}});
  const json::value chat_whole = server->ask("/v1/chat/completions", chat);
  chat["stream"] = true;
  events = server->stream("/v1/chat/completions", chat);
  text.clear();
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const json::object delta = data_of(events[i]).at("choices").at(0).at("delta").as_object();
    if (delta.contains("content")) text += std::string(delta.at("content").as_string());
  }
  EXPECT_EQ(text, chat_whole.at("choices").at(0).at("message").at("content").as_string());
  EXPECT_EQ(data_of(events[events.size() - 2]).at("carpool").at("scope"), "isolated");

  json::object anthropic = with({{"messages", messages}});
  const json::value message = server->ask("/v1/messages", anthropic);
  anthropic["stream"] = true;
  text.clear();
  for (const RawEvent& event : server->stream("/v1/messages", anthropic)) {
    if (event.name == "content_block_delta") text += std::string(data_of(event).at("delta").at("text").as_string());
  }
  EXPECT_EQ(text, message.at("content").at(0).at("text").as_string());
  EXPECT_EQ(text, chat_whole.at("choices").at(0).at("message").at("content").as_string()) << "the same chat and seed";

  json::object native{{"text", "The sea"},
                      {"routing", "isolated"},
                      {"sampling_params", json::object{{"max_new_tokens", 24}, {"temperature", 0.8}, {"seed", 5}}}};
  const json::value generated = server->ask("/generate", native);
  EXPECT_EQ(generated.at("text"), whole.at("choices").at(0).at("text")) << "the same prompt and seed";
  native["stream"] = true;
  events = server->stream("/generate", native);
  EXPECT_EQ(data_of(events[events.size() - 2]).at("text"), generated.at("text"));
}

TEST_F(BooksServer, ChoiceIUsesSeedPlusI) {
  json::object body{{"prompt", "Once"}, {"max_tokens", 12}, {"temperature", 1},
                    {"seed", 40},       {"n", 3},           {"routing", "isolated"}};
  const json::value three = server->ask("/v1/completions", body);
  body.erase("n");
  for (size_t i = 0; i < 3; ++i) {
    body["seed"] = 40 + static_cast<int64_t>(i);
    EXPECT_EQ(server->ask("/v1/completions", body).at("choices").at(0).at("text"),
              three.at("choices").at(i).at("text"));
  }
  EXPECT_EQ(three.at("usage").at("prompt_tokens"), server->ask("/tokenize", {{"prompt", "Once"}}).at("count"));
}

TEST_F(BooksServer, PromptsOfAListHaveSamplingsOfTheirOwnUnlessASeedIsGiven) {
  json::object body{{"prompt", json::array{"Once", "Once", "Once"}},
                    {"max_tokens", 40},
                    {"temperature", 1},
                    {"ignore_eos", true},
                    {"n", 2},
                    {"routing", "isolated"}};
  const auto texts = [&] {
    std::vector<std::string> out;
    const json::value answer = server->ask("/v1/completions", body);
    for (const json::value& c : answer.at("choices").as_array()) out.emplace_back(c.at("text").as_string());
    return out;
  };
  const std::vector<std::string> fresh = texts();
  EXPECT_EQ(std::set<std::string>(fresh.begin(), fresh.end()).size(), 6u);
  body["seed"] = 9;
  const std::vector<std::string> seeded = texts();
  EXPECT_NE(seeded[0], seeded[1]);
  for (size_t i = 2; i < 6; ++i) EXPECT_EQ(seeded[i], seeded[i - 2]) << "a prompt gets what it would get alone";
}

TEST_F(BooksServer, WithoutASeedAnswersDiffer) {
  const json::object body{{"prompt", "Once"}, {"max_tokens", 40}, {"temperature", 1}, {"ignore_eos", true}};
  EXPECT_NE(server->ask("/v1/completions", body).at("choices").at(0).at("text"),
            server->ask("/v1/completions", body).at("choices").at(0).at("text"));
}

TEST_F(BooksServer, SaysHowItRoutedAndWhatCameFromTheCache) {
  const std::string prompt =
      "It was a bright cold day in April, and the clocks were striking thirteen, and nobody in the house had slept "
      "since the letter came, for it said that the ship was lost with all her men.";
  const json::object body{{"prompt", prompt}, {"max_tokens", 4}};
  server->ask("/v1/completions", body);
  const RawResponse response = server->post("/v1/completions", json::serialize(body));
  const json::value again = json::parse(response.body);
  EXPECT_EQ(response.header("x-carpool-routing"), "oea:k0=2; scope=tenant");
  EXPECT_EQ(again.at("carpool").at("routing"), "oea:k0=2");
  EXPECT_GT(again.at("usage").at("prompt_tokens_details").at("cached_tokens").as_int64(), 0);
  const RawResponse plain = server->post(
      "/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}],"max_tokens":2,"routing":"topk"})");
  EXPECT_EQ(plain.header("x-carpool-routing"), "topk");
  EXPECT_EQ(server->post("/v1/completions", R"({"prompt":"a","routing":"oea:k0=1"})").status, 400);
}

TEST_F(BooksServer, TokensAreCountedAlikeEverywhere) {
  const json::array messages{json::object{{"role", "user"}, {"content", "How many tokens, <|end|>?"}}};
  const json::value count = server->ask("/v1/messages/count_tokens", {{"messages", messages}}).at("input_tokens");
  EXPECT_EQ(server->ask("/tokenize", {{"messages", messages}}).at("count"), count);
  EXPECT_EQ(server->ask("/v1/messages", {{"messages", messages}, {"max_tokens", 1}}).at("usage").at("input_tokens"),
            count);
  EXPECT_EQ(
      server->ask("/v1/chat/completions", {{"messages", messages}, {"max_tokens", 1}}).at("usage").at("prompt_tokens"),
      count);
  EXPECT_EQ(server->ask("/apply-template", {{"messages", messages}}).at("prompt"),
            "<|user|>\nHow many tokens, <|end|>?<|end|>\n<|assistant|>\n");
}

TEST_F(BooksServer, TokenizesAndBack) {
  const json::value encoded = server->ask("/tokenize", {{"prompt", "na\xc3\xafve"}, {"return_token_strs", true}});
  EXPECT_EQ(encoded.at("tokens").as_array().size(), static_cast<size_t>(encoded.at("count").as_int64()));
  EXPECT_EQ(encoded.at("token_strs").as_array().size(), encoded.at("tokens").as_array().size());
  EXPECT_EQ(encoded.at("max_model_len"), server->get("/v1/models").at("data").at(0).at("max_model_len"));
  EXPECT_EQ(server->ask("/detokenize", {{"tokens", encoded.at("tokens")}}).at("prompt"), "na\xc3\xafve");
  const json::value info = server->get("/tokenizer_info");
  EXPECT_EQ(info.at("eos_token"), "<|endoftext|>");
  EXPECT_TRUE(info.at("chat_template").is_string());
  EXPECT_EQ(server->ask("/tokenize", {{"prompt", info.at("eos_token")}}).at("tokens"), json::array{0})
      << "lm-eval asks so for the id of the end token";
  EXPECT_GT(
      server->ask("/tokenize", {{"prompt", info.at("eos_token")}, {"parse_special", false}}).at("count").as_int64(), 1);
}

TEST_F(BooksServer, DetokenizesNoMoreThanAnAnswerHolds) {
  int longest = 0;
  size_t bytes = 0;
  for (int id = 0; id < server->tokenizer().vocab_size(); ++id) {
    const size_t n = server->tokenizer().token_bytes(id).size();
    if (n > bytes && !server->tokenizer().is_special(id)) std::tie(longest, bytes) = std::tuple(id, n);
  }
  const size_t fit = (size_t{16} << 20) / 2 / bytes;
  ASSERT_LT(fit, size_t{1} << 20) << "or the number of ids is refused";
  const auto body = [&](size_t n) {
    const json::array ids(n, longest);
    return json::serialize(json::object{{"tokens", ids}});
  };
  const RawResponse much = server->post("/detokenize", body(fit - 100));
  ASSERT_EQ(much.status, 200) << much.body.substr(0, 200);
  EXPECT_EQ(json::parse(much.body).at("text").as_string().size(), (fit - 100) * bytes);
  const RawResponse more = server->post("/detokenize", body(fit + 1));
  EXPECT_EQ(more.status, 400);
  EXPECT_EQ(json::parse(more.body).at("error").at("code"), "too_many_items");
}

TEST_F(BooksServer, BadRequestsAreTheClientsMistakeInOneShape) {
  const std::string chat = R"({"messages":[{"role":"user","content":"a"}],)";
  const std::tuple<const char*, std::string, int, const char*> table[] = {
      {"/v1/completions", "{", 400, "invalid_json"},
      {"/v1/completions", "{\"prompt\":\"\xff\"}", 400, "invalid_unicode"},
      {"/v1/completions", std::string(5000, '['), 400, "json_too_deep"},
      {"/v1/completions", "{}", 400, "missing_field"},
      {"/v1/completions", R"({"prompt":""})", 400, "invalid_value"},
      {"/v1/completions", R"({"prompt":[]})", 400, "invalid_value"},
      {"/v1/completions", R"({"prompt":[99999999]})", 400, "invalid_value"},
      {"/v1/completions", R"({"prompt":["a",1]})", 400, "invalid_value"},
      {"/v1/completions", R"({"prompt":"a","max_tokens":100000})", 400, "context_length_exceeded"},
      {"/v1/completions", R"({"prompt":")" + std::string(1'000'000, 'A') + "\"}", 400, "context_length_exceeded"},
      {"/v1/completions", R"({"prompt":"a","model":"gpt-4"})", 404, "model_not_found"},
      {"/v1/chat/completions", chat + R"("tools":[{"type":"function"}]})", 400, "missing_field"},
      {"/v1/chat/completions", chat + R"("tools":[{"type":"function","function":{"name":"f"}}]})", 400,
       "unsupported_value"},
      {"/v1/chat/completions", chat + R"("n":9})", 400, "too_many_items"},
      {"/v1/messages", chat + R"("stream":true})", 400, "missing_field"},
      {"/generate", R"({"text":"a","input_ids":[1]})", 400, "invalid_value"},
      {"/generate", R"({"text":"a","sampling_params":{"ebnf":"root ::= a"}})", 400, "unsupported_value"},
      {"/tokenize", R"({"prompt":7})", 400, "invalid_value"},
      {"/detokenize", R"({"tokens":[-1]})", 400, "invalid_value"}};
  for (const auto& [path, body, status, code] : table) {
    const RawResponse response = server->post(path, body);
    EXPECT_EQ(response.status, status) << path << " " << body.substr(0, 60) << " " << response.body;
    EXPECT_EQ(response.header("content-type"), "application/json");
    EXPECT_TRUE(response.has("x-request-id"));
    const json::value object = json::parse(response.body);
    EXPECT_EQ(object.at("error").at("code"), code) << response.body;
    EXPECT_EQ(object.as_object().contains("type"), std::string(path) == "/v1/messages");
  }
  std::string prompts = "[";
  for (int i = 0; i < 257; ++i) prompts += i ? ",\"a\"" : "\"a\"";
  const RawResponse many = server->post("/v1/completions", "{\"prompt\":" + prompts + "]}");
  EXPECT_EQ(json::parse(many.body).at("error").at("code"), "too_many_items");
  const std::string two_hundred = prompts.substr(0, 200 * 4) + "]";
  const RawResponse product = server->post("/v1/completions", "{\"n\":8,\"prompt\":" + two_hundred + "}");
  EXPECT_EQ(json::parse(product.body).at("error").at("param"), "n") << product.body;
}

TEST(CanaryServer, ManyPromptsAndChoicesEachGetTheirOwnText) {
  LiveServer server(LiveServer::canary());
  json::array prompts;
  for (int i = 0; i < 20; ++i) prompts.push_back(json::value("prompt " + std::to_string(i)));
  json::object body{{"prompt", prompts}, {"n", 3}, {"max_tokens", 30}, {"temperature", 0}};
  const json::value whole = server.ask("/v1/completions", body);
  body["stream"] = true;
  std::vector<std::string> streamed(60);
  for (const RawEvent& event : server.stream("/v1/completions", body)) {
    if (event.data == "[DONE]") continue;
    const json::value choice = data_of(event).at("choices").at(0);
    streamed[static_cast<size_t>(choice.at("index").as_int64())] += std::string(choice.at("text").as_string());
  }
  for (size_t i = 0; i < 60; ++i) {
    const std::string expected = canary_text("prompt " + std::to_string(i / 3), 30);
    EXPECT_EQ(whole.at("choices").at(i).at("text"), json::value(expected));
    EXPECT_EQ(streamed[i], expected);
  }
}

TEST(CanaryServer, RequestsOfClientsThatLeaveAreCancelled) {
  auto gated = std::make_unique<GatedModel>();
  GatedModel& gate = *gated;
  LiveServer server(LiveServer::canary(std::move(gated)));
  const std::string tail = R"("max_tokens":3000,"temperature":0)";
  const auto idle = [&server] {
    const LoopState state = server.service().served().loop->state();
    return state.running + state.waiting == 0;
  };
  for (const bool stream : {true, false}) {
    for (const bool several : {true, false}) {
      gate.close();  // or they have ended before their client leaves
      RawClient client(server.port(), LiveServer::kPatience);
      client.send(request_text("POST", "/v1/completions",
                               std::string("{\"prompt\":\"leaver\",") + (stream ? "\"stream\":true," : "") +
                                   (several ? "\"n\":3," : "") + tail + "}"));
      gate.wait_held();
      if (stream) {
        gate.pass();
        client.read_head();
        client.read_event();
      }
      client.close_abruptly();
      // With these pauses 3000 steps last for 30 seconds; who is idle before has not made them.
      int steps = 0;
      while (!idle() && ++steps < 2500) {
        gate.pass();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      EXPECT_TRUE(idle()) << "nobody waits for it, and it goes on";
      gate.open();
      server.wait_idle();
    }
  }
  EXPECT_EQ(server.ask("/v1/completions", {{"prompt", "after"}, {"max_tokens", 8}, {"temperature", 0}})
                .at("choices")
                .at(0)
                .at("text"),
            json::value(canary_text("after", 8)));
}

TEST(CanaryServer, AbortedStreamsSaySo) {
  auto gated = std::make_unique<GatedModel>();
  GatedModel& gate = *gated;
  LiveServer server(LiveServer::canary(std::move(gated)));
  gate.close();  // or it has ended before the abort
  RawClient client(server.port(), LiveServer::kPatience);
  client.send(request_text("POST", "/generate",
                           R"({"text":"x","rid":"mine","stream":true,"sampling_params":{"max_new_tokens":3000}})"));
  gate.wait_held();
  gate.pass();
  client.read_head();
  client.read_event();
  EXPECT_EQ(server.ask("/abort_request", {{"rid", "mine"}}).at("aborted"), 1);
  gate.open();
  std::string last;
  while (std::optional<RawEvent> event = client.read_event()) {
    if (event->data != "[DONE]") last = event->data;
  }
  const json::value meta = json::parse(last).at("meta_info");
  EXPECT_EQ(meta.at("finish_reason").at("type"), "abort");
  EXPECT_LE(meta.at("completion_tokens").as_int64(), 2) << "the step that was under way is the last";
}

TEST(CanaryServer, SilenceIsFilledWithPings) {
  auto gated = std::make_unique<GatedModel>();
  GatedModel& gate = *gated;
  ServiceOptions options;
  options.ping_s = 0.02;
  LiveServer server(LiveServer::canary(std::move(gated)), std::move(options));
  gate.close();
  RawClient client(server.port(), LiveServer::kPatience);
  client.send(request_text("POST", "/v1/completions", R"({"prompt":"x","stream":true,"max_tokens":2})"));
  client.read_head();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(client.read_event()->data.empty()) << "a comment";
  gate.open();
  std::string last;
  while (std::optional<RawEvent> event = client.read_event()) last = event->data;
  EXPECT_EQ(last, "[DONE]");
}

TEST(CanaryServer, AnEngineThatDiesEndsStreamsWithAnErrorAndWithoutDone) {
  auto gated = std::make_unique<GatedModel>();
  GatedModel& gate = *gated;
  LiveServer server(LiveServer::canary(std::move(gated)));
  gate.close();
  RawClient one(server.port(), LiveServer::kPatience), two(server.port(), LiveServer::kPatience);
  one.send(request_text("POST", "/v1/completions", R"({"prompt":"x","stream":true,"n":2})"));
  one.read_head();
  two.send(request_text("POST", "/v1/messages",
                        R"({"messages":[{"role":"user","content":"x"}],"stream":true,"max_tokens":5})"));
  two.read_head();
  gate.wait_held();
  gate.break_down();
  gate.open();
  std::vector<RawEvent> events;
  while (std::optional<RawEvent> event = one.read_event()) events.push_back(*event);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(data_of(events[0]).at("error").at("code"), "engine_dead");
  events.clear();
  while (std::optional<RawEvent> event = two.read_event()) events.push_back(*event);
  EXPECT_EQ(events.back().name, "error");
  EXPECT_EQ(data_of(events.back()).at("type"), "error");
}

TEST(CanaryServer, EveryTokenThatShowsHasAChunk) {
  LiveServer server(LiveServer::canary());
  const std::vector<RawEvent> events =
      server.stream("/v1/completions", {{"prompt", "x"}, {"max_tokens", 50}, {"temperature", 0}, {"stream", true}});
  ASSERT_EQ(events.size(), 51u) << "and [DONE]";
  const std::string text = canary_text("x", 50);
  for (size_t i = 0; i < 50; ++i) {
    EXPECT_EQ(data_of(events[i]).at("choices").at(0).at("text"), json::value(text.substr(i, 1)));
  }
}

TEST(CanaryServer, NativeListsGiveListsAndStreamsNameTheIndex) {
  LiveServer server(LiveServer::canary());
  const json::object params{{"max_new_tokens", 6}, {"temperature", 0}};
  const json::value list =
      server.ask("/generate", {{"text", {"a", "b"}}, {"sampling_params", params}, {"rid", {"ra", "rb"}}});
  ASSERT_EQ(list.as_array().size(), 2u);
  EXPECT_EQ(list.at(1).at("text"), json::value(canary_text("b", 6)));
  EXPECT_EQ(list.at(1).at("meta_info").at("id"), "rb");
  EXPECT_EQ(server.ask("/generate", {{"input_ids", {97}}, {"sampling_params", params}}).at("text"),
            json::value(canary_text("a", 6)));
  std::vector<std::string> texts(2);
  for (const RawEvent& event :
       server.stream("/generate", {{"text", {"a", "b"}}, {"sampling_params", params}, {"stream", true}})) {
    if (event.data == "[DONE]") continue;
    const json::value object = data_of(event);
    texts[static_cast<size_t>(object.at("index").as_int64())] = std::string(object.at("text").as_string());
  }
  EXPECT_EQ(texts, (std::vector<std::string>{canary_text("a", 6), canary_text("b", 6)}));
}

TEST(CanaryServer, ScoresAPromptWithoutGenerating) {
  LiveServer server(LiveServer::canary());
  const json::value scored = server.ask(
      "/v1/completions", {{"prompt", "abc"}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 1}, {"temperature", 0}});
  EXPECT_EQ(scored.at("choices").at(0).at("text"), "abc");
  EXPECT_EQ(scored.at("choices").at(0).at("logprobs").at("token_logprobs").as_array().size(), 3u);
  EXPECT_EQ(scored.at("usage").at("completion_tokens"), 0);
  const json::value native = server.ask("/generate", {{"text", "abc"},
                                                      {"return_logprob", true},
                                                      {"logprob_start_len", 0},
                                                      {"top_logprobs_num", 2},
                                                      {"sampling_params", json::object{{"max_new_tokens", 1}}}});
  EXPECT_EQ(native.at("meta_info").at("input_token_logprobs").as_array().size(), 3u);
  EXPECT_EQ(native.at("meta_info").at("output_top_logprobs").at(0).as_array().size(), 2u);
}

// 64 MiB of a body must not become gigabytes of an answer.
TEST(CanaryServer, TokenizesAndDetokenizesWithinLimits) {
  LiveServer server(LiveServer::canary());
  const auto refusal = [&](const char* path, const std::string& body) {
    const RawResponse response = server.post(path, body);
    EXPECT_EQ(response.status, 400) << response.body.substr(0, 100);
    const json::value error = json::parse(response.body).at("error");
    return std::string(error.at("code").as_string()) + "|" + std::string(error.at("param").as_string());
  };
  const auto list = [](int n, const char* id) {
    std::string text = R"({"tokens":[)";
    for (int i = 0; i < n; ++i) text.append(i > 0 ? "," : "").append(id);
    return text + "]}";
  };
  constexpr int kMost = 1 << 20;
  const RawResponse most = server.post("/detokenize", list(kMost, "97"));
  ASSERT_EQ(most.status, 200);
  EXPECT_EQ(most.header("content-type"), "application/json");
  EXPECT_EQ(most.body, R"({"prompt":")" + std::string(kMost, 'a') + R"(","text":")" + std::string(kMost, 'a') + "\"}");
  EXPECT_EQ(refusal("/detokenize", list(kMost + 1, "97")), "too_many_items|tokens");

  const std::string half(kMost / 2, 'a'), names = R"(,"return_token_strs":true)";
  const json::value two = json::parse(server.post("/tokenize", R"({"prompt":[")" + half + "\",\"b\"]}").body);
  EXPECT_EQ(two.at("count"), (json::array{kMost / 2, 1}));
  EXPECT_EQ(two.at("tokens").at(0).as_array().size(), half.size());
  EXPECT_EQ(two.at("tokens").at(1), json::array{98});
  EXPECT_TRUE(two.at("token_strs").is_null());
  EXPECT_EQ(json::parse(server.post("/tokenize", R"({"prompt":["\"\\",""])" + names + "}").body).at("token_strs"),
            (json::array{json::array{"\"", "\\"}, json::array()}));
  EXPECT_EQ(refusal("/tokenize", R"({"prompt":")" + half + half + "b\"}"), "too_many_items|prompt");
  EXPECT_EQ(refusal("/tokenize", R"({"content":[")" + half + "\",\"" + half + "\",\"b\"]}"), "too_many_items|content");
  // Each character has three tokens without a spelling of their own, said as "bytes:\\xe4".
  std::string characters;
  for (int i = 0; i < kMost / 3; ++i) characters += "\xe4\xbd\xa0";
  EXPECT_EQ(refusal("/tokenize", R"({"prompt":")" + characters + "\"" + names + "}"), "too_many_items|prompt");
}

TEST(CanaryServer, StopsWhereItIsTold) {
  LiveServer server(LiveServer::canary());
  const std::string all = canary_text("stop me", 20), stop = all.substr(8, 3);
  const size_t at = all.find(stop);
  json::object body{{"prompt", "stop me"}, {"max_tokens", 20}, {"temperature", 0}, {"stop", stop.c_str()}};
  json::value choice = server.ask("/v1/completions", body).at("choices").at(0);
  EXPECT_EQ(choice.at("text"), json::value(all.substr(0, at)));
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  EXPECT_EQ(choice.at("stop_reason"), json::value(stop));
  body["include_stop_str_in_output"] = true;
  choice = server.ask("/v1/completions", body).at("choices").at(0);
  EXPECT_EQ(choice.at("text"), json::value(all.substr(0, at + 3)));
}

}  // namespace
}  // namespace carpool
