// Structure behind reasoning, from models that would rather write something else: whatever they want, content is what
// was asked for.
#include <gtest/gtest.h>

#include "server/chat_tools_test_util.h"
#include "text/parsers/harmony.h"

namespace carpool {
namespace {

// What closes as much as it can, for a model that has said all it wants says the first token that may come, over and
// over.
const std::string kCloses(100, '}');

json::object wish() {
  return {{"response_format", json::parse(R"({"type":"json_schema","json_schema":{"name":"s","schema":{"type":"object",
      "properties":{"a":{"const":1}},"required":["a"],"additionalProperties":false}}})")}};
}

// Expects that the content is {"a": 1}; the reasoning.
std::string reasoning_before_structure(const LiveServer& server, json::object body) {
  std::string reason;
  const json::object message = chat(server, std::move(body), &reason);
  EXPECT_EQ(reason, "stop") << message;
  const json::value* content = message.if_contains("content");
  if (!content || !content->is_string()) {
    ADD_FAILURE() << message;
    return "";
  }
  json::error_code error;
  EXPECT_EQ(json::parse(content->get_string(), error), (json::object{{"a", 1}})) << message;
  const json::value* reasoning = message.if_contains("reasoning_content");
  return reasoning && reasoning->is_string() ? std::string(reasoning->get_string()) : "";
}

LiveServer tagged_server(const char* chat_template, const char* reasoning_parser) {
  ServiceOptions options;
  options.reasoning_parser = reasoning_parser;
  return LiveServer(scripted(chat_template, kGlmTags), options);
}

// A template that leaves it to the model to open reasoning.
constexpr const char* kNoTag = "{% for m in messages %}{{ m.content }}{% endfor %}";

TEST(KnownProblemT24, AnAnswerWithoutATagIsTheStructure) {
  for (const char* parser : {"glm45", "qwen3"}) {
    SCOPED_TRACE(parser);
    const LiveServer server = tagged_server(kNoTag, parser);
    reasoning_before_structure(server, request("Free text, not in a tag.</think>{\"a\": 1}" + kCloses, wish()));
    EXPECT_EQ(reasoning_before_structure(server, request("{\"a\": 1}", wish())), "");
    EXPECT_EQ(reasoning_before_structure(server, request("<think>Hm.</think>\n\n{\"a\": 1}", wish())), "Hm.");
    EXPECT_EQ(reasoning_before_structure(server, request("<think>Hm.</think>Free text." + kCloses, wish())), "Hm.");
  }
  const LiveServer server = tagged_server(kNoTag, "deepseek-r1");
  EXPECT_EQ(reasoning_before_structure(server, request("Hm.</think>{\"a\": 1}", wish())), "Hm.")
      << "which begins within reasoning";
}

TEST(KnownProblemT24, AMessageThatIsContinuedIsTheStructure) {
  for (const char* parser : {"glm45", "qwen3", "deepseek-r1"}) {
    for (const char* chat_template : {kGlmTemplate, kNoTag}) {
      SCOPED_TRACE(parser);
      const LiveServer server = tagged_server(chat_template, parser);
      for (const char* script : {"Free text.</think>{\"a\": 1}", "{\"a\": 1}", "<think>Hm.</think>{\"a\": 1}"}) {
        json::object body = request("", wish());
        body["messages"] = json::array{json::object{{"role", "user"}, {"content", "Go on."}},
                                       json::object{{"role", "assistant"}, {"content", script_of(script + kCloses)}}};
        json::object openai = body;
        openai["continue_final_message"] = true;
        EXPECT_EQ(reasoning_before_structure(server, openai), "") << script;
        body["output_format"] = json::object{{"type", "json_schema"},
                                             {"schema", body.at("response_format").at("json_schema").at("schema")}};
        body.erase("response_format");
        const json::value message = server.ask("/v1/messages", body);
        const json::array& content = message.at("content").as_array();
        ASSERT_EQ(content.size(), 1u) << message;
        json::error_code error;
        EXPECT_EQ(json::parse(content[0].at("text").as_string(), error), (json::object{{"a", 1}})) << message;
      }
    }
  }
}

constexpr const char* kOss =
    "{# <|channel|> <|message|> functions. #}{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}";

LiveServer oss_server() { return LiveServer(scripted(kOss, {std::begin(kHarmonyTags), std::end(kHarmonyTags)})); }

TEST(KnownProblemT24, NoChannelLetsFreeTextThrough) {
  const LiveServer server = oss_server();
  const std::string analysis = "<|channel|>analysis<|message|>Hm.", next = "<|end|><|start|>assistant";
  const std::string end = kCloses + next + "<|channel|>final<|message|>{\"a\": 1}";  // of reasoning, where it is that
  for (const std::string& begin : {std::string(), analysis, analysis + next}) {
    for (const char* wanted :
         {"<|channel|>final<|message|>{\"a\": 1}", "<|channel|>final <|constrain|>json<|message|>{\"a\": 1}",
          "<|channel|>final<|message|>Free text.", "<|channel|>commentary<|message|>Free text.",
          "<|message|>Free text.", "<|end|><|start|>assistant<|channel|>commentary<|message|>Free text.", "<|return|>",
          "<|call|>Free"}) {
      SCOPED_TRACE(begin + wanted);
      const std::string reasoning = reasoning_before_structure(server, request(begin + wanted + end, wish()));
      EXPECT_EQ(reasoning.starts_with("Hm."), !begin.empty()) << reasoning;
    }
  }
  EXPECT_EQ(reasoning_before_structure(server, request("Free text." + end, wish())).find("Free"), std::string::npos);
  json::object body = request("", wish());
  body["continue_final_message"] = true;
  body["messages"] = json::array{json::object{{"role", "assistant"}, {"content", script_of("Free text." + kCloses)}}};
  EXPECT_EQ(reasoning_before_structure(server, body), "");
}

// The line breaks that may stand behind the closing tag are no part of what was asked for.
TEST(KnownProblemT24, AnExpressionIsTheWholeContent) {
  for (const char* parser : {"glm45", "qwen3"}) {
    const LiveServer server = tagged_server(kGlmTemplate, parser);
    const json::object message = chat(server, request("Hm.</think>\n\nabc", {{"regex", "[a-z]{3}"}}));
    EXPECT_EQ(message.at("content"), "abc") << parser;
    EXPECT_EQ(message.at("reasoning_content"), "Hm.") << parser;
  }
}

TEST(KnownProblemT24, AStringMayHoldWhatLooksLikeAHeader) {
  const LiveServer server = oss_server();
  const std::string text = R"("<|end|><|start|>assistant<|channel|>analysis<|message|>b")";
  const json::object any_string{
      {"response_format", json::parse(R"({"type":"json_schema","json_schema":{"schema":{"type":"string"}}})")}};
  EXPECT_EQ(chat(server, request("<|channel|>final<|message|>" + text, any_string)).at("content"), json::value(text));
}

}  // namespace
}  // namespace carpool
