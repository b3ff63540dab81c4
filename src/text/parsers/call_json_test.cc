// Arguments out of text: what counts as a string, a number, or Python.
#include "text/parsers/call_json.h"

#include <gtest/gtest.h>

namespace carpool {
namespace {

std::string typed(const std::string& text, const char* schema) {
  const json::value value = json::parse(schema);
  const std::string got = typed_argument(text, &value);
  EXPECT_NO_THROW(parse_json(got, "argument")) << got;
  return got;
}

TEST(CallJson, TextIsTypedByTheSchema) {
  const struct {
    const char *schema, *text, *json;
  } table[] = {
      {R"({"type":"string"})", "5", "\"5\""},
      {R"({"type":"string"})", " {\"a\": 1}\n", "\" {\\\"a\\\": 1}\\n\""},
      {R"({"enum":["a","b"]})", "true", "\"true\""},
      {R"({"anyOf":[{"type":"string"},{"type":"null"}]})", "null", "null"},
      {R"({"anyOf":[{"type":"string"},{"type":"null"}]})", "nul", "\"nul\""},
      {R"({"oneOf":[{"type":"string"},{"type":"integer"}]})", "12", "12"},
      {R"({"oneOf":[{"type":"string"},{"type":"integer"}]})", "1.5", "\"1.5\""},
      {R"({"type":"integer"})", " 5 ", "5"},
      {R"({"type":"integer"})", "\"5\"", "5"},
      {R"({"type":"integer"})", "1e999", "\"1e999\""},
      {R"({"type":"integer"})", "five", "\"five\""},
      {R"({"type":"number"})", "-0.50", "-0.50"},
      {R"({"type":"boolean"})", "False", "false"},
      {R"({"type":"boolean"})", "1", "1"},
      {R"({"type":"array"})", "['it\\'s', 'say \"x\"', None]", "[\"it's\", \"say \\\"x\\\"\", null]"},
      {R"({"type":"array"})", "('a', 1)", "[\"a\", 1]"},
      {R"({"type":"object"})", "\"{\\\"a\\\": 1}\"", "{\"a\": 1}"},
      {R"({"type":"object"})", "{'a': {'b': True}}", "{\"a\": {\"b\": true}}"},
      {R"({"const":3})", "3", "3"},
      {R"({"type":["integer","null"]})", "None", "null"},
      {"{}", "hello", "\"hello\""},
      {"{}", "[1]", "[1]"},
      {"true", "1", "1"},
  };
  for (const auto& row : table) {
    EXPECT_EQ(typed(row.text, row.schema), row.json) << row.schema << " " << row.text;
  }
}

TEST(CallJson, DeepSchemasAndValuesAreBounded) {
  std::string schema = "{\"type\":\"integer\"}", value = "1";
  for (int i = 0; i < 30; ++i) schema = "{\"anyOf\":[" + schema + "]}";
  json::parse_options deep;
  deep.max_depth = 200;
  const json::value parsed = json::parse(schema, {}, deep);
  EXPECT_EQ(typed_argument("5", &parsed), "5");
  for (int i = 0; i < 1000; ++i) value = "[" + value + "]";
  EXPECT_EQ(typed(value, R"({"type":"array"})"), "\"" + value + "\"");
}

TEST(CallJson, AnObjectIsTakenOffTheFront) {
  std::string_view text = " \n{\"a\": \"}\\\"{\"} {\"b\": 1}x";
  EXPECT_EQ(take_object(text), R"({"a": "}\"{"})");
  EXPECT_EQ(take_object(text), R"({"b": 1})");
  EXPECT_EQ(text, "x");
  for (const char* bad : {"", "{", "[1]", "{\"a\":1", "{'a':1}", "{\"a\":1,\"a\":2}", "{\"a\":NaN}"}) {
    std::string_view rest = bad;
    EXPECT_FALSE(take_object(rest)) << bad;
    EXPECT_EQ(rest, bad);
  }
}

TEST(CallJson, MembersAreSlices) {
  const std::vector<JsonMember> members = members_of(R"({ "a" : 1.0 , "b\n":{"c":[1,"]"]},"d":"x,y" })");
  ASSERT_EQ(members.size(), 3u);
  EXPECT_EQ(members[0].key, "a");
  EXPECT_EQ(members[0].value, "1.0");
  EXPECT_EQ(members[1].key, "b\n");
  EXPECT_EQ(members[1].value, R"({"c":[1,"]"]})");
  EXPECT_EQ(members[2].value, "\"x,y\"");
  EXPECT_TRUE(members_of("{}").empty());
}

}  // namespace
}  // namespace carpool
