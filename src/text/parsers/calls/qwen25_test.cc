// JSON calls of Qwen2.5, Qwen3 and Hermes, cut everywhere.
#include <gtest/gtest.h>

#include "text/parsers/parser_test_util.h"

namespace carpool {
namespace {

using Calls = std::vector<std::pair<std::string, std::string>>;

ParseCase qwen() {
  return {format_of("none", "qwen25"), functions_of(R"({"find": {"text": {"type": "string"}}, "now": {}})")};
}

TEST(Qwen25, CallsKeepTheirArgumentsAsWritten) {
  const std::string text =
      "Let me see.\n<tool_call>\n{\"name\": \"find\", \"arguments\": {\"text\": \"gr\xc3\xbc\xc3\x9f \xf0\x9f\x9a\x97 "
      "\\\"q\\\"\", "
      "\"n\": 1.0}}\n</tool_call>\n<tool_call>\n{\"arguments\": {}, \"name\": \"now\"}\n</tool_call>";
  EXPECT_EQ(
      parse_all_ways(qwen(), text),
      (Parsed{"",
              "Let me see.",
              {{"find", "{\"text\": \"gr\xc3\xbc\xc3\x9f \xf0\x9f\x9a\x97 \\\"q\\\"\", \"n\": 1.0}"}, {"now", "{}"}}}));
  parse_every_beginning(qwen(), text);
}

TEST(Qwen25, AStringMayHoldTheClosingTag) {
  const std::string text =
      R"(<tool_call>{"name": "find", "arguments": {"text": "a </tool_call> \" </tool_call> b"}}</tool_call> after)";
  EXPECT_EQ(parse_all_ways(qwen(), text),
            (Parsed{"", "after", {{"find", R"({"text": "a </tool_call> \" </tool_call> b"})"}}}));
}

TEST(Qwen25, ArgumentsMayBeAStringOrMissing) {
  const std::pair<const char*, const char*> table[] = {
      {R"({"name": "now"})", "{}"},
      {R"({"name": "now", "arguments": null})", "{}"},
      {R"({"name": "now", "arguments": ""})", "{}"},
      {R"({"name": "now", "arguments": "{\"a\": 1}"})", R"({"a": 1})"},
      {R"({"name": "now", "parameters": {"a": [1, {"b": 2}]}})", R"({"a": [1, {"b": 2}]})"}};
  for (const auto& [call, arguments] : table) {
    EXPECT_EQ(parse_all_ways(qwen(), "<tool_call>" + std::string(call) + "</tool_call>").calls,
              (Calls{{"now", arguments}}))
        << call;
  }
}

TEST(Qwen25, WhatIsNoCallIsContent) {
  for (const char* body :
       {"not json", "{\"name\": \"find\"", "{\"name\": 7}", "[]", "{\"name\": \"now\", \"arguments\": 5}",
        "{'name': 'now'}", "{\"name\": \"now\", \"name\": \"now\"}"}) {
    const std::string text = "<tool_call>" + std::string(body) + "</tool_call>";
    EXPECT_EQ(parse_all_ways(qwen(), text), (Parsed{"", text, {}, 0, 1})) << body;
  }
}

// A quote that never ends hides all tags behind it until the answer's end.
TEST(Qwen25, AnOpenQuoteLosesNoLaterCall) {
  const std::string broken = R"(<tool_call>{"name": "find, "arguments": {}}</tool_call>)";
  const std::string good = R"(<tool_call>{"name": "now", "arguments": {}}</tool_call>)";
  EXPECT_EQ(parse_all_ways(qwen(), broken + good), (Parsed{"", broken, {{"now", "{}"}}, 0, 1}));
}

TEST(Qwen25, ACompleteObjectNeedsNoClosingTag) {
  ParseCase cut = qwen();
  cut.complete = false;
  EXPECT_EQ(parse_all_ways(cut, R"(<tool_call>{"name": "now", "arguments": {}})").calls, (Calls{{"now", "{}"}}));
  EXPECT_EQ(parse_all_ways(cut, "<tool_call>{\"name\": \"now\", \"arguments\": {}}\n</tool_").calls,
            (Calls{{"now", "{}"}}));
  EXPECT_EQ(parse_all_ways(cut, R"(<tool_call>{"name": "now", "arguments": {})").calls, Calls{});
}

TEST(Qwen25, SeveralObjectsInOneBlockAreSeveralCalls) {
  EXPECT_EQ(
      parse_all_ways(qwen(), "<tool_call>{\"name\": \"now\"}\n{\"name\": \"find\", \"arguments\": {}}</tool_call>")
          .calls,
      (Calls{{"now", "{}"}, {"find", "{}"}}));
}

}  // namespace
}  // namespace carpool
