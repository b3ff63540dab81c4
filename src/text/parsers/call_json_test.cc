// Arguments out of text: what counts as a string, a number, or Python.
#include "text/parsers/call_json.h"

#include <gtest/gtest.h>

namespace carpool {
namespace {

std::string typed(const std::string& text, const char* schema) {
  const ToolFunction function{"f", {{"properties", json::object{{"x", json::parse(schema)}}}}};
  const std::string got = typed_argument(text, &function, "x");
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
      {R"({"type":["string","null"]})", "\"null\"", "\"null\""},
      {R"({"type":["string","integer"]})", "\"5\"", "\"5\""},
      {R"({"const":"5"})", "5", "\"5\""},
      {R"({"allOf":[{"type":["string","integer"]},{"enum":["1","b"]}]})", "1", "\"1\""},
      {R"({"type":"string","nullable":true})", "null", "null"},
      {"{}", "hello", "\"hello\""},
      {"{}", "[1]", "[1]"},
      {"true", "1", "1"},
  };
  for (const auto& row : table) {
    EXPECT_EQ(typed(row.text, row.schema), row.json) << row.schema << " " << row.text;
  }
}

TEST(CallJson, TypesOfAnArgumentAreFoundThroughItsFunctionsSchema) {
  using T = ArgumentTypes;
  const struct {
    const char* parameters;
    unsigned types;
  } table[] = {
      {R"({"properties":{"x":{"$ref":"#/$defs/s"}},"$defs":{"s":{"type":"string"}}})", T::kString},
      {R"({"properties":{"x":{"$ref":"#/$defs/a~1b/0"}},"$defs":{"a/b":[{"type":"null"}]}})", T::kNull},
      {R"({"properties":{"x":{"$ref":"#/$defs/none"}}})", T::kAny},
      {R"({"properties":{"x":{"$ref":"#"}},"type":"object"})", T::kObject},
      {R"({"$ref":"#/$defs/f","$defs":{"f":{"properties":{"x":{"type":"boolean"}}}}})", T::kBoolean},
      {R"({"allOf":[{"properties":{"x":{"type":["string","null"]}}},{"properties":{"x":{"type":"string"}}}]})",
       T::kString},
      {R"({"anyOf":[{"properties":{"x":{"type":"array"}}},{"properties":{"x":{"type":"string"}}}]})",
       T::kString | T::kArray},
      {R"({"anyOf":[{"properties":{"x":{"type":"array"}}},{}]})", T::kAny},
      {R"({"properties":{"x":{"type":"string","const":1}}})", T::kAny},
      {R"({"properties":{"y":{"type":"string"}}})", T::kAny},
      {R"({"$ref":"#"})", T::kAny},
  };
  for (const auto& row : table) {
    const json::value parameters = json::parse(row.parameters);
    EXPECT_EQ(argument_types(parameters.as_object(), "x"), row.types) << row.parameters;
  }
}

TEST(CallJson, DeepSchemasAndValuesAreBounded) {
  std::string schema = "{\"type\":\"integer\"}", value = "1";
  for (int i = 0; i < 30; ++i) schema = "{\"anyOf\":[" + schema + "]}";
  json::parse_options deep;
  deep.max_depth = 200;
  const json::value parsed = json::parse(schema, {}, deep);
  const ToolFunction function{"f", {{"properties", json::object{{"x", parsed}}}}};
  EXPECT_EQ(typed_argument("5", &function, "x"), "5");
  // Each schema has two ways to the next: understood in bounded time.
  json::object doubling;
  for (int i = 0; i < 60; ++i) {
    const json::object next{{"$ref", "#/$defs/" + std::to_string(i + 1)}};
    doubling[std::to_string(i)] = json::object{{"anyOf", json::array{next, next}}};
  }
  const json::object hostile{{"properties", json::object{{"x", json::object{{"$ref", "#/$defs/0"}}}}},
                             {"$defs", doubling}};
  EXPECT_EQ(argument_types(hostile, "x"), ArgumentTypes::kAny);
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
