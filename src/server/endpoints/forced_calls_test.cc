// Calls that must be made, through the server, in every format that models write them in: a model that wants to call is
// let, and one that does not has to. Beside GLM-4.7 and gpt-oss, which are in chat_tools_test.cc.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/chat_tools_test_util.h"

namespace carpool {
namespace {

// DeepSeek's tags have a vertical bar and a low line of their own.
#define DEEPSEEK(words) "<\xef\xbd\x9c" words "\xef\xbd\x9c>"
#define DEEPSEEK_SPACE "\xe2\x96\x81"
const std::string kBegin = DEEPSEEK("tool" DEEPSEEK_SPACE "calls" DEEPSEEK_SPACE "begin");
const std::string kEnd = DEEPSEEK("tool" DEEPSEEK_SPACE "calls" DEEPSEEK_SPACE "end");
const std::string kCall = DEEPSEEK("tool" DEEPSEEK_SPACE "call" DEEPSEEK_SPACE "begin");
const std::string kCallEnd = DEEPSEEK("tool" DEEPSEEK_SPACE "call" DEEPSEEK_SPACE "end");
const std::string kSeparator = DEEPSEEK("tool" DEEPSEEK_SPACE "sep");
#undef DEEPSEEK_SPACE
#undef DEEPSEEK

struct Format {
  const char* name;               // of --tool-call-parser
  std::vector<std::string> tags;  // special tokens of models that write so
  std::string both;               // get_weather(city "K\"o", days 3) and now(), as such a model writes them
  std::string many;               // get_weather(days "many"), from its begin to behind that word
};

std::vector<Format> formats() {
  const std::string arguments = R"({"city": "K\"o", "days": 3})";
  const std::vector<std::string> around = {"<tool_call>", "</tool_call>"};
  const std::vector<std::string> deepseek = {kBegin, kEnd, kCall, kCallEnd, kSeparator};
  const std::string json_calls = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": " + arguments +
                                 "}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
  const std::string json_many = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"days\": many";
  const std::string fence = "\n```json\n", v3 = kCall + "function" + kSeparator;
  return {
      {"glm45",
       {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"},
       "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>K\"o</arg_value>\n<arg_key>days</arg_key>\n"
       "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
       "<tool_call>get_weather\n<arg_key>days</arg_key>\n<arg_value>many"},
      {"qwen25", around, json_calls, json_many},
      {"hermes", around, json_calls, json_many},
      {"qwen3_coder", around,
       "<tool_call>\n<function=get_weather>\n<parameter=city>\nK\"o\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
       "</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
       "<tool_call>\n<function=get_weather>\n<parameter=days>\nmany"},
      {"deepseekv3", deepseek,
       kBegin + v3 + "get_weather" + fence + arguments + "\n```" + kCallEnd + "\n" + v3 + "now" + fence + "{}\n```" +
           kCallEnd + kEnd,
       kBegin + v3 + "get_weather" + fence + "{\"days\": many"},
      {"deepseekv31", deepseek,
       kBegin + kCall + "get_weather" + kSeparator + arguments + kCallEnd + kCall + "now" + kSeparator + "{}" +
           kCallEnd + kEnd,
       kBegin + kCall + "get_weather" + kSeparator + "{\"days\": many"},
      {"kimi_k2",
       {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>", "<|tool_call_end|>"},
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>" +
           arguments +
           "<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
           "<|tool_calls_section_end|>",
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"days\": "
       "many"},
      {"minimax-m2",
       {"<minimax:tool_call>", "</minimax:tool_call>"},
       "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">K\"o</parameter>\n"
       "<parameter name=\"days\">3</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>",
       "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"days\">many"},
  };
}

// A server whose model reasons first, or one whose model cannot.
LiveServer::Parts parts_of(const Format& format, bool reasons, bool opened = true) {
  std::vector<std::string> tags = format.tags;
  if (reasons) tags.insert(tags.end(), {"<think>", "</think>"});
  const std::string end = reasons && opened ? "<think>" : "";
  return scripted("{% for m in messages %}{{ m.content }}{% endfor %}" + end, tags);
}

ServiceOptions options_of(const Format& format, bool reasons) {
  ServiceOptions options;
  options.reasoning_parser = reasons ? "qwen3" : "none";
  options.tool_call_parser = format.name;
  return options;
}

json::array functions_of(const json::object& message) {
  json::array functions;
  if (const json::value* calls = message.if_contains("tool_calls")) {
    for (const json::value& call : calls->as_array()) functions.push_back(call.at("function"));
  }
  for (json::value& function : functions) {
    json::value& arguments = function.at("arguments");
    arguments = json::parse(arguments.as_string());
  }
  return functions;
}

const json::object kWeatherCall{{"name", "get_weather"}, {"arguments", {{"city", "K\"o"}, {"days", 3}}}};
const json::object kNowCall{{"name", "now"}, {"arguments", json::object()}};

TEST(ForcedCalls, AModelThatWantsToCallIsLet) {
  for (const Format& format : formats()) {
    SCOPED_TRACE(format.name);
    const LiveServer server(parts_of(format, false), options_of(format, false));
    std::string reason;
    json::object message = chat(server, request(format.both, with_tools({{"tool_choice", "required"}})), &reason);
    EXPECT_EQ(functions_of(message), (json::array{kWeatherCall, kNowCall}));
    EXPECT_EQ(reason, "tool_calls");
    EXPECT_FALSE(essence(message).contains("content")) << message;
    message = chat(server, request(format.both, named("get_weather")), &reason);
    EXPECT_EQ(functions_of(message), json::array{kWeatherCall}) << "the named one, once";
    EXPECT_EQ(reason, "tool_calls");
  }
}

TEST(ForcedCalls, AModelThatReasonsCallsBehindIt) {
  for (const Format& format : formats()) {
    SCOPED_TRACE(format.name);
    const LiveServer server(parts_of(format, true), options_of(format, true));
    const json::object message =
        chat(server, request("I must.</think>" + format.both, with_tools({{"tool_choice", "required"}})));
    EXPECT_EQ(message.at("reasoning_content"), "I must.");
    EXPECT_EQ(functions_of(message), (json::array{kWeatherCall, kNowCall}));
  }
}

// A call ends reasoning, so it must be one that was asked for, in reasoning too.
TEST(KnownProblemT24, NoOtherCallEndsReasoning) {
  const std::string closes(200, '}');
  for (const Format& format : formats()) {
    for (const bool opened : {true, false}) {
      SCOPED_TRACE(format.name);
      const LiveServer server(parts_of(format, true, opened), options_of(format, true));
      const std::string begin = opened ? "Hm." : "<think>Hm.";
      for (const std::string& wanted : {begin + format.both, format.both}) {
        const json::object message = chat(server, request(wanted + closes, named("now")));
        EXPECT_EQ(functions_of(message), json::array{kNowCall}) << wanted;
        EXPECT_FALSE(essence(message).contains("content")) << message;
      }
      const json::object message = chat(server, request(begin + format.both, named("get_weather")));
      EXPECT_EQ(functions_of(message), json::array{kWeatherCall}) << "this one may";
      EXPECT_EQ(message.at("reasoning_content"), "Hm.");
    }
  }
}

// Whatever the model wants to say. It closes what it can, for a text without end would not be one answer.
TEST(ForcedCalls, AModelThatDoesNotWantToCallHasTo) {
  const std::string closes(200, '}');
  for (const Format& format : formats()) {
    SCOPED_TRACE(format.name);
    const LiveServer server(parts_of(format, false), options_of(format, false));
    for (const std::string& wanted : {"I would rather not. " + closes, closes}) {
      std::string reason;
      const json::object message = chat(server, request(wanted, named("now")), &reason);
      EXPECT_EQ(functions_of(message), json::array{kNowCall});
      EXPECT_EQ(reason, "tool_calls");
    }
    const json::array calls = functions_of(chat(server, request(format.many + closes, named("get_weather"))));
    ASSERT_EQ(calls.size(), 1u);
    EXPECT_TRUE(calls[0].at("arguments").at("days").is_int64()) << "as the schema says: " << calls;
  }
}

TEST(ForcedCalls, AnthropicsAnyAndToolAreTheSame) {
  for (const Format& format : formats()) {
    SCOPED_TRACE(format.name);
    const LiveServer server(parts_of(format, false), options_of(format, false));
    const json::object asked{
        {"max_tokens", 2000},
        {"temperature", 0},
        {"messages", request(format.both).at("messages")},
        {"tools", json::parse(R"([{"name":"get_weather","input_schema":{"type":"object","properties":
                                 {"city":{"type":"string"},"days":{"type":"integer"}}}},
                                 {"name":"now","input_schema":{"type":"object"}}])")},
        {"tool_choice", json::object{{"type", "any"}}}};
    const json::value message = server.ask("/v1/messages", asked);
    const json::array& content = message.at("content").as_array();
    ASSERT_EQ(content.size(), 2u) << message;
    EXPECT_EQ(content[0].at("input"), kWeatherCall.at("arguments"));
    EXPECT_EQ(content[1].at("name"), "now");
    EXPECT_EQ(message.at("stop_reason"), "tool_use");
  }
}

}  // namespace
}  // namespace carpool
