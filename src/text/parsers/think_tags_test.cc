// Reasoning between tags: where it begins, where it ends, and what stays byte for byte.
#include <gtest/gtest.h>

#include "text/parsers/parser_test_util.h"

namespace carpool {
namespace {

ParseCase with(const char* reasoning, PromptEnd prompt = PromptEnd::kNeither, const char* calls = "none") {
  ParseCase c{format_of(reasoning, calls), functions_of(R"({"now": {}})")};
  c.prompt = prompt;
  return c;
}

TEST(ThinkTags, ThePromptOrTheAnswerOpensReasoning) {
  for (const char* name : {"glm45", "qwen3", "deepseek-r1"}) {
    for (const char* text : {"a</think>b", "<think>a</think>b", "\n<think>a</think>b"}) {
      EXPECT_EQ(parse_all_ways(with(name, PromptEnd::kOpen), text), (Parsed{"a", "b"})) << name << text;
    }
    EXPECT_EQ(parse_all_ways(with(name), "<think>a</think>b"), (Parsed{"a", "b"})) << name;
    EXPECT_EQ(parse_all_ways(with(name, PromptEnd::kClosed), "b"), (Parsed{"", "b"})) << name;
    parse_every_beginning(with(name, PromptEnd::kOpen), "<think>a \xf0\x9f\x9a\x97</think>b");
  }
  EXPECT_EQ(parse_all_ways(with("deepseek-r1"), "a</think>b"), (Parsed{"a", "b"})) << "R1 always reasons first";
  EXPECT_EQ(parse_all_ways(with("qwen3"), "b"), (Parsed{"", "b"}));
}

TEST(ThinkTags, Glm45KeepsEveryByte) {
  EXPECT_EQ(parse_all_ways(with("glm45", PromptEnd::kOpen), "\n a \n</think>\n\n b "), (Parsed{"\n a \n", "\n\n b "}));
  EXPECT_EQ(parse_all_ways(with("glm45"), " \n b "), (Parsed{"", " \n b "}));
}

TEST(ThinkTags, Qwen3AndR1SetTheirTagsOnLinesOfTheirOwn) {
  for (const char* name : {"qwen3", "deepseek-r1"}) {
    EXPECT_EQ(parse_all_ways(with(name, PromptEnd::kOpen), "\n a\n\n b \n</think>\n\n c \n"),
              (Parsed{"a\n\n b", "c \n"}))
        << name;
  }
}

TEST(ThinkTags, TagsInTheMiddleAreText) {
  EXPECT_EQ(parse_all_ways(with("qwen3"), "The tag <think> opens, </think> closes."),
            (Parsed{"", "The tag <think> opens, </think> closes."}));
  EXPECT_EQ(parse_all_ways(with("glm45", PromptEnd::kOpen), "a <think> b</think>c</think>d"),
            (Parsed{"a <think> b", "c</think>d"}));
}

TEST(ThinkTags, ReasoningThatIsNotSeparatedStaysInTheTextAsWritten) {
  for (const char* name : {"glm45", "qwen3"}) {
    ParseCase c = with(name, PromptEnd::kNeither, "glm47");
    c.separate = false;
    EXPECT_EQ(parse_all_ways(c, "\n<think>\na\n</think>\n\nb<tool_call>now</tool_call>"),
              (Parsed{"", "\n<think>\na\n</think>\n\nb", {{"now", "{}"}}}))
        << name;
  }
}

TEST(ThinkTags, PartsOfTagsAreTextInTheEnd) {
  EXPECT_EQ(parse_all_ways(with("glm45", PromptEnd::kOpen), "a</thin"), (Parsed{"a</thin"}));
  EXPECT_EQ(parse_all_ways(with("glm45"), "<thi"), (Parsed{"", "<thi"}));
  EXPECT_EQ(parse_all_ways(with("glm45", PromptEnd::kOpen), "<thi"), (Parsed{"<thi"}));
}

}  // namespace
}  // namespace carpool
