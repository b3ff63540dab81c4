// Qwen3-Coder's calls, cut everywhere.
#include <gtest/gtest.h>

#include "text/parsers/parser_test_util.h"

namespace carpool {
namespace {

using Calls = std::vector<std::pair<std::string, std::string>>;

ParseCase coder() {
  return {
      format_of("none", "qwen3_coder"),
      functions_of(R"({"write": {"path": {"type": "string"}, "text": {"type": "string"}, "lines": {"type": "integer"}},
                           "now": {}})")};
}

TEST(Qwen3Coder, ParametersAreTypedAndKeepTheirInnerLineBreaks) {
  const std::string text =
      "Writing.\n\n<tool_call>\n<function=write>\n<parameter=path>\n/tmp/\xe4\xbd\xa0\n</"
      "parameter>\n<parameter=text>\n\nif a < b:\n"
      "  "
      "pass\n\n</parameter>\n<parameter=lines>\n2\n</parameter>\n</function>\n</"
      "tool_call>\n<tool_call>\n<function=now>\n"
      "</function>\n</tool_call>";
  EXPECT_EQ(
      parse_all_ways(coder(), text),
      (Parsed{"",
              "Writing.",
              {{"write", "{\"path\": \"/tmp/\xe4\xbd\xa0\", \"text\": \"\\nif a < b:\\n  pass\\n\", \"lines\": 2}"},
               {"now", "{}"}}}));
  parse_every_beginning(coder(), text);
}

TEST(Qwen3Coder, TheOuterTagsMayBeMissing) {
  EXPECT_EQ(parse_all_ways(coder(), "a\n<function=now>\n</function>\n</tool_call>"),
            (Parsed{"", "a", {{"now", "{}"}}}));
}

TEST(Qwen3Coder, ValuesMayHoldTags) {
  EXPECT_EQ(parse_all_ways(
                coder(),
                "<tool_call><function=write><parameter=text></function></tool_call></parameter></function></tool_call>")
                .calls,
            (Calls{{"write", R"({"text": "</function></tool_call>"})"}}));
}

TEST(Qwen3Coder, BrokenOnesAreContentOrLoseThatParameter) {
  EXPECT_EQ(parse_all_ways(coder(), "<function=no end</function>"),
            (Parsed{"", "<function=no end</function>", {}, 0, 1}));
  EXPECT_EQ(
      parse_all_ways(coder(), "<function=write><parameter=>1</parameter><parameter=lines>1</parameter></function>"),
      (Parsed{"", "", {{"write", R"({"lines": 1})"}}, 0, 1}));
}

}  // namespace
}  // namespace carpool
