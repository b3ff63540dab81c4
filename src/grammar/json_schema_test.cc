// Keywords of JSON Schema: what their texts are, against a validator of the test's own and all short texts.
#include "grammar/json_schema.h"

#include <fmt/format.h>

#include <random>

#include "grammar/language_test_util.h"
#include "grammar/schema_oracle_test_util.h"

namespace carpool {
namespace {

// Boost's own reader, which takes names that repeat: the last one counts, as in Python.
std::optional<json::value> read(const std::string& text) {
  json::error_code ec;
  json::value value = json::parse(text, ec);
  if (ec) return std::nullopt;
  return value;
}

const char* const kSchemas[] = {
    R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})",
    R"({"type":"object","properties":{"a":{"type":"boolean"},"b":{"type":"null"}},"additionalProperties":false})",
    R"({"type":"object","properties":{"a":{"const":1}},"additionalProperties":{"type":"integer"}})",
    R"({"type":"array","items":{"type":"integer","minimum":0,"maximum":11},"minItems":1,"maxItems":2})",
    R"({"type":"array","prefixItems":[{"type":"null"},{"type":"integer"}],"items":false})",
    R"({"type":"array","prefixItems":[{"const":1},{"const":"a"}],"items":{"const":0},"minItems":1,"maxItems":3})",
    R"({"type":["string","null"],"maxLength":2})",
    R"({"enum":[1,"a",null,[1],{"a":1}]})",
    R"({"type":"integer","enum":[1,"a",1.5,11]})",
    R"({"anyOf":[{"type":"integer"},{"type":"string","minLength":1}]})",
    R"({"oneOf":[{"const":1},{"const":[]}]})",
    R"({"allOf":[{"type":"integer","minimum":3},{"maximum":12}]})",
    R"({"$ref":"#/$defs/t","$defs":{"t":{"anyOf":[{"type":"null"},{"type":"array","items":{"$ref":"#/$defs/t"}}]}}})",
    R"({"type":"object","properties":{"a":{"$ref":"#"}}})",
    R"({"type":"string","nullable":true,"maxLength":1})",
    R"({"type":"array","items":false})",
    R"({"minimum":0,"maximum":11})",
    R"({"type":"array","maxItems":1})",
    R"({"type":"object","additionalProperties":{"type":"null"},"maxProperties":1})",
    R"({"type":"object","required":["a"]})",
    R"({"type":"number","exclusiveMinimum":0,"maximum":1})",
    R"(true)",
};

TEST(JsonSchema, EveryShortTextOfAGrammarIsJsonThatTheSchemaAccepts) {
  std::mt19937 random(1);
  for (const char* text : kSchemas) {
    const json::value schema = parse_json(text, "schema");
    Language language = schema_language(text);
    int n = 0;
    const std::string_view alphabet = "{}[]\":,01an.ultrefs -";
    const auto judge = [&](const std::string& candidate) {
      if (!language.has(candidate)) return;
      ++n;
      const auto value = read(candidate);
      ASSERT_TRUE(value) << text << ": " << candidate;
      ASSERT_TRUE(oracle_accepts(schema, *value, schema)) << text << ": " << candidate;
    };
    const std::function<void(const std::string&)> go = [&](const std::string& prefix) {
      judge(prefix);
      if (prefix.size() == 5) return;
      for (const char c : alphabet) {
        if (language.begins(prefix + c)) go(prefix + c);
      }
    };
    go("");
    for (int walk = 0; walk < 300; ++walk) {  // longer ones by chance
      std::string candidate;
      while (candidate.size() < 40) {
        std::string next;
        for (const char c : alphabet) {
          if (language.begins(candidate + c)) next += c;
        }
        if (next.empty()) break;
        candidate += next[random() % next.size()];
        judge(candidate);
      }
    }
    EXPECT_GT(n, 0) << text;
  }
}

// The other direction: what the schema accepts, in the order and the spelling that the grammar has, is in it.
TEST(JsonSchema, EveryShortPlainTextThatTheSchemaAcceptsIsInTheGrammar) {
  for (const char* text : {kSchemas[0], kSchemas[1], kSchemas[3], kSchemas[4], kSchemas[5], kSchemas[6], kSchemas[7],
                           kSchemas[8], kSchemas[9], kSchemas[10], kSchemas[11], kSchemas[12]}) {
    const json::value schema = parse_json(text, "schema");
    Language language = schema_language(text);
    int n = 0;
    for_all_texts("[],1a\"n", 6, [&](const std::string& candidate) {
      const auto value = read(candidate);
      if (!value || json::serialize(*value) != candidate || !oracle_accepts(schema, *value, schema)) return;
      ++n;
      EXPECT_TRUE(language.has(candidate)) << text << ": " << candidate;
    });
    for (const char* candidate : {"null", "[null]", "[[],null]", "{}", R"({"a":1})", R"({"a":true})", R"({"b":null})",
                                  R"({"a":true,"b":null})", "[null,12]", "[11,0]", R"([1,"a",0])", "12"}) {
      const auto value = read(candidate);
      if (!oracle_accepts(schema, *value, schema)) continue;
      ++n;
      EXPECT_TRUE(language.has(candidate)) << text << ": " << candidate;
    }
    EXPECT_GT(n, 0) << text;
  }
}

TEST(JsonSchema, SpaceIsOneSpaceOrALineWithItsIndentation) {
  Language language = schema_language(R"({"type":"object","properties":{"a":{"type":"array","items":{"const":1}}}})");
  for (const char* text :
       {R"({"a":[1,1]})", R"({"a": [1, 1]})", "{\n  \"a\": [\n    1,\n    1\n  ]\n}", "{\n\t\"a\": []\n}", "{ }"}) {
    EXPECT_TRUE(language.has(text)) << text;
  }
  EXPECT_FALSE(language.begins("{  "));
  EXPECT_FALSE(language.begins("{\n\n"));
  EXPECT_FALSE(language.begins(" "));
  EXPECT_TRUE(language.complete(R"({"a":[]})")) << "nothing follows, so the text ends by itself";
  EXPECT_FALSE(language.begins("{\n" + std::string(33, ' '))) << "space is bounded";
}

TEST(JsonSchema, StringsAreJsonsOwnAndCountCharacters) {
  Language language = schema_language(R"({"type":"string","minLength":2,"maxLength":2})");
  for (const char* text :
       {R"("ab")", R"("\n\"")", R"("\u00e9x")", R"("\ud83d\ude00x")", "\"\xF0\x9F\x98\x80\xC3\xA9\"", R"("\/\\")"}) {
    EXPECT_TRUE(language.has(text)) << text;
    EXPECT_TRUE(read(text)) << text;
  }
  for (const char* text :
       {R"("a")", R"("abc")", R"("\ud83dx")", R"("\ude00x")", R"("\u0000x")", R"("\x41x")", "\"a\n\"", "\"a\xC3\""}) {
    EXPECT_FALSE(language.has(text)) << text;
  }
}

TEST(JsonSchema, FurtherMembersHaveOtherNames) {
  Language language = schema_language(
      R"({"type":"object","properties":{"ab":{"const":1},"a":{"const":2}},"additionalProperties":{"const":0}})");
  EXPECT_TRUE(language.has(R"({"ab":1,"a":2,"abc":0,"b":0,"":0})"));
  EXPECT_TRUE(language.has(R"({"x":0})"));
  EXPECT_FALSE(language.begins(R"({"x":0,"ab":)"));
  EXPECT_FALSE(language.begins(R"({"x":0,"a":)"));
  EXPECT_FALSE(language.begins(R"({"\u0061)")) << "no other spelling of a name";
}

TEST(JsonSchema, WhereNothingIsSaidOfFurtherMembersThereAreNoneUnlessNothingIsDeclared) {
  EXPECT_FALSE(schema_language(R"({"properties":{"a":{"const":1}}})").begins(R"({"b)"));
  EXPECT_TRUE(schema_language(R"({"type":"object"})").has(R"({"b":[{"c":null}]})"));
  EXPECT_FALSE(schema_language(R"({"type":"object","properties":{}})").begins(R"({"b)"));
  EXPECT_TRUE(schema_language(R"({"type":"object","required":["a"]})").has(R"({"a":[1]})"));
}

TEST(JsonSchema, FormatsAreReal) {
  const auto has = [](const char* format, const char* text) {
    return schema_language(fmt::format(R"({{"type":"string","format":"{}"}})", format))
        .has(fmt::format("\"{}\"", text));
  };
  EXPECT_TRUE(has("date", "2026-02-28"));
  EXPECT_FALSE(has("date", "2026-02-29"));
  EXPECT_FALSE(has("date", "2026-04-31"));
  EXPECT_TRUE(has("date", "2026-12-31"));
  EXPECT_FALSE(has("date", "2026-13-01"));
  EXPECT_TRUE(has("date-time", "2026-11-30T22:33:39Z"));
  EXPECT_TRUE(has("date-time", "2026-11-30T22:33:39.5+01:00"));
  EXPECT_FALSE(has("date-time", "2026-11-30T24:00:00Z"));
  EXPECT_FALSE(has("date-time", "2026-11-30T22:33:39"));
  EXPECT_TRUE(has("time", "22:33:39Z"));
  EXPECT_TRUE(has("uuid", "123e4567-e89b-12d3-a456-426614174000"));
  EXPECT_FALSE(has("uuid", "123e4567e89b12d3a456426614174000"));
  EXPECT_TRUE(has("ipv4", "192.168.0.255"));
  EXPECT_FALSE(has("ipv4", "192.168.0.256"));
  EXPECT_TRUE(has("email", "a.b@example.org"));
  EXPECT_FALSE(has("email", "a.example.org"));
  EXPECT_TRUE(has("hostname", "www.example.org"));
  EXPECT_TRUE(has("uri", "https://example.org:8080/a?b=c"));
  EXPECT_TRUE(has("duration", "P3DT4H5M"));
  EXPECT_FALSE(has("duration", "P"));
}

TEST(JsonSchema, WhatIsNotSupportedIsRefusedWithItsPathAndNeverIgnored) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type":"object","properties":{"a":{"type":"string","minLenght":1}}})",
       "unsupported schema.properties.a.minLenght"},
      {R"({"patternProperties":{"^a":{}}})", "unsupported schema.patternProperties"},
      {R"({"propertyNames":{}})", "unsupported schema.propertyNames"},
      {R"({"not":{}})", "unsupported schema.not"},
      {R"({"if":{},"then":{}})", "unsupported schema.if"},
      {R"({"type":"array","contains":{}})", "unsupported schema.contains"},
      {R"({"type":"array","uniqueItems":true})", "unsupported schema.uniqueItems"},
      {R"({"type":"integer","multipleOf":3})", "unsupported schema.multipleOf"},
      {R"({"type":"string","format":"regex"})", "unsupported schema.format"},
      {R"({"$ref":"https://example.org/a.json"})", "unsupported schema.$ref"},
      {R"({"$ref":"#/$defs/a"})", "schema.$ref"},
      {R"({"type":"object","minProperties":2})", "unsupported schema.minProperties"},
      {R"({"enum":[1],"minimum":0})", "unsupported schema.minimum"},
      {R"({"type":"text"})", "schema.type"},
      {R"({"type":"string","minLength":-1})", "schema.minLength"},
      {R"({"type":"string","maxLength":1000000})", "schema.maxLength"},
      {R"({"type":"string","pattern":"(a"})", "schema.pattern"},
      {R"({"type":"array","items":{"anyOf":[{"type":"nope"}]}})", "schema.items.anyOf[0].type"},
      {R"({"anyOf":[]})", "schema.anyOf"},
      {R"({"enum":[]})", "schema"},
      {R"({"minimum":5,"maximum":4})", "schema"},
      {R"(false)", "schema"},
      {R"(17)", "schema"},
      {R"({"allOf":[{"pattern":"a"},{"pattern":"b"}]})", "unsupported schema.allOf[1]"},
      {R"({"allOf":[{"type":"string"},{"type":"integer"}]})", "schema"},
      {R"({"required":["a"],"properties":{"a":false}})", "schema"},
  };
  for (const auto& [schema, expected] : cases) {
    const std::string got = grammar_refusal(schema_spec(schema));
    EXPECT_EQ(got.substr(0, got.find(": ")), expected) << schema << ": " << got;
  }
}

TEST(JsonSchema, AnnotationsSayNothing) {
  EXPECT_TRUE(schema_language(R"({"title":"t","description":"d","default":1,"examples":[1],"$schema":"s","$id":"i",
      "$comment":"c","deprecated":true,"readOnly":true,"x-order":1,"const":7})")
                  .has("7"));
}

TEST(JsonSchema, AllOfWithOneReferenceAndADescriptionIsThatReference) {
  EXPECT_TRUE(schema_language(R"({"properties":{"a":{"allOf":[{"$ref":"#/$defs/b"}],"description":"d"}},
      "required":["a"],"$defs":{"b":{"const":1}}})")
                  .has(R"({"a":1})"));
}

TEST(JsonSchema, SiblingsOfReferencesAndAlternativesHoldToo) {
  Language merged = schema_language(R"({"type":"object","properties":{"k":{"const":0}},"required":["k"],
      "anyOf":[{"properties":{"a":{"const":1}},"required":["a"]},{"properties":{"b":{"const":2}}}]})");
  EXPECT_TRUE(merged.has(R"({"k":0,"a":1})"));
  EXPECT_TRUE(merged.has(R"({"k":0})"));
  EXPECT_FALSE(merged.begins(R"({"a)"));
  Language ref = schema_language(R"({"$ref":"#/$defs/n","maximum":3,"$defs":{"n":{"type":"integer","minimum":2}}})");
  EXPECT_TRUE(ref.has("3"));
  EXPECT_FALSE(ref.begins("4"));
  EXPECT_FALSE(ref.begins("1"));
}

TEST(JsonSchema, ClosedObjectsStayClosedWhenMerged) {
  Language merged =
      schema_language(R"({"allOf":[{"type":"object","properties":{"a":{"const":1}},"additionalProperties":false},
      {"properties":{"a":{"type":"integer"},"b":{"const":2}}}]})");
  EXPECT_TRUE(merged.has(R"({"a":1})"));
  EXPECT_FALSE(merged.begins(R"({"b)"));
  EXPECT_FALSE(merged.begins(R"({"a":1,)"));
}

TEST(JsonSchema, RecursionWithoutAnEndIsRefusedAndPrunedWhereItIsOptional) {
  EXPECT_NE(grammar_refusal(schema_spec(R"({"$ref":"#"})")), "");
  EXPECT_NE(grammar_refusal(schema_spec(R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})")), "");
  Language pruned = schema_language(R"({"type":"object","properties":{"a":{"$ref":"#/$defs/x"},"b":{"const":1}},
      "$defs":{"x":{"type":"array","items":{"$ref":"#/$defs/x"},"minItems":1}}})");
  EXPECT_TRUE(pruned.has(R"({"b":1})"));
  EXPECT_FALSE(pruned.begins(R"({"a)")) << "nothing that begins so can end";
}

// All ways through random grammars: nobody gets stuck, whatever is chosen.
TEST(JsonSchema, NoBeginningIsADeadEnd) {
  std::mt19937 random(7);
  for (const char* text : kSchemas) {
    const auto grammar = make_grammar(schema_spec(text));
    for (int run = 0; run < 20; ++run) {
      Matcher matcher(*grammar);
      int state = matcher.start();
      for (int i = 0; i < 60 && !matcher.complete(state); ++i) {
        std::vector<unsigned char> next;
        for (int b = 0; b < 256; ++b) {
          if (matcher.step(state, static_cast<unsigned char>(b)) >= 0) next.push_back(static_cast<unsigned char>(b));
        }
        ASSERT_TRUE(!next.empty() || matcher.accepting(state)) << text;
        if (next.empty()) break;
        state = matcher.step(state, next[random() % next.size()]);
      }
    }
  }
}

}  // namespace
}  // namespace carpool
