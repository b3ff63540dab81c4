// Kimi-K2 and DeepSeek: calls between control tokens, which never become content.
#include <gtest/gtest.h>

#include "text/parsers/calls/deepseek_calls.h"
#include "text/parsers/parser_test_util.h"

namespace carpool {
namespace {

using Calls = std::vector<std::pair<std::string, std::string>>;

const std::vector<ToolFunction>& functions() {
  static const std::vector<ToolFunction> made = functions_of(R"({"find": {"text": {"type": "string"}}, "now": {}})");
  return made;
}

ParseCase with(const char* name) { return {format_of("none", name), functions()}; }

std::string kimi_call(const std::string& id, const std::string& arguments) {
  return "<|tool_call_begin|>" + id + "<|tool_call_argument_begin|>" + arguments + "<|tool_call_end|>";
}
std::string kimi_section(const std::string& calls) {
  return "<|tool_calls_section_begin|>" + calls + "<|tool_calls_section_end|>";
}

TEST(KimiK2, CallsOfOneSection) {
  const std::string text = "One moment. " + kimi_section(kimi_call("functions.find:0", "{\"text\": \"\xe8\xbd\xa6\"}") +
                                                         kimi_call("functions.now:1", "{}"));
  EXPECT_EQ(parse_all_ways(with("kimi_k2"), text),
            (Parsed{"", "One moment.", {{"find", "{\"text\": \"\xe8\xbd\xa6\"}"}, {"now", "{}"}}}));
  parse_every_beginning(with("kimi_k2"), text);
}

TEST(KimiK2, NamesNeedNeitherPrefixNorIndex) {
  for (const char* id : {"functions.now:12", "now:0", "now", " functions.now "}) {
    EXPECT_EQ(parse_all_ways(with("kimi_k2"), kimi_call(id, "")).calls, (Calls{{"now", "{}"}})) << id;
  }
}

TEST(KimiK2, NoTagBecomesContent) {
  ParseCase cut = with("kimi_k2");
  cut.complete = false;
  const std::string whole = "a" + kimi_section(kimi_call("functions.find:0", "{\"text\": \"x\"}"));
  for (size_t size = 0; size < whole.size(); ++size) {
    const Parsed got = parse(cut, {whole.substr(0, size)});
    for (const std::string_view tag : cut.format.tags()) {
      EXPECT_EQ(got.content.find(tag), std::string::npos) << got.content;
    }
  }
  EXPECT_EQ(parse_all_ways(with("kimi_k2"), kimi_section(kimi_call("functions.find:0", "{broken"))),
            (Parsed{"", "functions.find:0{broken", {}, 0, 1}));
}

std::string deepseek(const std::string& calls) {
  return std::string(kDeepSeekAround[0]) + calls + std::string(kDeepSeekAround[1]);
}
std::string deepseek_call(const std::string& head, const std::string& rest) {
  return std::string(kDeepSeekOpen) + head + std::string(kDeepSeekWithin[0]) + rest + std::string(kDeepSeekClose);
}

TEST(DeepSeekV3, ReadsBothForms) {
  const std::string fenced =
      "Yes.\n" + deepseek(deepseek_call("function", "find\n```json\n{\"text\": \"a ``` b\"}\n```") + "\n" +
                          deepseek_call("function", "now\n```json\n{}\n```"));
  const std::string bare =
      "Yes." + deepseek(deepseek_call("find", "{\"text\": \"a ``` b\"}") + deepseek_call("now", "{}"));
  for (const char* name : {"deepseekv3", "deepseekv31"}) {
    for (const std::string& text : {fenced, bare}) {
      EXPECT_EQ(parse_all_ways(with(name), text),
                (Parsed{"", "Yes.", {{"find", R"({"text": "a ``` b"})"}, {"now", "{}"}}}));
      parse_every_beginning(with(name), text);
    }
  }
}

TEST(DeepSeekV3, NoTagBecomesContent) {
  const Parsed got = parse_all_ways(with("deepseekv3"), deepseek(deepseek_call("find", "no object")) + "after");
  EXPECT_EQ(got, (Parsed{"", "findno objectafter", {}, 0, 1}));
}

}  // namespace
}  // namespace carpool
