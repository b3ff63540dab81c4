// Running a parser over a text in every way of cutting it: what tests of the parsers share.
//
// Owns Parsed, what an answer comes to, and parse_all_ways, which expects that every cut gives the same.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "text/parsers/output.h"
#include "text/utf8.h"

namespace carpool {

struct Parsed {
  std::string reasoning = {}, content = {};
  std::vector<std::pair<std::string, std::string>> calls = {};  // name, arguments
  int unknown = 0, broken = 0, surplus = 0;

  bool operator==(const Parsed&) const = default;
};

inline void PrintTo(const Parsed& p, std::ostream* out) {
  *out << "reasoning \"" << p.reasoning << "\" content \"" << p.content << "\"";
  for (const auto& [name, arguments] : p.calls) *out << " call " << name << arguments;
  *out << " unknown " << p.unknown << " broken " << p.broken << " surplus " << p.surplus;
}

// How a text is given to a parser.
struct ParseCase {
  OutputFormat format;
  std::vector<ToolFunction> functions = {};
  bool tools = true;
  PromptEnd prompt = PromptEnd::kNeither;
  bool separate = true;
  bool complete = true;
  int max_calls = kMaxCalls;
};

inline Parsed parse(const ParseCase& c, const std::vector<std::string_view>& pieces) {
  OutputOptions options;
  if (c.tools) options.functions = std::make_shared<const std::vector<ToolFunction>>(c.functions);
  options.prompt = c.prompt;
  options.separate_reasoning = c.separate;
  options.max_calls = c.max_calls;
  OutputParser parser(c.format, options);
  OutputEvents events;
  for (const std::string_view piece : pieces) parser.feed(piece, events);
  parser.finish(c.complete, events);
  Parsed parsed;
  bool within = false;
  for (const OutputEvent& event : events) {
    EXPECT_TRUE(is_valid_utf8(event.text)) << "half a character";
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning:
        parsed.reasoning += event.text;
        break;
      case OutputEvent::Kind::kContent:
        parsed.content += event.text;
        break;
      case OutputEvent::Kind::kCallBegin:
        EXPECT_FALSE(within);
        within = true;
        parsed.calls.emplace_back(event.text, "");
        break;
      case OutputEvent::Kind::kArguments:
        EXPECT_TRUE(within);
        parsed.calls.back().second += event.text;
        break;
      case OutputEvent::Kind::kCallEnd:
        within = false;
        break;
    }
    EXPECT_TRUE(!within || event.kind == OutputEvent::Kind::kCallBegin || event.kind == OutputEvent::Kind::kArguments);
  }
  EXPECT_FALSE(within) << "a call without its end";
  for (const auto& [name, arguments] : parsed.calls) {
    EXPECT_TRUE(parse_json(arguments, name).is_object()) << arguments;
  }
  parsed.unknown = parser.lost().unknown;
  parsed.broken = parser.lost().broken;
  parsed.surplus = parser.lost().surplus;
  return parsed;
}

// In one piece, byte by byte, cut once at every position, and cut at random; the result, which is always the same.
inline Parsed parse_all_ways(const ParseCase& c, std::string_view text) {
  const Parsed whole = parse(c, {text});
  std::vector<std::string_view> bytes;
  for (size_t i = 0; i < text.size(); ++i) bytes.push_back(text.substr(i, 1));
  EXPECT_EQ(parse(c, bytes), whole) << "byte by byte: " << text;
  for (size_t at = 1; at < text.size() && !testing::Test::HasFailure(); ++at) {
    EXPECT_EQ(parse(c, {text.substr(0, at), text.substr(at)}), whole) << "cut at " << at << ": " << text;
  }
  std::mt19937 random(1);
  for (int round = 0; round < 50 && !testing::Test::HasFailure(); ++round) {
    std::vector<std::string_view> pieces;
    for (size_t at = 0; at < text.size(); at += pieces.back().size()) pieces.push_back(text.substr(at, random() % 9));
    EXPECT_EQ(parse(c, pieces), whole) << "round " << round << ": " << text;
  }
  return whole;
}

// Every beginning of a text, as if the answer had ended there: nothing is said but what is whole (parse checks that).
inline void parse_every_beginning(ParseCase c, std::string_view text) {
  for (const bool complete : {false, true}) {
    c.complete = complete;
    for (size_t size = 0; size <= text.size() && !testing::Test::HasFailure(); ++size) {
      std::vector<std::string_view> bytes;
      for (size_t i = 0; i < size; ++i) bytes.push_back(text.substr(i, 1));
      EXPECT_EQ(parse(c, bytes), parse(c, {text.substr(0, size)})) << text.substr(0, size);
    }
  }
}

inline OutputFormat format_of(const std::string& reasoning, const std::string& calls) {
  return OutputFormat::choose(reasoning, calls, "");
}

inline std::vector<ToolFunction> functions_of(const std::string& text) {
  std::vector<ToolFunction> functions;
  const json::value parsed = json::parse(text);
  for (const auto& entry : parsed.as_object()) {
    functions.push_back({entry.key(), json::object{{"type", "object"}, {"properties", entry.value()}}});
  }
  return functions;
}

}  // namespace carpool
