// Stop strings and unfinished characters, at every way of cutting a text into tokens.
#include "engine/text_stream.h"

#include <gtest/gtest.h>

#include <random>

namespace carpool {
namespace {

// A byte-level tokenizer of single bytes and a few longer tokens, so that texts can be cut in many ways.
Tokenizer bytes_tokenizer() {
  std::string vocab;
  int id = 0;
  const auto add = [&](const std::string& token) {
    vocab += (id ? "," : "") + ('"' + token + "\":" + std::to_string(id));
    ++id;
  };
  for (char c = 'a'; c <= 'z'; ++c) add(std::string(1, c));
  for (const char* token :
       {"\\u0120", "ab", "abc", "st", "op", "stop", "xs", "\\u00f0", "\\u0141", "\\u013a", "\\u0122"})
    add(token);
  return Tokenizer::parse("{\"model\":{\"type\":\"BPE\",\"vocab\":{" + vocab +
                              "},\"merges\":[]},\"decoder\":{\"type\":\"ByteLevel\"}," +
                              "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":"
                              "false},\"added_tokens\":[]}",
                          "test");
}

struct Outcome {
  std::string text;
  bool stopped = false;
  std::vector<std::string> parts;
};

Outcome run(const Tokenizer& tokenizer, const std::vector<std::string>& tokens, const std::vector<std::string>& stops) {
  TextStream stream(&tokenizer, stops);
  Outcome out;
  for (const std::string& token : tokens) {
    out.parts.push_back(stream.push(*tokenizer.token_id(token)));
    out.text += out.parts.back();
    if (stream.stopped()) break;
  }
  if (!stream.stopped()) out.text += stream.finish();
  out.stopped = stream.stopped();
  return out;
}

TEST(TextStream, AStopStringEndsTheTextBeforeItHoweverItIsCutIntoTokens) {
  const Tokenizer tokenizer = bytes_tokenizer();
  for (const std::vector<std::string>& tokens : {std::vector<std::string>{"x", "stop", "z"},
                                                 {"xs", "t", "op", "z"},
                                                 {"x", "s", "t", "o", "p", "z"},
                                                 {"x", "st", "op", "z"}}) {
    const Outcome r = run(tokenizer, tokens, {"stop"});
    EXPECT_TRUE(r.stopped);
    EXPECT_EQ(r.text, "x");
  }
}

TEST(TextStream, TheFirstOfSeveralStopStringsCounts) {
  const Tokenizer tokenizer = bytes_tokenizer();
  EXPECT_EQ(run(tokenizer, {"a", "b", "c", "d"}, {"cd", "bc"}).text, "a");
  EXPECT_EQ(run(tokenizer, {"abc", "d"}, {"d", "b"}).text, "a");
}

TEST(TextStream, WhatOnlyLooksLikeAStopStringIsHeldBackAndThenGivenOut) {
  const Tokenizer tokenizer = bytes_tokenizer();
  const Outcome r = run(tokenizer, {"x", "s", "t", "o", "x"}, {"stop"});
  EXPECT_FALSE(r.stopped);
  EXPECT_EQ(r.text, "xstox");
  EXPECT_EQ(r.parts, (std::vector<std::string>{"x", "", "", "", "stox"}));
  EXPECT_EQ(run(tokenizer, {"x", "s", "t"}, {"stop"}).text, "xst") << "the end gives out what was held back";
}

TEST(TextStream, HalfACharacterIsHeldBack) {
  const Tokenizer tokenizer = bytes_tokenizer();
  // The bytes of U+1F600 one by one: F0 9F 98 80.
  const Outcome r = run(tokenizer, {"a", "\xc3\xb0", "\xc5\x81", "\xc4\xba", "\xc4\xa2"}, {});
  EXPECT_EQ(r.parts, (std::vector<std::string>{"a", "", "", "", "\xf0\x9f\x98\x80"}));
  EXPECT_EQ(run(tokenizer, {"a", "\xc3\xb0", "\xc5\x81"}, {}).text, "a\xef\xbf\xbd")
      << "cut in the middle: one replacement character";
}

TEST(TextStream, RandomTextsAgreeWithSearchingTheWholeText) {
  const Tokenizer tokenizer = bytes_tokenizer();
  std::mt19937 random(1);
  const std::vector<std::string> alphabet = {"a", "b", "c", "ab", "abc"};
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::string> tokens, stops;
    std::string whole;
    for (unsigned n = random() % 12; n-- > 0;) whole += tokens.emplace_back(alphabet[random() % alphabet.size()]);
    for (unsigned n = 1 + random() % 3; n-- > 0;) {
      std::string stop;
      for (unsigned k = 1 + random() % 4; k-- > 0;) stop += static_cast<char>('a' + random() % 3);
      stops.push_back(stop);
    }
    // A stop counts as soon as it is complete: at the first token after which one is found, before the earliest found.
    std::string expected = whole, seen;
    bool stopped = false;
    for (const std::string& token : tokens) {
      seen += token;
      size_t first = std::string::npos;
      for (const std::string& s : stops) first = std::min(first, seen.find(s));
      if (first != std::string::npos) {
        expected = seen.substr(0, first);
        stopped = true;
        break;
      }
    }
    const Outcome r = run(tokenizer, tokens, stops);
    EXPECT_EQ(r.text, expected);
    EXPECT_EQ(r.stopped, stopped);
  }
}

TEST(TextStream, WithoutATokenizerThereIsNoText) {
  TextStream stream(nullptr, {});
  EXPECT_EQ(stream.push(1) + stream.finish(), "");
}

}  // namespace
}  // namespace carpool
