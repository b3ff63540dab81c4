// Server-sent events in pieces of any size, and replies of the three APIs as timelines.
#include "measure/load_backend.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace carpool {
namespace {

std::vector<ServerEvent> split(const std::vector<std::string>& pieces) {
  EventSplitter splitter;
  std::vector<ServerEvent> out;
  for (const std::string& piece : pieces) splitter.feed(piece, out);
  return out;
}

std::string show(const std::vector<ServerEvent>& events) {
  std::string out;
  for (const ServerEvent& e : events) out += "(" + e.name + "|" + e.data + ")";
  return out;
}

constexpr const char* kStream =
    ": a comment\n\ndata: {\"a\": 1}\n\nevent: error\r\ndata: one\r\ndata:two\r\n\r\ndata: three\r\rid: "
    "7\ndata\n\ndata: "
    "[DONE]\n\n";
constexpr const char* kEvents = "(|{\"a\": 1})(error|one\ntwo)(|three)(|)(|[DONE])";

TEST(EventSplitter, KnowsFieldsCommentsAndAllThreeLineEnds) { EXPECT_EQ(show(split({kStream})), kEvents); }

TEST(EventSplitter, SplitAtEveryByteTheEventsAreTheSame) {
  const std::string text = kStream;
  for (size_t at = 0; at <= text.size(); ++at) {
    EXPECT_EQ(show(split({text.substr(0, at), text.substr(at)})), kEvents) << "split at " << at;
  }
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  EXPECT_EQ(show(split(bytes)), kEvents);
}

TEST(EventSplitter, AnEventWithoutItsEmptyLineIsNotOver) { EXPECT_EQ(show(split({"data: x\n"})), ""); }

TEST(EventSplitter, RefusesAnEventThatNeverEnds) {
  EventSplitter splitter;
  std::vector<ServerEvent> out;
  const std::string piece(size_t{1} << 20, 'x');
  EXPECT_THROW(
      {
        for (int i = 0; i < 65; ++i) splitter.feed(piece, out);
      },
      Error);
}

// A reply as (time, data) events.
struct Timed {
  double at;
  std::string data;
};

LoadOutcome follow(LoadBackend backend, const std::vector<Timed>& events) {
  LoadOutcome outcome;
  ReplyReader reader(backend, {"/x", "{}", 5, 100}, outcome);
  for (const Timed& e : events) reader.event({"", e.data}, e.at);
  reader.end();
  return outcome;
}

std::string chunk(const std::string& text, int tokens, const std::string& reason = "null") {
  return "{\"text\": " + json::serialize(json::string(text)) +
         ", \"meta_info\": {\"completion_tokens\": " + std::to_string(tokens) +
         ", \"prompt_tokens\": 9, \"cached_tokens\": 4, \"finish_reason\": " + reason + "}}";
}

TEST(NativeReply, FirstTokenIsTheFirstNonEmptyTextAndGapsAreSplitAmongNewTokens) {
  const LoadOutcome o = follow(LoadBackend::kNative, {{0.1, chunk("", 1)},  // half a character
                                                      {0.2, chunk("a", 2)},
                                                      {0.5, chunk("abc", 5)},
                                                      {0.6, chunk("abcd", 6, "{\"type\": \"length\", \"length\": 6}")},
                                                      {0.7, "[DONE]"}});
  EXPECT_TRUE(o.success) << o.failure << o.message;
  EXPECT_DOUBLE_EQ(o.ttft, 0.2);
  ASSERT_EQ(o.itl.size(), 4u) << "three tokens of one chunk, then one";
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(o.itl[static_cast<size_t>(i)], 0.1, 1e-12);
  EXPECT_NEAR(o.itl[3], 0.1, 1e-12);
  EXPECT_EQ(o.output_tokens, 6);
  EXPECT_TRUE(o.counted);
  EXPECT_EQ(o.prompt_tokens, 9) << "as the server counts";
  EXPECT_EQ(o.cached_tokens, 4);
  EXPECT_EQ(o.text, "abcd") << "cumulative text replaces";
  EXPECT_EQ(o.finish, "length");
  EXPECT_DOUBLE_EQ(o.latency, 0.7);
}

TEST(NativeReply, ChunksWithoutNewTokensAreNoProgress) {
  const LoadOutcome o =
      follow(LoadBackend::kNative, {{1, chunk("a", 1)}, {2, chunk("a", 1)}, {4, chunk("ab", 2)}, {4, "[DONE]"}});
  EXPECT_EQ(o.itl, std::vector<double>{3}) << "from the first chunk on, not from the repeated one";
}

TEST(NativeReply, OnlyEmptyTextsLeaveNoTimeToFirstToken) {
  const LoadOutcome o = follow(LoadBackend::kNative, {{1, chunk("", 1)}, {2, chunk("", 2)}, {2, "[DONE]"}});
  EXPECT_TRUE(o.success);
  EXPECT_LT(o.ttft, 0);
  EXPECT_TRUE(o.itl.empty());
  EXPECT_EQ(o.output_tokens, 2);
}

TEST(NativeReply, AnAbortIsAFailureWithItsMessage) {
  const LoadOutcome o =
      follow(LoadBackend::kNative,
             {{1, chunk("a", 1, "{\"type\": \"abort\", \"message\": \"the pool is full\"}")}, {1, "[DONE]"}});
  EXPECT_FALSE(o.success);
  EXPECT_EQ(o.failure, "aborted");
  EXPECT_EQ(o.message, "the pool is full");
}

TEST(CompletionsReply, OneGapPerChunkAndTokensFromTheUsage) {
  const auto text = [](const std::string& t) { return "{\"choices\": [{\"index\": 0, \"text\": \"" + t + "\"}]}"; };
  const LoadOutcome o = follow(
      LoadBackend::kCompletions,
      {{0.1, text("")},
       {0.3, text("ab")},
       {0.4, text("c")},
       {0.9, "{\"choices\": [{\"text\": \"d\", \"finish_reason\": \"stop\"}]}"},
       {1.0,
        "{\"choices\": [], \"usage\": {\"prompt_tokens\": 7, \"completion_tokens\": 5, \"prompt_tokens_details\": "
        "{\"cached_tokens\": 6}}}"},
       {1.1, "[DONE]"}});
  EXPECT_TRUE(o.success);
  EXPECT_DOUBLE_EQ(o.ttft, 0.3);
  ASSERT_EQ(o.itl.size(), 2u);
  EXPECT_NEAR(o.itl[0], 0.1, 1e-12);
  EXPECT_NEAR(o.itl[1], 0.5, 1e-12);
  EXPECT_EQ(o.output_tokens, 5) << "exact also when the text ended early, not the number asked for";
  EXPECT_EQ(o.prompt_tokens, 7);
  EXPECT_EQ(o.cached_tokens, 6);
  EXPECT_EQ(o.text, "abcd");
  EXPECT_EQ(o.finish, "stop");
  EXPECT_DOUBLE_EQ(o.latency, 1.1);
}

TEST(ChatReply, RolesAreNoTextAndReasoningIs) {
  const auto delta = [](const std::string& d) { return "{\"choices\": [{\"delta\": " + d + "}], \"usage\": null}"; };
  const LoadOutcome o = follow(LoadBackend::kChat, {{0.1, delta("{\"role\": \"assistant\", \"content\": \"\"}")},
                                                    {0.2, delta("{\"reasoning_content\": \"hm\", \"content\": null}")},
                                                    {0.5, delta("{\"content\": \"yes\"}")},
                                                    {0.6, "[DONE]"}});
  EXPECT_DOUBLE_EQ(o.ttft, 0.2);
  ASSERT_EQ(o.itl.size(), 1u);
  EXPECT_NEAR(o.itl[0], 0.3, 1e-12);
  EXPECT_EQ(o.text, "hmyes");
  EXPECT_FALSE(o.counted) << "no usage came";
  EXPECT_EQ(o.output_tokens, 2) << "so chunks are counted";
}

TEST(Reply, WithoutDoneItIsCutHoweverMuchCame) {
  const LoadOutcome o = follow(LoadBackend::kNative, {{1, chunk("a", 1)}});
  EXPECT_FALSE(o.success);
  EXPECT_EQ(o.failure, "cut");
}

TEST(Reply, AnErrorInTheStreamIsTheFailureAlsoWhenDoneFollows) {
  const LoadOutcome o =
      follow(LoadBackend::kChat,
             {{1, "{\"error\": {\"message\": \"out of blocks\", \"type\": \"server_error\", \"code\": \"preempted\"}}"},
              {2, "[DONE]"}});
  EXPECT_FALSE(o.success);
  EXPECT_EQ(o.failure, "error in the stream preempted");
  EXPECT_EQ(o.message, "out of blocks");
}

TEST(Reply, WhatIsNoJsonIsMalformed) {
  EXPECT_THROW(follow(LoadBackend::kNative, {{1, "{\"text\": "}}), Error);
  EXPECT_THROW(follow(LoadBackend::kNative, {{1, "[1]"}}), Error);
  EXPECT_THROW(follow(LoadBackend::kCompletions, {{1, "7"}}), Error);
}

TEST(Reply, WrongTypesInsideAreReadAsAbsentAndNeverCrash) {
  for (const LoadBackend backend : {LoadBackend::kNative, LoadBackend::kCompletions, LoadBackend::kChat}) {
    const LoadOutcome o =
        follow(backend,
               {{1, "{\"text\": 7, \"meta_info\": {\"completion_tokens\": -3, \"finish_reason\": 9}, \"choices\": 3}"},
                {2, "{\"text\": [], \"meta_info\": 1, \"choices\": [1], \"usage\": []}"},
                {3, "{\"choices\": [{\"text\": null, \"delta\": 3}], \"usage\": {\"completion_tokens\": 1e300}}"},
                {4, "[DONE]"}});
    EXPECT_TRUE(o.success);
    EXPECT_EQ(o.output_tokens, 0);
    EXPECT_LT(o.ttft, 0);
  }
}

TEST(Reply, AWholeReplyHasALatencyAndNoTimesWithin) {
  LoadOutcome o;
  ReplyReader reader(LoadBackend::kChat, {"/x", "{}", 5, 100}, o);
  reader.whole(
      "{\"choices\": [{\"message\": {\"content\": \"hi\"}, \"finish_reason\": \"stop\"}], \"usage\": "
      "{\"prompt_tokens\": 3, \"completion_tokens\": 2}}",
      1.5);
  reader.end();
  EXPECT_TRUE(o.success);
  EXPECT_EQ(o.text, "hi");
  EXPECT_EQ(o.output_tokens, 2);
  EXPECT_LT(o.ttft, 0);
  EXPECT_DOUBLE_EQ(o.latency, 1.5);
}

TEST(Refusal, IsNamedByStatusAndCodeFromEitherShape) {
  const auto read = [](int status, const std::string& body) {
    LoadOutcome o;
    read_refusal(status, body, o);
    return o.failure + "|" + o.message;
  };
  EXPECT_EQ(read(503, "{\"error\": {\"message\": \"full\", \"type\": \"t\", \"code\": \"overloaded\"}}"),
            "HTTP 503 overloaded|full");
  EXPECT_EQ(read(400, "{\"object\": \"error\", \"message\": \"bad\", \"type\": \"BadRequest\", \"code\": 400}"),
            "HTTP 400 BadRequest|bad");
  EXPECT_EQ(read(404, "{\"error\": \"gone\"}"), "HTTP 404|gone");
  EXPECT_EQ(read(502, "<html>\x01"), "HTTP 502|<html>\\x01");
  EXPECT_EQ(read(500, ""), "HTTP 500|");
}

LoadPrompt text_prompt() {
  LoadPrompt p;
  p.text = "Hello";
  p.output_tokens = 7;
  p.input_tokens = 1;
  return p;
}

TEST(LoadRequest, NativeHasSamplingParamsAndIgnoresTheEndByDefault) {
  LoadSettings s;
  const LoadRequest r = make_request(s, text_prompt(), 0);
  EXPECT_EQ(r.path, "/generate");
  EXPECT_EQ(r.output_tokens, 7);
  const json::value v = parse_json(r.body, "body");
  EXPECT_EQ(v.at("text"), "Hello");
  EXPECT_EQ(v.at("stream"), true);
  EXPECT_EQ(v.at("sampling_params").at("max_new_tokens"), 7);
  EXPECT_EQ(v.at("sampling_params").at("temperature"), 0.0);
  EXPECT_EQ(v.at("sampling_params").at("ignore_eos"), true);
  EXPECT_FALSE(v.as_object().contains("routing"));
}

TEST(LoadRequest, TokenIdsGoAsIdsAndNeverAsChat) {
  LoadPrompt p;
  p.ids = {4, 5};
  LoadSettings s;
  EXPECT_EQ(parse_json(make_request(s, p, 0).body, "body").at("input_ids"), (json::array{4, 5}));
  s.backend = LoadBackend::kCompletions;
  EXPECT_EQ(parse_json(make_request(s, p, 0).body, "body").at("prompt"), (json::array{4, 5}));
  s.backend = LoadBackend::kChat;
  EXPECT_THROW(make_request(s, p, 0), Error);
}

TEST(LoadRequest, OpenAiBodiesAskForTheUsageOfStreams) {
  LoadSettings s;
  s.backend = LoadBackend::kCompletions;
  s.model = "m";
  json::value v = parse_json(make_request(s, text_prompt(), 0).body, "body");
  EXPECT_EQ(v.at("model"), "m");
  EXPECT_EQ(v.at("max_tokens"), 7);
  EXPECT_EQ(v.at("stream_options").at("include_usage"), true);
  s.backend = LoadBackend::kChat;
  s.stream = false;
  v = parse_json(make_request(s, text_prompt(), 0).body, "body");
  EXPECT_EQ(v.at("messages").at(0).at("content"), "Hello");
  EXPECT_EQ(v.at("max_completion_tokens"), 7);
  EXPECT_FALSE(v.as_object().contains("stream_options"));
  LoadPrompt conversation = text_prompt();
  conversation.messages = {json::object{{"role", "system"}, {"content", "Be brief."}}};
  v = parse_json(make_request(s, conversation, 0).body, "body");
  EXPECT_EQ(v.at("messages").at(0).at("role"), "system");
}

TEST(LoadRequest, SeedsDifferByRequestAndAreSentWhereTheyMatter) {
  LoadSettings s;
  s.seed = 40;
  EXPECT_FALSE(parse_json(make_request(s, text_prompt(), 2).body, "b")
                   .at("sampling_params")
                   .as_object()
                   .contains("sampling_seed"));
  s.temperature = 0.5;
  s.top_p = 0.9;
  const json::value v = parse_json(make_request(s, text_prompt(), 2).body, "b");
  EXPECT_EQ(v.at("sampling_params").at("sampling_seed"), 42);
  EXPECT_EQ(v.at("sampling_params").at("top_p"), 0.9);
  s.backend = LoadBackend::kCompletions;
  EXPECT_EQ(parse_json(make_request(s, text_prompt(), 3).body, "b").at("seed"), 43);
}

TEST(LoadRequest, ExtrasMergeIntoObjectsAndWinOverTheRest) {
  LoadSettings s;
  s.routing = "oea:k0=5";
  s.extra = {{"sampling_params", json::object{{"top_k", 4}, {"temperature", 1}}}, {"stream", false}};
  const json::value v = parse_json(make_request(s, text_prompt(), 0).body, "body");
  EXPECT_EQ(v.at("routing"), "oea:k0=5");
  EXPECT_EQ(v.at("sampling_params").at("max_new_tokens"), 7);
  EXPECT_EQ(v.at("sampling_params").at("top_k"), 4);
  EXPECT_EQ(v.at("sampling_params").at("temperature"), 1);
  EXPECT_EQ(v.at("stream"), false);
}

TEST(LoadBackendNames, TakeSglangsSpellingsAndListThemOtherwise) {
  EXPECT_EQ(parse_backend("sglang"), LoadBackend::kNative);
  EXPECT_EQ(parse_backend("sglang-oai"), LoadBackend::kCompletions);
  EXPECT_EQ(parse_backend("openai-chat"), LoadBackend::kChat);
  try {
    parse_backend("trt");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("openai-chat"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace carpool
