// Reasoning and calls of tools through the APIs, over a socket, from a model that says what the test wants: that a
// stream says what the whole says, what is forced, what broken answers become, and that no control token gets out.
#include <gtest/gtest.h>

#include <set>

#include "server/chat_tools_test_util.h"
#include "text/utf8.h"

namespace carpool {
namespace {

constexpr const char* kOss =
    "{# <|channel|> <|message|> functions. #}{% for m in messages %}{{ m.content }}{% endfor %}<|start|>assistant";
constexpr const char* kKimi =
    "{# <|tool_calls_section_begin|> #}{% for m in messages %}{{ m.content }}{% endfor %}<|im_assistant|>";

const std::string kWeather =
    "<tool_call>get_weather<arg_key>city</arg_key><arg_value>K\xc3\xb6ln</arg_value><arg_key>days</arg_key>"
    "<arg_value>3</arg_value></tool_call>";

class GlmServer : public testing::Test {
 protected:
  static void SetUpTestSuite() { server = new LiveServer(scripted(kGlmTemplate, kGlmTags)); }
  static void TearDownTestSuite() {
    delete server;
    server = nullptr;
  }
  static LiveServer* server;
};
LiveServer* GlmServer::server = nullptr;

TEST_F(GlmServer, ReasoningContentAndCallsAreTakenApart) {
  std::string reason;
  json::object usage;
  const json::object message = chat(
      *server, request("Hm \xf0\x9f\x8c\xa7?</think>I look.\n" + kWeather + "<tool_call>now</tool_call>", with_tools()),
      &reason, &usage);
  EXPECT_EQ(reason, "tool_calls");
  EXPECT_EQ(message.at("reasoning_content"), "Hm \xf0\x9f\x8c\xa7?");
  EXPECT_EQ(message.at("content"), "I look.");
  const json::array& calls = message.at("tool_calls").as_array();
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].at("type"), "function");
  EXPECT_EQ(calls[0].at("function"),
            (json::object{{"name", "get_weather"}, {"arguments", "{\"city\": \"K\xc3\xb6ln\", \"days\": 3}"}}));
  EXPECT_EQ(calls[1].at("function"), (json::object{{"name", "now"}, {"arguments", "{}"}}));
  for (const json::value& call : calls) {
    const std::string id(call.at("id").as_string());
    EXPECT_EQ(id.size(), 29u);
    EXPECT_EQ(id.substr(0, 5), "call_");
    EXPECT_EQ(id.find_first_not_of("0123456789abcdef", 5), std::string::npos);
  }
  EXPECT_NE(calls[0].at("id"), calls[1].at("id"));
  EXPECT_EQ(usage.at("completion_tokens_details").at("reasoning_tokens"), 3 + 4 + 1 + 1) << "and the closing tag";
}

TEST_F(GlmServer, ContentIsNullBesideCallsAlone) {
  const json::object message = chat(*server, request("</think>" + kWeather, with_tools()));
  EXPECT_TRUE(message.at("content").is_null());
  EXPECT_TRUE(message.at("reasoning_content").is_null());
}

TEST_F(GlmServer, ThinkingCanBeTurnedOff) {
  const json::object kwargs{{"chat_template_kwargs", json::object{{"enable_thinking", false}}}};
  EXPECT_EQ(chat(*server, request("All content.", kwargs)).at("content"), "All content.");
  EXPECT_EQ(chat(*server, request("All content.", {{"reasoning_effort", "none"}})).at("content"), "All content.");
  EXPECT_EQ(chat(*server, request("a</think>b", {{"reasoning_effort", "high"}})).at("reasoning_content"), "a");
}

TEST_F(GlmServer, ReasoningCanStayInTheText) {
  const json::object message = chat(*server, request("a</think>b", {{"separate_reasoning", false}}));
  EXPECT_EQ(message.at("content"), "a</think>b");
  EXPECT_FALSE(message.contains("reasoning_content"));
}

TEST_F(GlmServer, ReasoningCanComeInOnePiece) {
  const auto chunks_of_reasoning = [](bool stream_reasoning) {
    int chunks = 0;
    for (const RawEvent& event :
         server->stream("/v1/chat/completions",
                        request("abc def</think>g", {{"stream", true}, {"stream_reasoning", stream_reasoning}}))) {
      if (event.data.find("\"reasoning_content\":\"") != std::string::npos) ++chunks;
    }
    return chunks;
  };
  EXPECT_EQ(chunks_of_reasoning(true), 7);
  EXPECT_EQ(chunks_of_reasoning(false), 1);
  EXPECT_EQ(chat(*server, request("abc", {{"stream_reasoning", false}})).at("reasoning_content"), "abc")
      << "also unfinished";
}

TEST_F(GlmServer, ChoicesAreParsedApart) {
  const json::value whole =
      server->ask("/v1/chat/completions", request("a</think>" + kWeather, with_tools({{"n", 3}})));
  std::set<std::string> ids;
  for (const json::value& choice : whole.at("choices").as_array()) {
    EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
    ids.emplace(choice.at("message").at("tool_calls").at(0).at("id").as_string());
  }
  EXPECT_EQ(ids.size(), 3u);
  chat(*server, request("a</think>" + kWeather, with_tools({{"n", 3}})));
}

// The tags of this tokenizer are special tokens.
TEST_F(GlmServer, WithoutToolsOrWithNoneCallsAreTextWithoutTags) {
  const json::value kWeatherText = "get_weathercityK\xc3\xb6lndays3";
  EXPECT_EQ(chat(*server, request("</think>" + kWeather)).at("content"), kWeatherText);
  EXPECT_EQ(chat(*server, request("</think>" + kWeather, with_tools({{"tool_choice", "none"}}))).at("content"),
            kWeatherText);
}

TEST_F(GlmServer, OneCallWhereMoreAreNotAllowed) {
  std::string reason;
  const json::object body =
      request("</think><tool_call>now</tool_call>" + kWeather, with_tools({{"parallel_tool_calls", false}}));
  EXPECT_EQ(chat(*server, body, &reason).at("tool_calls").as_array().size(), 1u);
  EXPECT_EQ(reason, "tool_calls");
  EXPECT_EQ(server->ask("/v1/chat/completions", body).at("carpool").at("lost_calls"),
            json::parse(R"({"unknown_function":0,"malformed":0,"surplus":1})"));
}

TEST_F(GlmServer, ARequiredCallComesAfterReasoning) {
  std::string reason;
  json::object message =
      chat(*server,
           request("I must.</think><tool_call>now</tool_call>" + kWeather, with_tools({{"tool_choice", "required"}})),
           &reason);
  EXPECT_EQ(reason, "tool_calls");
  EXPECT_EQ(message.at("reasoning_content"), "I must.");
  ASSERT_EQ(message.at("tool_calls").as_array().size(), 2u);
  EXPECT_EQ(message.at("tool_calls").at(0).at("function").at("name"), "now");
  message = chat(*server, request("</think>" + kWeather + kWeather, named("get_weather")), &reason);
  EXPECT_EQ(reason, "tool_calls");
  ASSERT_EQ(message.at("tool_calls").as_array().size(), 1u) << "exactly the named one";
  EXPECT_EQ(message.at("tool_calls").at(0).at("function"),
            (json::object{{"name", "get_weather"}, {"arguments", "{\"city\": \"K\xc3\xb6ln\", \"days\": 3}"}}));
}

// Whatever the model wants to say.
TEST_F(GlmServer, ARequiredCallIsForced) {
  const json::object off{{"chat_template_kwargs", json::object{{"enable_thinking", false}}}};
  for (const char* wanted : {"I would rather not.", "<tool_call>format_disk</tool_call>", "<tool_call>", ""}) {
    const json::object message = chat(*server, request(wanted, named("now", off)));
    ASSERT_EQ(message.at("tool_calls").as_array().size(), 1u);
    EXPECT_EQ(message.at("tool_calls").at(0).at("function"), (json::object{{"name", "now"}, {"arguments", "{}"}}));
  }
  // A value that is no integer cannot be written where the schema wants one.
  const json::object message =
      chat(*server, request("<tool_call>get_weather<arg_key>days</arg_key><arg_value>many</arg_value></tool_call>",
                            named("get_weather", off)));
  const json::value arguments = json::parse(message.at("tool_calls").at(0).at("function").at("arguments").as_string());
  EXPECT_TRUE(arguments.at("days").is_int64()) << arguments;
}

// Which is the client's wish, as is max_tokens: no error, least of all the server's.
TEST_F(GlmServer, AStopMayCutOffTheRequiredCall) {
  json::object body = request("I would rather not.", with_tools({{"tool_choice", "required"}, {"stop", "rather"}}));
  const RawResponse response = server->post("/v1/chat/completions", json::serialize(body));
  ASSERT_EQ(response.status, 200) << response.body;
  const json::value choice = json::parse(response.body).at("choices").at(0);
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  EXPECT_EQ(choice.at("message").at("reasoning_content"), "I would ");
  EXPECT_FALSE(choice.at("message").as_object().contains("tool_calls"));
  body["stream"] = true;
  const std::vector<RawEvent> events = server->stream("/v1/chat/completions", body);
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events.back().data, "[DONE]");
  EXPECT_EQ(json::parse(events[events.size() - 2].data).at("choices").at(0).at("finish_reason"), "stop");
  json::object cut =
      request("", named("get_weather", {{"stop_token_ids", json::array{119}},
                                        {"chat_template_kwargs", json::object{{"enable_thinking", false}}}}));
  EXPECT_EQ(server->ask("/v1/chat/completions", cut).at("choices").at(0).at("finish_reason"), "stop");
  body["max_tokens"] = 3;
  body["stream"] = false;
  EXPECT_EQ(server->ask("/v1/chat/completions", body).at("choices").at(0).at("finish_reason"), "length");
}

TEST_F(GlmServer, ToolsAndStructureExcludeEachOther) {
  json::object body = request("a", with_tools({{"response_format", json::object{{"type", "json_object"}}}}));
  const RawResponse refused = server->post("/v1/chat/completions", json::serialize(body));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(json::parse(refused.body).at("error").at("param"), "tools");
  body["messages"] = request("</think>{}").at("messages");
  body["tool_choice"] = "none";
  EXPECT_EQ(chat(*server, body).at("content"), "{}");
}

TEST_F(GlmServer, AnAnswerThatIsCutShortHasNoHalfCall) {
  std::string reason;
  const json::object message =
      chat(*server, request("</think>Go. " + kWeather, with_tools({{"max_tokens", 17}})), &reason);
  EXPECT_EQ(reason, "length");
  EXPECT_FALSE(message.contains("tool_calls"));
  EXPECT_EQ(message.at("content"), "Go. <tool_call>get_weather");
}

TEST_F(GlmServer, UnknownFunctionsAreDroppedAndSaid) {
  const json::value whole =
      server->ask("/v1/chat/completions", request("</think>a<tool_call>format_disk</tool_call>", with_tools()));
  EXPECT_EQ(whole.at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_EQ(whole.at("choices").at(0).at("message").at("content"), "a");
  EXPECT_EQ(whole.at("carpool").at("lost_calls").at("unknown_function"), 1);
}

TEST_F(GlmServer, SpecialTokensNeverLeak) {
  EXPECT_EQ(chat(*server, request("<|user|>a<|user|></think>b<|user|>c")).at("content"), "bc");
  EXPECT_EQ(chat(*server, request("a</think>b<|user|>", {{"skip_special_tokens", false}})).at("content"), "b<|user|>")
      << "but for who asks";
}

TEST_F(GlmServer, HistoryToolsAndSwitchesReachTheTemplate) {
  const json::object body = json::parse(R"({"messages":[{"role":"user","content":"a"},
    {"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"now","arguments":"{\"x\":1}"}}]},
    {"role":"tool","tool_call_id":"c","content":"12:00"}],
    "tools":[{"type":"function","function":{"name":"now"}}],"chat_template_kwargs":{"enable_thinking":false}})")
                                .as_object();
  EXPECT_EQ(
      server->ask("/apply-template", body).at("prompt"),
      "<|user|>a<|assistant|><tool_call>now<arg_key>x</arg_key><arg_value>1</arg_value></tool_call><|tool|>12:00(now)"
      "<|assistant|></think>");
}

TEST_F(GlmServer, TheServerSaysWhichParsersItUses) {
  EXPECT_EQ(server->get("/server_info").at("reasoning_parser"), "glm45");
  EXPECT_EQ(server->get("/server_info").at("tool_call_parser"), "glm47");
}

// Anthropic's.
json::object anthropic_request(const std::string& script, json::object more = {}) {
  json::object body = request(script);
  body["tools"] = json::parse(R"([{"name":"get_weather","input_schema":{"type":"object","properties":{
      "city":{"type":"string"},"days":{"type":"integer"}}}},{"name":"now","input_schema":{"type":"object"}}])");
  for (const auto& entry : more) body[entry.key()] = entry.value();
  return body;
}

// What the events add up to.
json::object joined_message(const std::vector<RawEvent>& events) {
  json::object message;
  std::string arguments;
  int64_t open = -1;
  for (const RawEvent& event : events) {
    const json::object object = json::parse(event.data).as_object();
    EXPECT_EQ(object.at("type"), json::value(event.name));
    if (event.name == "message_start") message = object.at("message").as_object();
    if (event.name == "content_block_start") {
      EXPECT_EQ(open, -1);
      open = object.at("index").as_int64();
      EXPECT_EQ(static_cast<size_t>(open), message.at("content").as_array().size());
      message.at("content").as_array().push_back(object.at("content_block"));
      arguments.clear();
    }
    if (event.name == "content_block_delta") {
      EXPECT_EQ(object.at("index"), open);
      json::object& block = message.at("content").as_array().back().as_object();
      const json::object& delta = object.at("delta").as_object();
      if (delta.at("type") == "text_delta") block["text"].as_string().append(delta.at("text").as_string());
      if (delta.at("type") == "thinking_delta") block["thinking"].as_string().append(delta.at("thinking").as_string());
      if (delta.at("type") == "input_json_delta") arguments += std::string(delta.at("partial_json").as_string());
    }
    if (event.name == "content_block_stop") {
      json::object& block = message.at("content").as_array().back().as_object();
      if (block.at("type") == "tool_use") block["input"] = json::parse(arguments);
      open = -1;
    }
    if (event.name == "message_delta") {
      for (const auto& entry : object.at("delta").as_object()) message[entry.key()] = entry.value();
      message["usage"] = object.at("usage");
    }
  }
  EXPECT_EQ(open, -1);
  return message;
}

json::object messages(const LiveServer& server, json::object body) {
  json::object whole = server.ask("/v1/messages", body).as_object();
  body["stream"] = true;
  json::object streamed = joined_message(server.stream("/v1/messages", body));
  json::object expected = whole;
  for (json::object* message : {&streamed, &expected}) {
    message->erase("id");
    message->erase("carpool");
    for (json::value& block : message->at("content").as_array()) block.as_object().erase("id");
  }
  EXPECT_EQ(streamed, expected);
  return whole;
}

TEST_F(GlmServer, AnthropicsBlocksAreThinkingTextAndToolUse) {
  const json::object message =
      messages(*server, anthropic_request("Hm.</think>I look. " + kWeather + "<tool_call>now</tool_call>"));
  const json::array& content = message.at("content").as_array();
  ASSERT_EQ(content.size(), 4u);
  EXPECT_EQ(content[0], json::parse(R"({"type":"thinking","thinking":"Hm.","signature":""})"));
  EXPECT_EQ(content[1], json::parse(R"({"type":"text","text":"I look."})"));
  EXPECT_EQ(content[2].at("name"), "get_weather");
  EXPECT_EQ(content[2].at("input"), json::parse("{\"city\":\"K\xc3\xb6ln\",\"days\":3}"));
  EXPECT_EQ(content[2].at("id").as_string().find("toolu_"), 0u);
  EXPECT_EQ(content[3].at("input"), json::object());
  EXPECT_NE(content[2].at("id"), content[3].at("id"));
  EXPECT_EQ(message.at("stop_reason"), "tool_use");
}

TEST_F(GlmServer, AnthropicsChoicesAndThinking) {
  const json::object off{{"thinking", json::object{{"type", "disabled"}}}};
  EXPECT_EQ(messages(*server, anthropic_request("Hi.", off)).at("content"),
            json::parse(R"([{"type":"text","text":"Hi."}])"));
  EXPECT_EQ(messages(*server, anthropic_request("", off)).at("content"), json::parse(R"([{"type":"text","text":""}])"));
  const json::object any{{"tool_choice", json::object{{"type", "any"}}}};
  EXPECT_EQ(
      messages(*server, anthropic_request("</think><tool_call>now</tool_call>", any)).at("content").at(0).at("name"),
      "now");
  const json::object tool{{"tool_choice", json::object{{"type", "tool"}, {"name", "now"}}}};
  EXPECT_EQ(messages(*server, anthropic_request("</think><tool_call>now</tool_call>", tool)).at("stop_reason"),
            "tool_use");
  const json::object none{{"tool_choice", json::object{{"type", "none"}}}};
  EXPECT_EQ(messages(*server, anthropic_request("</think>" + kWeather, none)).at("content").at(0).at("text"),
            "get_weathercityK\xc3\xb6lndays3");
  json::object counted = anthropic_request("x");
  const json::value without = server->ask("/v1/messages/count_tokens", request("x"));
  EXPECT_GT(server->ask("/v1/messages/count_tokens", counted).at("input_tokens").as_int64(),
            without.at("input_tokens").as_int64())
      << "tools are part of the prompt";
}

TEST(KnownProblemT23, NoThinkingIsAllContentAndUnfinishedThinkingIsReasoning) {
  const LiveServer server(scripted(kGlmTemplate, kGlmTags));
  const json::object off{{"chat_template_kwargs", json::object{{"enable_thinking", false}}}};
  std::string reason;
  EXPECT_EQ(chat(server, request("Just an answer.", off), &reason).at("content"), "Just an answer.");
  EXPECT_EQ(reason, "stop");
  const json::object message = chat(server, request("thinking on and on", {{"max_tokens", 8}}), &reason);
  EXPECT_EQ(message.at("reasoning_content"), "thinking");
  EXPECT_TRUE(message.at("content").is_null());
  EXPECT_EQ(reason, "length");
}

// A schema holds for what comes after reasoning, whatever the reasoning looks like.
TEST(KnownProblemT24, StructureBeginsBehindReasoning) {
  const LiveServer server(scripted(kGlmTemplate, kGlmTags));
  const json::object format{{"response_format", json::parse(R"({"type":"json_schema","json_schema":{"name":"s","schema":
      {"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}}})")}};
  std::string reason;
  const json::object message =
      chat(server, request("{\"b\": I think...\n</think>\n{\"a\": 7} and so on", format), &reason);
  EXPECT_EQ(message.at("reasoning_content"), "{\"b\": I think...\n");
  EXPECT_EQ(json::parse(message.at("content").as_string()), json::parse(R"({"a": 7})"));
  EXPECT_EQ(reason, "stop");
  json::object off = format;
  off["chat_template_kwargs"] = json::object{{"enable_thinking", false}};
  EXPECT_EQ(chat(server, request("{\"a\": 7}", off)).at("content"), "{\"a\": 7}");
}

TEST(KnownProblemT26, EveryChunkIsWholeCharacters) {
  const LiveServer server(scripted(kGlmTemplate, kGlmTags));
  const std::string faces = "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x9a\x80\xe4\xbd\xa0\xc3\xa9";
  json::object body = request(faces + "</think>" + faces + "<tool_call>get_weather<arg_key>city</arg_key><arg_value>" +
                                  faces + "</arg_value></tool_call>",
                              with_tools());
  const json::object message = chat(server, body);
  EXPECT_EQ(message.at("content"), json::value(faces));
  EXPECT_EQ(message.at("tool_calls").at(0).at("function").at("arguments"),
            json::value("{\"city\": \"" + faces + "\"}"));
  body["stream"] = true;
  for (const RawEvent& event : server.stream("/v1/chat/completions", body)) {
    EXPECT_EQ(event.data.find("\xef\xbf\xbd"), std::string::npos) << event.data;
    EXPECT_TRUE(is_valid_utf8(event.data));
  }
}

TEST(OssServer, ChannelsAreTakenApart) {
  const LiveServer server(scripted(
      kOss, {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"}));
  const std::string analysis = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
  EXPECT_EQ(essence(chat(server, request(analysis + "<|channel|>final<|message|>Hi.<|return|>"))),
            (json::object{{"role", "assistant"}, {"content", "Hi."}, {"reasoning_content", "Hm."}}));
  const std::string call = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>";
  std::string reason;
  EXPECT_EQ(
      chat(server, request(analysis + call, with_tools()), &reason).at("tool_calls").at(0).at("function").at("name"),
      "now");
  EXPECT_EQ(reason, "tool_calls");
  const json::object forced =
      chat(server, request(analysis + call, with_tools({{"tool_choice", "required"}})), &reason);
  EXPECT_EQ(forced.at("tool_calls").at(0).at("function").at("arguments"), "{}");
  EXPECT_EQ(forced.at("reasoning_content"), "Hm.");
  const json::object structured = chat(server, request(analysis + "<|channel|>final<|message|>{\"a\": 1}",
                                                       {{"response_format", json::object{{"type", "json_object"}}}}));
  EXPECT_EQ(structured.at("content"), "{\"a\": 1}");
}

TEST(KimiServer, IdsCountOnThroughTheConversation) {
  const LiveServer server(
      scripted(kKimi, {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                       "<|tool_call_argument_begin|>", "<|tool_call_end|>"}));
  json::object body = request(
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}"
      "<|tool_call_end|><|tool_calls_section_end|>",
      with_tools());
  const json::object message = chat(server, body);
  EXPECT_EQ(message.at("tool_calls").at(0).at("id"), "functions.now:0");
  EXPECT_TRUE(message.at("content").is_null()) << "no tag of the section";
  json::array& history = body.at("messages").as_array();
  history.insert(history.begin(), message);
  EXPECT_EQ(chat(server, body).at("tool_calls").at(0).at("id"), "functions.now:1");
}

TEST(KimiServer, TagsOfCallsDoNotLeakIntoAnswersWithoutTools) {
  ServiceOptions options;
  options.reasoning_parser = "qwen3";
  const LiveServer server(
      scripted(kKimi, {"<think>", "</think>", "<|tool_calls_section_begin|>", "<|tool_call_begin|>"}), options);
  const json::object message =
      chat(server, request("<think>a</think>b<|tool_calls_section_begin|><|tool_call_begin|>c<|tool_call_begin|>"));
  EXPECT_EQ(message.at("content"), "bc");
  EXPECT_EQ(message.at("reasoning_content"), "a");
}

TEST(Parsers, OptionsChooseThem) {
  ServiceOptions options;
  options.reasoning_parser = "none";
  options.tool_call_parser = "qwen25";
  const LiveServer server(scripted(kGlmTemplate, kGlmTags), options);
  EXPECT_EQ(chat(server, request("a</think>" + kWeather)).at("content"), "aget_weathercityK\xc3\xb6lndays3")
      << "tags that nobody reads are special tokens like others";
  const json::object message = chat(server, request("<tool_call>{\"name\": \"now\"}</tool_call>", with_tools()));
  EXPECT_EQ(message.at("tool_calls").at(0).at("function").at("name"), "now");
  options.tool_call_parser = "none";
  const LiveServer without(scripted(kGlmTemplate, kGlmTags), options);
  const RawResponse refused = without.post("/v1/chat/completions", json::serialize(request("a", with_tools())));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(json::parse(refused.body).at("error").at("code"), "unsupported_value");
  EXPECT_EQ(json::parse(refused.body).at("error").at("param"), "tools");
}

}  // namespace
}  // namespace carpool
