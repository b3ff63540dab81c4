// MiniMax-M2's calls, cut everywhere.
#include <gtest/gtest.h>

#include "text/parsers/parser_test_util.h"

namespace carpool {
namespace {

ParseCase minimax() {
  return {format_of("qwen3", "minimax-m2"),
          functions_of(R"({"write": {"text": {"type": "string"}, "lines": {"type": "integer"}}, "now": {}})"), true,
          PromptEnd::kOpen};
}

TEST(MiniMaxM2, CallsOfOneBlockAfterReasoning) {
  const std::string text =
      "I write.\n</think>\n\n<minimax:tool_call>\n<invoke name=\"write\">\n<parameter name=\"text\">a \"> "
      "</invoke>\n\xe4\xbd\xa0\n"
      "</parameter>\n<parameter name=\"lines\">2</parameter>\n</invoke>\n<invoke "
      "name=\"now\">\n</invoke>\n</minimax:tool_call>";
  EXPECT_EQ(parse_all_ways(minimax(), text),
            (Parsed{"I write.",
                    "",
                    {{"write", "{\"text\": \"a \\\"> </invoke>\\n\xe4\xbd\xa0\\n\", \"lines\": 2}"}, {"now", "{}"}}}));
  parse_every_beginning(minimax(), text);
}

TEST(MiniMaxM2, ACallWithinReasoningEndsIt) {
  EXPECT_EQ(parse_all_ways(minimax(), "Go.\n<minimax:tool_call><invoke name=\"now\"></invoke></minimax:tool_call>"),
            (Parsed{"Go.", "", {{"now", "{}"}}}));
}

TEST(MiniMaxM2, BrokenOnesAreContent) {
  EXPECT_EQ(parse_all_ways(minimax(), "</think><invoke name=\"now</invoke>"),
            (Parsed{"", "<invoke name=\"now</invoke>", {}, 0, 1}));
}

}  // namespace
}  // namespace carpool
