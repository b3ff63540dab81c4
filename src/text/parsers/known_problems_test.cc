// Bugs that users of other servers reported about reasoning and calls, as tests named after the reference's table.
#include <gtest/gtest.h>

#include "text/parsers/parser_test_util.h"

namespace carpool {
namespace {

using Calls = std::vector<std::pair<std::string, std::string>>;

std::vector<ToolFunction> tools() {
  return functions_of(
      R"({"search": {"query": {"type": "string"}, "limit": {"type": "integer"}, "exact": {"type": "boolean"},
                                     "tags": {"type": ["array", "null"]}, "where": {"type": "object"}, "any": {}},
                          "now": {}})");
}

ParseCase glm(PromptEnd prompt = PromptEnd::kOpen) {
  ParseCase c{format_of("glm45", "glm47"), tools()};
  c.prompt = prompt;
  return c;
}

std::string pair_of(const std::string& key, const std::string& value) {
  return "<arg_key>" + key + "</arg_key><arg_value>" + value + "</arg_value>";
}
std::string call_of(const std::string& body) { return "<tool_call>" + body + "</tool_call>"; }

TEST(KnownProblemT18, EveryCutGivesTheSameCalls) {
  const std::string text = "I need two.</think>Looking." +
                           call_of("search" + pair_of("query", "a</arg>b") + pair_of("limit", "5")) + call_of("now") +
                           "\n";
  EXPECT_EQ(parse_all_ways(glm(), text),
            (Parsed{"I need two.", "Looking.", {{"search", R"({"query": "a</arg>b", "limit": 5})"}, {"now", "{}"}}}));
}

TEST(KnownProblemT19, ACallWithoutArgumentsComesWithAnEmptyObject) {
  for (const char* body : {"now", "now\n", "\nnow\n"}) {
    EXPECT_EQ(parse_all_ways(glm(), "</think>" + call_of(body)).calls, (Calls{{"now", "{}"}}));
  }
}

TEST(KnownProblemT20, AMissingKeyOrValueCostsThatArgumentOnly) {
  const std::string good = pair_of("limit", "5");
  for (const std::string& bad :
       {std::string("<arg_value>x</arg_value>"), std::string("query</arg_key><arg_value>x</arg_value>"),
        std::string("<arg_key>query</arg_key>"), pair_of("", "x"), std::string("junk")}) {
    for (const std::string& body : {bad + good, good + bad}) {
      EXPECT_EQ(parse_all_ways(glm(), "</think>" + call_of("search\n" + body)),
                (Parsed{"", "", {{"search", R"({"limit": 5})"}}, 0, 1}))
          << body;
    }
  }
}

TEST(KnownProblemT21, LineBreaksAreFreeAndTypesAreTheSchemas) {
  const std::string text = "</think><tool_call>search\n" + pair_of("query", "123") + "\n" + pair_of("limit", " 7 ") +
                           "\n\n" + pair_of("exact", "True") + pair_of("tags", "['a', \"b\"]") + "\n" +
                           pair_of("where", "{\"year\": 1999}") + pair_of("any", "1.50") + "\n</tool_call>";
  const std::string expected =
      R"({"query": "123", "limit": 7, "exact": true, "tags": ["a", "b"], "where": {"year": 1999}, "any": 1.50})";
  for (const char* name : {"glm45", "glm47"}) {
    ParseCase c = glm();
    c.format = format_of("glm45", name);
    EXPECT_EQ(parse_all_ways(c, text).calls, (Calls{{"search", expected}}));
  }
}

TEST(KnownProblemT22, TwoObjectsNeverBecomeOneCallsArguments) {
  ParseCase kimi{format_of("none", "kimi_k2"), tools()};
  EXPECT_EQ(parse_all_ways(kimi,
                           "<|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{\"query\": \"a\"}"
                           "{\"query\": \"a\"}<|tool_call_end|>")
                .calls,
            (Calls{{"search", R"({"query": "a"})"}}));
  ParseCase qwen{format_of("none", "qwen25"), tools()};
  EXPECT_EQ(parse_all_ways(qwen, call_of(R"({"name": "search", "arguments": {"query": "a"}}{"name": "now"})")).calls,
            (Calls{{"search", R"({"query": "a"})"}, {"now", "{}"}}));
}

TEST(KnownProblemT23, ReasoningIsWhatThePromptAndTheTagsSay) {
  EXPECT_EQ(parse_all_ways(glm(PromptEnd::kClosed), "All content."), (Parsed{"", "All content."}));
  ParseCase cut = glm();
  cut.complete = false;
  EXPECT_EQ(parse_all_ways(cut, "Still thinking"), (Parsed{"Still thinking"}));
}

TEST(KnownProblemT25, ACallWithinReasoningEndsIt) {
  EXPECT_EQ(parse_all_ways(glm(), "I call." + call_of("now")), (Parsed{"I call.", "", {{"now", "{}"}}}));
  ParseCase kimi{format_of("qwen3", "kimi_k2"), tools()};
  kimi.prompt = PromptEnd::kOpen;
  EXPECT_EQ(parse_all_ways(kimi,
                           "I call.\n<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0"
                           "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"),
            (Parsed{"I call.", "", {{"now", "{}"}}}));
  ParseCase plain = glm();
  plain.tools = false;
  EXPECT_EQ(parse_all_ways(plain, "The tag <tool_call> is...</think>b"), (Parsed{"The tag <tool_call> is...", "b"}))
      << "without tools it is a word";
}

TEST(KnownProblemT26, CharactersAreNeverCut) {
  const std::string faces =
      "\xf0\x9f\x98\x80 \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x9a\x80 \xe4\xbd\xa0\xe5\xa5\xbd \xc3\xa9";
  const Parsed got = parse_all_ways(glm(), faces + "</think>" + faces + call_of("search" + pair_of("query", faces)));
  EXPECT_EQ(got, (Parsed{faces, faces, {{"search", "{\"query\": \"" + faces + "\"}"}}}));
  const Parsed broken = parse_all_ways(glm(PromptEnd::kClosed), "a\xf0\x9f\x98");
  EXPECT_EQ(broken.content, "a\xef\xbf\xbd") << "half a character at the very end";
}

}  // namespace
}  // namespace carpool
