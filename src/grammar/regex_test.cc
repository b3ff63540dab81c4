// Expressions against std::regex over all short texts, and what is refused.
#include "grammar/regex.h"

#include <regex>

#include "grammar/language_test_util.h"

namespace carpool {
namespace {

TEST(Regex, AllShortTextsMatchWhereStdRegexSaysSo) {
  for (const char* expression : {"a",
                                 "ab|c",
                                 "a*",
                                 "(a|b)*c",
                                 "a+b?",
                                 "(ab)+",
                                 "a{2}",
                                 "a{2,}",
                                 "a{1,3}b",
                                 "[ab]c",
                                 "[^a]b",
                                 "[a-c]{2,3}",
                                 "(a|aa){2,3}",
                                 "((a?b?)c){1,2}",
                                 "(a*)*",
                                 "(a*b*)*c",
                                 "(a?){3}",
                                 "(a|b|)c",
                                 "((a{1,2}){1,2}){1,2}",
                                 "a.c",
                                 ".*a",
                                 "(?:a|b)+?",
                                 "(a+)+b",
                                 "(a|a)*b",
                                 "(.*a){2}",
                                 "a{0}b",
                                 "(a{0,2}b?){2,3}",
                                 "^a|b$",
                                 "^(a|b)c$",
                                 "(|a)(|b)(|c)",
                                 "[c-]a",
                                 "\\.?a",
                                 "(a*){2,}b",
                                 "(((a)))|(((b))*c)"}) {
    Language language = regex_language(expression);
    const std::regex oracle(expression, std::regex::ECMAScript);
    for_all_texts("abc.-", 6, [&](const std::string& text) {
      ASSERT_EQ(language.has(text), std::regex_match(text, oracle)) << expression << " on \"" << text << "\"";
    });
  }
}

TEST(Regex, ABeginningIsAcceptedWhereATextGoesOnFromIt) {
  for (const char* expression : {"(a|b)c{1,2}", "a{2,3}b?", "(ab|abc|b)(c|a)", "[^b]a|b(c?)"}) {
    Language language = regex_language(expression);
    const std::regex oracle(expression);
    std::vector<std::string> texts;
    for_all_texts("abc", 6, [&](const std::string& text) {
      if (std::regex_match(text, oracle)) texts.push_back(text);
    });
    for_all_texts("abc", 4, [&](const std::string& text) {
      const bool begins =
          std::any_of(texts.begin(), texts.end(), [&](const std::string& t) { return t.starts_with(text); });
      ASSERT_EQ(language.begins(text), begins) << expression << " on \"" << text << "\"";
    });
  }
}

TEST(Regex, ClassesAndEscapesMeanWhatTheySay) {
  const auto has = [](const char* expression, const char* text) { return regex_language(expression).has(text); };
  EXPECT_TRUE(has("\\d\\w\\s", "1_ "));
  EXPECT_FALSE(has("\\d", "a"));
  EXPECT_TRUE(has("\\D\\W\\S", "a-b"));
  EXPECT_FALSE(has("\\S", "\xC2\xA0")) << "a no-break space";
  EXPECT_TRUE(has("[\\d.]+", "1.5"));
  EXPECT_TRUE(has("[^\\d]", "x"));
  EXPECT_TRUE(has("\\x41\\u0042\\u{43}", "ABC"));
  EXPECT_TRUE(has("\\u{1F600}", "\xF0\x9F\x98\x80"));
  EXPECT_TRUE(has("\\(\\)\\[\\]\\{\\}\\|\\^\\$\\\\", "()[]{}|^$\\"));
  EXPECT_TRUE(has("\\t\\n\\r", "\t\n\r"));
  EXPECT_FALSE(has(".", "\n"));
  EXPECT_TRUE(has("{\"a\": [0-9]}", "{\"a\": 7}")) << "a brace that begins no repetition";
  EXPECT_TRUE(has("(?<year>\\d{4})-(?P<month>\\d\\d)", "2026-11"));
}

TEST(Regex, CharactersAreWholeUtf8) {
  Language any = regex_language(".");
  for (const char* text : {"a", "\xC3\xA9", "\xE2\x82\xAC", "\xED\x9F\xBF", "\xEE\x80\x80", "\xF0\x9F\x98\x80"}) {
    EXPECT_TRUE(any.has(text)) << text;
  }
  for (const char* text :
       {"\x80", "\xC0\x80", "\xC3", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF8\x88\x80\x80\x80", "\xE0\x80\x80"}) {
    EXPECT_FALSE(any.has(text));
  }
  EXPECT_TRUE(regex_language("[\xC3\xA0-\xC3\xBF]+").has("\xC3\xA9\xC3\xBC"));
  EXPECT_FALSE(regex_language("[^\xC3\xA9]").has("\xC3\xA9"));
  EXPECT_TRUE(regex_language("[^\xC3\xA9]").has("\xC3\xA8"));
}

TEST(Regex, WhatIsWrongOrNotRegularIsRefusedWithItsPlace) {
  const auto refusal = [](std::string_view expression) { return grammar_refusal(regex_spec(expression)); };
  for (const char* expression : {"(a", "a)", "[a", "[]", "*a", "a{2,1}", "a{3", "a**", "[b-a]", "\\xZZ", "\\u{110000}",
                                 "\\ud83d", "(?<a", "a\\"}) {
    EXPECT_EQ(refusal(expression).substr(0, 7), "regex: ") << expression << refusal(expression);
  }
  for (const char* expression : {"a(?=b)", "a(?!b)", "(?<=a)b", "(a)\\1", "\\bword", "(?i)a", "a++", "\\p{L}",
                                 "[[:alpha:]]", "a^b", "(^a)", "(a$)b", "a$b", "\\A"}) {
    EXPECT_EQ(refusal(expression).substr(0, 19), "unsupported regex: ") << expression << refusal(expression);
  }
  EXPECT_NE(refusal("(a{1000}){1000}").find("65535"), std::string::npos);
  EXPECT_NE(refusal("a{1000000}").find("65535"), std::string::npos);
}

TEST(Regex, InsideJsonStringsWhatMustBeEscapedIs) {
  Language language = schema_language(R"({"type":"string","pattern":"^[\"\\\\\n\u0001a]+$"})");
  EXPECT_TRUE(language.has(R"("\"\\\n\u0001a")"));
  EXPECT_FALSE(language.has("\"\n\""));
  EXPECT_FALSE(language.has("\"\"\""));
}

TEST(Regex, APatternWithoutAnchorsMatchesSomewhere) {
  EXPECT_TRUE(schema_language(R"({"pattern":"ab"})").has("\"xxabyy\""));
  EXPECT_FALSE(schema_language(R"({"pattern":"ab"})").has("\"xayb\""));
  EXPECT_TRUE(schema_language(R"({"pattern":"^ab"})").has("\"abyy\""));
  EXPECT_FALSE(schema_language(R"({"pattern":"^ab"})").has("\"xaby\""));
  EXPECT_TRUE(schema_language(R"({"pattern":"ab$"})").has("\"yyab\""));
  EXPECT_TRUE(schema_language(R"({"pattern":"^a|b$"})").has("\"axx\""));
  EXPECT_TRUE(schema_language(R"({"pattern":"^a|b$"})").has("\"xxb\""));
}

TEST(Regex, PatternAndLengthHoldTogetherOrAreRefused) {
  Language both = schema_language(R"({"pattern":"^[a-z]+$","minLength":2,"maxLength":3})");
  EXPECT_FALSE(both.has("\"a\""));
  EXPECT_TRUE(both.has("\"ab\""));
  EXPECT_TRUE(both.has("\"abc\""));
  EXPECT_FALSE(both.begins("\"abcd"));
  EXPECT_TRUE(schema_language(R"({"pattern":"^(ab|c){2}$","minLength":2,"maxLength":4})").has("\"abc\""));
  EXPECT_NE(grammar_refusal(schema_spec(R"({"pattern":"^(ab|c)*$","maxLength":4})")).find("unsupported schema.pattern"),
            std::string::npos);
}

TEST(Regex, EqualClassesAreOneInMemory) {
  const auto size = [](const std::string& expression) { return make_grammar(regex_spec(expression))->bytes(); };
  const size_t once = size(".[^a]");
  std::string many;
  for (int i = 0; i < 5000; ++i) many += ".[^a]";
  EXPECT_LT(size(many), once + many.size() * 8) << "a place in a sequence each";
}

}  // namespace
}  // namespace carpool
