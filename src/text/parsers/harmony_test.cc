// gpt-oss: channels, recipients, and that no control token ever leaks.
#include "text/parsers/harmony.h"

#include <gtest/gtest.h>

#include "text/parsers/parser_test_util.h"

namespace carpool {
namespace {

using Calls = std::vector<std::pair<std::string, std::string>>;

ParseCase oss() {
  return {format_of("gpt-oss", "auto"), functions_of(R"({"find": {"text": {"type": "string"}}, "now": {}})")};
}

TEST(Harmony, AnalysisIsReasoningAndFinalIsContent) {
  const std::string text =
      "<|channel|>analysis<|message|>Think \xf0\x9f\xa4\x94 <b>.<|end|><|start|>assistant<|channel|>final<|message|>It "
      "is < 3.<|return|>";
  EXPECT_EQ(parse_all_ways(oss(), text), (Parsed{"Think \xf0\x9f\xa4\x94 <b>.", "It is < 3."}));
  parse_every_beginning(oss(), text);
  ParseCase joined = oss();
  joined.separate = false;
  EXPECT_EQ(parse_all_ways(joined, text), (Parsed{"", "Think \xf0\x9f\xa4\x94 <b>.\n\nIt is < 3."}));
}

TEST(Harmony, CallsHaveTheirRecipientBeforeOrBehindTheChannel) {
  const std::string reasoning = "<|channel|>analysis<|message|>Look.<|end|>";
  for (const char* call :
       {"<|start|>assistant<|channel|>commentary to=functions.find "
        "<|constrain|>json<|message|>{\"text\":\"x\"}<|call|>",
        "<|start|>assistant to=functions.find<|channel|>commentary json<|message|>{\"text\":\"x\"}<|call|>",
        "<|start|>assistant to=functions.find<|channel|>commentary <|constrain|>json<|message|>{\"text\":\"x\"}"}) {
    EXPECT_EQ(parse_all_ways(oss(), reasoning + call), (Parsed{"Look.", "", {{"find", R"({"text":"x"})"}}})) << call;
    parse_every_beginning(oss(), reasoning + call);
  }
  EXPECT_EQ(parse_all_ways(oss(), " to=functions.now<|channel|>commentary<|message|><|call|>").calls,
            (Calls{{"now", "{}"}}));
}

TEST(Harmony, CommentaryWithoutRecipientIsContent) {
  EXPECT_EQ(parse_all_ways(oss(),
                           "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant<|channel|>commentary "
                           "to=functions.now <|constrain|>json<|message|>{}<|call|>"),
            (Parsed{"", "I will look.", {{"now", "{}"}}}));
}

TEST(Harmony, MessagesOfOneKindAreParagraphs) {
  EXPECT_EQ(
      parse_all_ways(oss(),
                     "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>"
                     "<|start|>assistant<|channel|>final<|message|>c"),
      (Parsed{"a\n\nb", "c"}));
}

TEST(Harmony, PlainTextIsContent) {
  EXPECT_EQ(parse_all_ways(oss(), "Just <text> to=you."), (Parsed{"", "Just <text> to=you."}));
  EXPECT_EQ(parse_all_ways(oss(), ""), Parsed{});
}

TEST(Harmony, BrokenCallsAreContentWithoutTags) {
  const std::string head = "<|channel|>commentary to=functions.find <|constrain|>json<|message|>";
  EXPECT_EQ(parse_all_ways(oss(), head + "{\"text\": <|call|>"), (Parsed{"", "{\"text\": ", {}, 0, 1}));
  EXPECT_EQ(parse_all_ways(oss(), head + "{\"a\":1}{\"a\":2}<|call|>"),
            (Parsed{"", "", {{"find", R"({"a":1})"}}, 0, 1}));
  EXPECT_EQ(parse_all_ways(oss(), "<|channel|>commentary to=functions.wipe<|message|>{}<|call|>"),
            (Parsed{"", "", {}, 1}));
  ParseCase cut = oss();
  cut.complete = false;
  EXPECT_EQ(parse_all_ways(cut, head + "{\"text\": \"x"), (Parsed{"", "{\"text\": \"x", {}, 0, 1}));
}

TEST(Harmony, NoBeginningLeaksATag) {
  const std::string text =
      "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|message|><|constrain|>c<|"
      "end|>"
      "<|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>junk<|end|>junk";
  for (const bool complete : {false, true}) {
    ParseCase c = oss();
    c.complete = complete;
    for (size_t size = 0; size <= text.size(); ++size) {
      const Parsed got = parse(c, {text.substr(0, size)});
      for (const std::string_view tag : kHarmonyTags) {
        EXPECT_EQ((got.content + got.reasoning).find(tag), std::string::npos) << text.substr(0, size);
      }
    }
  }
}

}  // namespace
}  // namespace carpool
