// Whole structures, and hostile ones: each is refused, or bounded, within its budget.
#include "grammar/structure.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "grammar/constraint.h"
#include "grammar/language_test_util.h"

namespace carpool {
namespace {

StructureSpec choices(std::vector<std::string> list) {
  StructureSpec spec;
  spec.kind = StructureSpec::Kind::kChoice;
  spec.path = "choice";
  spec.choices = std::move(list);
  return spec;
}

TEST(Structure, AChoiceIsOneOfItsTexts) {
  Language language(make_grammar(choices({"yes", "no", "yesterday"})));
  for (const char* text : {"yes", "no", "yesterday"}) EXPECT_TRUE(language.has(text));
  for (const char* text : {"", "y", "nope", "yesno"}) EXPECT_FALSE(language.has(text));
  EXPECT_FALSE(language.complete("yes"));
  EXPECT_TRUE(language.complete("no"));
  EXPECT_EQ(grammar_refusal(choices({})), "choice: choice has no choices");
  EXPECT_NE(grammar_refusal(choices({"a", ""})), "");
}

TEST(Structure, AnyJsonObjectIsAnObject) {
  StructureSpec spec;
  Language language(make_grammar(spec));
  for (const char* text : {"{}", R"({"a": [1, {"b": null}], "c": "d"})"}) EXPECT_TRUE(language.complete(text));
  for (const char* text : {"[", "1", "\"", " "}) EXPECT_FALSE(language.begins(text));
}

TEST(Structure, FramesArePutAroundValues) {
  StructureSpec spec;
  spec.kind = StructureSpec::Kind::kFrames;
  spec.prefix = "[";
  spec.suffix = "]";
  spec.between = ",";
  spec.max = 2;
  spec.frames = {{"<f>", "</f>", parse_json(R"({"type":"integer"})", "s")},
                 {"<g>", "</g>", parse_json(R"({"const":"x"})", "s")}};
  Language language(make_grammar(spec));
  for (const char* text : {"[<f>12</f>]", "[<g>\"x\"</g>]", "[<f>1</f>,<g>\"x\"</g>]"})
    EXPECT_TRUE(language.complete(text)) << text;
  for (const char* text : {"[]", "[<h>", "[<f>\"x\"", "[<f>1</f>,<f>1</f>,"})
    EXPECT_FALSE(language.begins(text)) << text;
  spec.min = 0;
  EXPECT_TRUE(Language(make_grammar(spec)).complete("[]"));
}

FreeReasoning think() { return {.close = "</think>", .stops = {"</think>"}, .lines = true}; }

// T24: a grammar that holds from the first token keeps a model from thinking.
TEST(KnownProblemT24, AGrammarBeginsAfterTheReasoning) {
  StructureSpec spec = schema_spec(R"({"type":"object","properties":{"a":{"const":1}},"required":["a"]})");
  spec.reasoning = think();
  Language language(make_grammar(spec));
  for (const char* text :
       {"I think {so}.\n</think>\n\n{\"a\":1}", "</think>{\"a\":1}", "<</thin</think>\n{\"a\": 1}"}) {
    EXPECT_TRUE(language.complete(text)) << text;
  }
  EXPECT_TRUE(language.begins("any text, {\"b\": and \xF0\x9F\x98\x80")) << "but for what ends reasoning";
  EXPECT_FALSE(language.begins("thoughts</think>\n\nmore"));
  EXPECT_FALSE(language.has("thoughts without an end"));
  EXPECT_FALSE(language.begins("broken \xF0\x9F</think>"));
}

// A reader takes more than the closing tag for the end of reasoning, and an answer without the opening tag has
// none.
TEST(KnownProblemT24, NothingThatEndsReasoningMayStandInIt) {
  StructureSpec spec = schema_spec(R"({"const":1})");
  spec.reasoning = think();
  spec.reasoning->stops = {"</think>", "<call>",
                           "<\xEF\xBD\x9C"
                           "begin>"};
  Language language(make_grammar(spec));
  EXPECT_TRUE(
      language.complete("<cal l> <\xEF\xBD\x9C"
                        "begi n></think>1"));
  for (const char* text : {"a<call>", "<<call>", "</thin<call>",
                           "<\xEF\xBD\x9C"
                           "begin>"}) {
    EXPECT_FALSE(language.complete(text) || language.begins(std::string(text) + "</think>")) << text;
  }
  spec.reasoning->unclosed = true;
  spec.prefix = "<call>";
  spec.kind = StructureSpec::Kind::kFrames;
  spec.frames = {{"f:", ";", parse_json("{\"const\":1}", "s")}};
  Language calls(make_grammar(spec));
  EXPECT_TRUE(calls.complete("hm</think>\n<call>f:1;"));
  EXPECT_TRUE(calls.complete("hm<call>f:1;"));
  EXPECT_FALSE(calls.begins("hm<call>g"));
}

TEST(KnownProblemT24, WithoutItsOpeningTagThereIsNoReasoning) {
  StructureSpec spec = regex_spec("a+");
  spec.reasoning = think();
  spec.reasoning->open = "<think>";
  spec.reasoning->optional = true;
  Language language(make_grammar(spec));
  EXPECT_TRUE(language.has("aa"));
  EXPECT_TRUE(language.has("<think>hm</think>\naa"));
  for (const char* text : {"hm", "ab", "aa</think>", "<think>hm</think>b"}) EXPECT_FALSE(language.begins(text)) << text;
  // What may itself begin as reasoning does must come behind reasoning.
  for (const char* expression : {".*", "<b>", "\\s*a"}) {
    spec.regex = expression;
    Language behind(make_grammar(spec));
    EXPECT_TRUE(behind.begins("<think>hm</think>")) << expression;
    for (const char* text : {"a", "<b>", " a", "<think>a"}) EXPECT_FALSE(behind.has(text)) << expression << text;
  }
}

TEST(Structure, OneOfItsOpeningsStandsBeforeIt) {
  StructureSpec spec = schema_spec(R"({"const":1})");
  spec.reasoning = FreeReasoning{"[think]", "[/think]", {"["}, false, true, false};
  spec.openings = {"[say]", "[say json]"};
  Language language(make_grammar(spec));
  for (const char* text : {"[say]1", "[say json]1", "[think]hm[/think][say]1"}) EXPECT_TRUE(language.complete(text));
  for (const char* text : {"1", "hm", "[think]hm[say]", "[think]hm[/think]1", "[think]hm[/think]\n"})
    EXPECT_FALSE(language.begins(text)) << text;
}

// Beside a search for each stop, for all short texts.
TEST(Structure, ATextWithoutSomeTextsHoldsNoneOfThem) {
  const std::vector<std::vector<std::string>> lists = {{"ab"},
                                                       {"aba"},
                                                       {"aab", "b\xC3\xA9"},
                                                       {"abab", "ba"},
                                                       {"a\xC3\xA9"
                                                        "a",
                                                        "\xC3\xA9\xC3\xA9", "bab"},
                                                       {"bb", "abba"}};
  for (const std::vector<std::string>& stops : lists) {
    GrammarBuilder builder;
    const NodeId node = builder.text_without(stops);
    Language language(builder.finish(node));
    const std::string letters[] = {"a", "b", "\xC3\xA9", "x"};
    for (int code = 0; code < 4 * 4 * 4 * 4 * 4 * 4; ++code) {
      std::string text;
      for (int i = 0, rest = code; i < 6; ++i, rest /= 4) text += letters[rest % 4];
      const bool holds = std::any_of(stops.begin(), stops.end(),
                                     [&](const std::string& stop) { return text.find(stop) != std::string::npos; });
      ASSERT_EQ(language.has(text), !holds) << text;
    }
    EXPECT_FALSE(language.begins("\xC3x"));
  }
}

TEST(Structure, ASpokenSpecialTokenMayBeWrittenAndNoOther) {
  // Tokens 1 and 2 stand for special tokens of a tokenizer; the trie of tests has none, so the texts decide here.
  StructureSpec spec = regex_spec("a+");
  spec.reasoning = think();
  const auto trie = std::make_shared<const TokenTrie>(std::vector<std::string>{"a", "</think>", "</", "think>", "b"});
  ConstraintCursor cursor(std::make_shared<Constraint>(make_grammar(spec), trie));
  ASSERT_TRUE(cursor.accept(4));
  EXPECT_TRUE(cursor.mask()->allows(1));
  EXPECT_FALSE(cursor.can_end());
  ASSERT_TRUE(cursor.accept(2));
  EXPECT_TRUE(cursor.mask()->allows(3));
  ASSERT_TRUE(cursor.accept(3));
  EXPECT_FALSE(cursor.mask()->allows(4)) << "the structure holds now";
  ASSERT_TRUE(cursor.accept(0));
  EXPECT_TRUE(cursor.can_end());
}

struct Hostile {
  const char* name;
  StructureSpec spec;
};

std::string repeated(const std::string& text, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += text;
  return out;
}

StructureSpec schema_of(json::value schema) {
  StructureSpec spec = schema_spec("true");
  spec.schema = std::move(schema);
  return spec;
}

std::vector<Hostile> hostile() {
  json::value deep = true;
  for (int i = 0; i < 200; ++i) deep = json::object{{"items", deep}};
  json::array many;
  for (int i = 0; i < 100000; ++i) many.push_back(json::value(i));
  json::object doubling;
  for (int i = 0; i < 40; ++i) {
    const std::string next = fmt::format("#/$defs/{}", i + 1);
    doubling[std::to_string(i)] =
        json::object{{"allOf", json::array{json::object{{"$ref", next}}, json::object{{"$ref", next}}}}};
  }
  return {
      {"deep schema", schema_of(deep)},
      {"huge enum", schema_of(json::object{{"enum", many}})},
      {"a million characters", schema_spec(R"({"type":"string","minLength":1000000})")},
      {"a million items", schema_spec(R"({"type":"array","minItems":1000000})")},
      {"a million repetitions", regex_spec("a{1000000}")},
      {"nested repetitions", regex_spec("(((a{100}){100}){100}){100}")},
      {"deep groups", regex_spec(repeated("(", 60000) + "a" + repeated(")", 60000))},
      {"long expression", regex_spec(repeated("a", 70000))},
      {"counters within counters", regex_spec("((a{0,250}){0,250}b?)*")},
      {"recursion without an end", schema_spec(R"({"type":"array","items":{"$ref":"#"},"minItems":1})")},
      {"recursion of allOf",
       schema_spec(R"({"$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"},{"type":"object"}]}},"$ref":"#/$defs/a"})")},
      {"reference to itself", schema_spec(R"({"$ref":"#"})")},
      {"doubling allOf", schema_of(json::object{{"$ref", "#/$defs/0"}, {"$defs", doubling}})},
  };
}

// Of this thread, which others on the machine do not lengthen.
double cpu_seconds() {
  timespec t{};
  EXPECT_EQ(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t), 0);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

TEST(Structure, HostileRequestsAreRefusedWithinTheirBudget) {
#ifdef CARPOOL_SANITIZED
  constexpr double kMost = 120;
#else
  constexpr double kMost = 20;  // a second or less as a rule; this only catches what never ends
#endif
  for (const Hostile& h : hostile()) {
    const double start = cpu_seconds();
    EXPECT_NE(grammar_refusal(h.spec), "") << h.name;
    EXPECT_LT(cpu_seconds() - start, kMost) << h.name;
  }
}

// Not refused, for they are harmless here, though they bring other matchers down.
TEST(Structure, ExpressionsThatMakeBacktrackingHangAreOrdinary) {
  for (const char* expression :
       {"(a+)+b", "(a|a)*b", "(a|aa)+b", "(.*)*(.*)*x", "(a*)*(a*)*(a*)*b", "([a-z]+)*\\d", "(a?){500}a{500}"}) {
    Language language = regex_language(expression);
    const std::string text(600, 'a');
    EXPECT_TRUE(language.begins(text)) << expression;
    Matcher matcher(*language.grammar());
    int state = matcher.start();
    for (int i = 0; i < 600; ++i) state = matcher.step(state, 'a');
    EXPECT_LT(matcher.n_positions(state), 1100) << expression;
  }
}

TEST(Structure, DeepRecursionEndsTheMatchAndNotTheProcess) {
  Language language =
      schema_language(R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"array","items":{"$ref":"#/$defs/a"}}}})");
  Matcher matcher(*language.grammar());
  int state = matcher.start(), depth = 0;
  for (; state >= 0 && depth < 100000; ++depth) {
    matcher.start_work();
    state = matcher.step(state, '[');
  }
  EXPECT_EQ(state, Matcher::kTooMuch);
  EXPECT_GT(depth, 500);
}

}  // namespace
}  // namespace carpool
