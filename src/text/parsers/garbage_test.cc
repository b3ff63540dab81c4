// Every pair of formats over random heaps of tags, halves of tags, JSON and characters: no cut changes the result,
// arguments are objects, and control tokens stay inside.
#include <gtest/gtest.h>

#include <array>
#include <set>

#include "text/parsers/formats.h"
#include "text/parsers/parser_test_util.h"

namespace carpool {
namespace {

std::vector<std::string> words_of(const OutputFormat& format) {
  std::vector<std::string> words = {"f",
                                    "g",
                                    "functions.f:0",
                                    "{",
                                    "}",
                                    "\"",
                                    "\\\"",
                                    "{\"a\": 1}",
                                    "{}",
                                    "\n",
                                    " ",
                                    "name",
                                    ":",
                                    "null",
                                    "\xc3\xa9",
                                    "\xf0\x9f\x98\x80",
                                    "<",
                                    "</",
                                    "<|",
                                    ">",
                                    "=",
                                    "```",
                                    "{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\"}}",
                                    "{\"name\": \"f\"}",
                                    "x",
                                    "to="};
  for (const std::string_view tag : format.tags()) {
    for (int times = 0; times < 3; ++times) words.emplace_back(tag);
    if (format.calls && format.calls->control) continue;  // halves put together spell a tag, but are no control token
    words.emplace_back(tag.substr(0, tag.size() / 2));
    words.emplace_back(tag.substr(tag.size() / 2));
  }
  if (format.calls) words.push_back(forced_call(format, "f"));
  return words;
}

void expect_no_control_token(const OutputFormat& format, const Parsed& parsed, const std::string& text) {
  if (!format.calls || !format.calls->control) return;
  for (const std::string_view tag : format.tags()) {
    if (format.reasoning && (tag == format.reasoning->open || tag == format.reasoning->close)) continue;
    EXPECT_EQ(parsed.content.find(tag), std::string::npos) << tag << " in " << parsed.content << "\nof " << text;
  }
}

TEST(Garbage, NoCutChangesTheResultAndNothingLeaks) {
  std::mt19937 random(7);
  std::set<std::pair<const void*, const void*>> seen;
  for (const std::string& reasoning : reasoning_parser_names()) {
    for (const std::string& calls : tool_call_parser_names()) {
      OutputFormat format;
      try {
        format = format_of(reasoning, calls);
      } catch (const Error&) {
        continue;  // gpt-oss beside others
      }
      if (!seen.emplace(format.reasoning, format.calls).second) continue;
      const std::vector<std::string> words = words_of(format);
      ParseCase c{format, functions_of(R"({"f": {"a": {"type": "integer"}}, "g": {}})")};
      for (int round = 0; round < 150 && !testing::Test::HasFailure(); ++round) {
        std::string text;
        for (int n = static_cast<int>(random() % 24); n > 0; --n) text += words[random() % words.size()];
        c.complete = random() % 2 == 0;
        c.prompt = std::array{PromptEnd::kOpen, PromptEnd::kClosed, PromptEnd::kNeither}[random() % 3];
        c.separate = random() % 4 != 0;
        const Parsed whole = parse(c, {text});
        std::vector<std::string_view> bytes;
        for (size_t i = 0; i < text.size(); ++i) bytes.push_back(std::string_view(text).substr(i, 1));
        EXPECT_EQ(parse(c, bytes), whole) << reasoning << " " << calls << ": " << text;
        expect_no_control_token(format, whole, text);
      }
    }
  }
}

}  // namespace
}  // namespace carpool
