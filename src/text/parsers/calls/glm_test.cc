// The formats of GLM-4.5 to GLM-5.2: both with and without line breaks, typed by the schema, cut everywhere.
#include <gtest/gtest.h>

#include "text/parsers/parser_test_util.h"

namespace carpool {
namespace {

const std::vector<ToolFunction>& functions() {
  static const std::vector<ToolFunction> made = functions_of(R"({
    "get_weather": {"city": {"type": "string"}, "days": {"type": "integer"}, "units": {"enum": ["metric", "imperial"]}},
    "set_light": {"on": {"type": "boolean"}, "level": {"anyOf": [{"type": "number"}, {"type": "null"}]},
                  "rooms": {"type": "array"}, "extra": {"type": "object"}},
    "now": {}})");
  return made;
}

ParseCase glm(const char* calls = "glm47") { return {format_of("none", calls), functions()}; }

TEST(Glm, OneCallWithTypedArguments) {
  const std::string text =
      "<tool_call>get_weather<arg_key>city</arg_key><arg_value>K\xc3\xb6ln 50667</arg_value>"
      "<arg_key>days</arg_key><arg_value>3</arg_value><arg_key>units</arg_key><arg_value>metric</arg_value></"
      "tool_call>";
  for (const char* name : {"glm47", "glm45"}) {
    const Parsed got = parse_all_ways(glm(name), text);
    EXPECT_EQ(
        got,
        (Parsed{"", "", {{"get_weather", "{\"city\": \"K\xc3\xb6ln 50667\", \"days\": 3, \"units\": \"metric\"}"}}}));
  }
}

TEST(Glm, LineBreaksAndContentBetweenCalls) {
  const std::string text =
      "I will look.\n\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value> Rome </arg_value>\n</tool_call>\n"
      "<tool_call>\nset_light\n<arg_key> on </arg_key>\n<arg_value>true</arg_value>\n<arg_key>level</arg_key>\n"
      "<arg_value>0.5</arg_value>\n</tool_call>\nDone.\n";
  const Parsed got = parse_all_ways(glm("glm45"), text);
  EXPECT_EQ(got, (Parsed{"",
                         "I will look.\n\nDone.\n",
                         {{"get_weather", R"({"city": " Rome "})"}, {"set_light", R"({"on": true, "level": 0.5})"}}}));
  parse_every_beginning(glm("glm45"), text);
}

TEST(Glm, ValuesMayHoldWhatLooksLikeTags) {
  const std::string text =
      "<tool_call>get_weather<arg_key>city</arg_key><arg_value>a < b && </tool_call> <arg_key>\n"
      "{\"x\": \"</arg_valu\"}</arg_value></tool_call>";
  const Parsed got = parse_all_ways(glm(), text);
  ASSERT_EQ(got.calls.size(), 1u);
  EXPECT_EQ(got.calls[0].second, "{\"city\": \"a < b && </tool_call> <arg_key>\\n{\\\"x\\\": \\\"</arg_valu\\\"}\"}");
  EXPECT_EQ(got.content, "");
}

TEST(Glm, UnfinishedCallsAreContentAndNeverCalls) {
  const std::string call = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value>";
  ParseCase cut = glm();
  cut.complete = false;
  EXPECT_EQ(parse_all_ways(cut, "Well. " + call), (Parsed{"", "Well. " + call, {}, 0, 1}));
  EXPECT_EQ(parse_all_ways(glm(), "Well. " + call), (Parsed{"", "Well.", {{"get_weather", R"({"city": "Rome"})"}}}))
      << "the model ended it itself, behind a whole argument";
  const std::string half = call.substr(0, call.size() - 5);
  EXPECT_EQ(parse_all_ways(glm(), half), (Parsed{"", half, {}, 0, 1}));
  parse_every_beginning(glm(), "Well. " + call + "</tool_call> and more");
}

TEST(Glm, UnknownFunctionsAreDroppedAndCounted) {
  EXPECT_EQ(parse_all_ways(glm(), "a <tool_call>format_disk</tool_call> b"), (Parsed{"", "a b", {}, 1}));
}

TEST(Glm, BlocksWithoutANameAreContent) {
  for (const char* block : {"<tool_call></tool_call>", "<tool_call>two words</tool_call>",
                            "<tool_call><arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"}) {
    EXPECT_EQ(parse_all_ways(glm(), block), (Parsed{"", block, {}, 0, 1})) << block;
  }
}

TEST(Glm, OfEqualKeysTheLastCounts) {
  EXPECT_EQ(
      parse_all_ways(glm(),
                     "<tool_call>get_weather<arg_key>days</arg_key><arg_value>1</arg_value><arg_key>days</arg_key>"
                     "<arg_value>2</arg_value></tool_call>")
          .calls,
      (std::vector<std::pair<std::string, std::string>>{{"get_weather", R"({"days": 2})"}}));
}

TEST(Glm, MoreCallsThanAskedForAreCounted) {
  ParseCase one = glm();
  one.max_calls = 1;
  EXPECT_EQ(parse_all_ways(one, "<tool_call>now</tool_call><tool_call>now</tool_call>"),
            (Parsed{"", "", {{"now", "{}"}}, 0, 0, 1}));
  std::string many;
  for (int i = 0; i < kMaxCalls + 3; ++i) many += "<tool_call>now</tool_call>";
  const Parsed got = parse(glm(), {many});
  EXPECT_EQ(got.calls.size(), static_cast<size_t>(kMaxCalls));
  EXPECT_EQ(got.surplus, 3);
}

TEST(Glm, WithoutToolsACallIsText) {
  ParseCase plain = glm();
  plain.tools = false;
  EXPECT_EQ(parse_all_ways(plain, "<tool_call>now</tool_call>").content, "<tool_call>now</tool_call>");
}

TEST(Glm, ACallWithoutEndIsBounded) {
  std::string text = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>";
  text.resize(kMaxCallBytes + 100, 'x');
  text += "<tool_call>now</tool_call>";
  const Parsed got = parse(glm(), {text});
  EXPECT_EQ(got.calls, (std::vector<std::pair<std::string, std::string>>{{"now", "{}"}}));
  EXPECT_EQ(got.content.size(), kMaxCallBytes + 100);
  EXPECT_EQ(got.broken, 1);
}

TEST(Glm, ManyUnfinishedCallsTakeLittleTime) {
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += "<tool_call>get_weather<arg_key>city</arg_key><arg_value></tool_call>";
  const Parsed got = parse(glm(), {text});
  EXPECT_TRUE(got.calls.empty());
  EXPECT_EQ(got.content.size(), text.size());
}

}  // namespace
}  // namespace carpool
