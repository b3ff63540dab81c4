// Stop strings and unfinished characters, at every way of cutting a text into tokens.
#include "engine/text_stream.h"

#include <gtest/gtest.h>

#include <random>

#include "base/json.h"
#include "text/dummy_tokenizer.h"

namespace carpool {
namespace {

// How byte-level vocabularies spell a byte: printable Latin-1 stands for itself, the rest for code points from 256 on.
std::string spelling(int byte) {
  const auto printable = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 255 && b != 173); };
  int point = byte;
  if (!printable(byte)) {
    point = 256;
    for (int b = 0; b < byte; ++b) point += printable(b) ? 0 : 1;
  }
  if (point < 128) return std::string(1, static_cast<char>(point));
  return {static_cast<char>(0xc0 | (point >> 6)), static_cast<char>(0x80 | (point & 63))};
}

// A byte-level tokenizer of all single bytes and a few longer tokens, so that texts can be cut in many ways.
Tokenizer bytes_tokenizer() {
  json::object vocab;
  const auto add = [&](const std::string& token) { vocab[token] = vocab.size(); };
  for (int b = 0; b < 256; ++b) add(spelling(b));
  for (const char* token : {"ab", "abc", "ba", "baba", "st", "op", "stop", "xs"}) add(token);
  const json::object root{
      {"model", json::object{{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array{}}}},
      {"decoder", json::object{{"type", "ByteLevel"}}},
      {"pre_tokenizer", json::object{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
      {"added_tokens", json::array{}}};
  return Tokenizer::parse(json::serialize(root), "test");
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
  const Outcome r = run(tokenizer, {"a", spelling(0xf0), spelling(0x9f), spelling(0x98), spelling(0x80)}, {});
  EXPECT_EQ(r.parts, (std::vector<std::string>{"a", "", "", "", "\xf0\x9f\x98\x80"}));
  EXPECT_EQ(run(tokenizer, {"a", spelling(0xf0), spelling(0x9f)}, {}).text, "a\xef\xbf\xbd")
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
    // The stop that is complete first ends the text, and of several the one that begins first.
    size_t end = std::string::npos, first = 0;
    for (const std::string& s : stops) {
      const size_t at = whole.find(s);
      if (at == std::string::npos || std::pair(at + s.size(), at) >= std::pair(end, first)) continue;
      first = at, end = at + s.size();
    }
    const bool stopped = end != std::string::npos;
    const std::string expected = stopped ? whole.substr(0, first) : whole;
    const Outcome r = run(tokenizer, tokens, stops);
    EXPECT_EQ(r.text, expected);
    EXPECT_EQ(r.stopped, stopped);
  }
}

TEST(TextStream, AnIncludedStopStringIsTheEndOfTheText) {
  const Tokenizer tokenizer = bytes_tokenizer();
  for (const std::vector<std::string>& tokens :
       {std::vector<std::string>{"x", "stop", "z"}, {"xs", "t", "op", "z"}, {"x", "st", "op", "z"}}) {
    TextStream stream(&tokenizer, {"stop"}, /*include_stop=*/true);
    std::string text;
    for (const std::string& token : tokens) text += stream.push(*tokenizer.token_id(token));
    EXPECT_TRUE(stream.stopped());
    EXPECT_EQ(text + stream.finish(), "xstop");
    EXPECT_EQ(stream.matched(), "stop");
  }
}

TEST(TextStream, TheMatchedStopStringIsCompleteFirstAndOfTheseBeginsFirstHoweverTheTextIsCut) {
  const Tokenizer tokenizer = bytes_tokenizer();
  const auto matched = [&](const std::vector<std::string>& tokens, std::vector<std::string> stops) {
    TextStream stream(&tokenizer, std::move(stops), true);
    std::string text;
    for (const std::string& token : tokens) text += stream.push(*tokenizer.token_id(token));
    return std::pair(text, stream.matched());
  };
  using Pair = std::pair<std::string, std::string>;
  EXPECT_EQ(matched({"abc"}, {"c", "bc"}), Pair("abc", "bc"));
  EXPECT_EQ(matched({"abc"}, {"abc", "ab"}), Pair("ab", "ab"));
  EXPECT_EQ(matched({"abc"}, {"ab", "abc"}), Pair("ab", "ab"));
  for (const std::vector<std::string>& cut : {std::vector<std::string>{"b", "a", "b", "a"}, {"ba", "ba"}, {"baba"}}) {
    EXPECT_EQ(matched(cut, {"baba", "ab"}), Pair("bab", "ab")) << cut.size();
  }
  EXPECT_EQ(matched({"ab", "x"}, {"c", "xs"}), Pair("ab", "")) << "x may yet begin xs";
}

TEST(TextStream, SpecialTokensHaveTextWhenTheyAreNotSkipped) {
  const Tokenizer tokenizer = make_dummy_tokenizer(300);
  const auto text_of = [&](std::vector<std::string> stops, bool skip_special) {
    TextStream stream(&tokenizer, std::move(stops), false, skip_special);
    std::string text;
    for (const int id : {int{'a'}, kDummyEndToken, int{'b'}}) text += stream.push(id);
    return text + stream.finish();
  };
  EXPECT_EQ(text_of({}, true), "ab");
  EXPECT_EQ(text_of({}, false), "a<|end|>b");
  EXPECT_EQ(text_of({"|end"}, false), "a<") << "their text is searched for stop strings";
}

TEST(TextStream, HalfACharacterBeforeAStopStringOrTheEndIsOneReplacementCharacter) {
  const Tokenizer tokenizer = make_dummy_tokenizer(257);
  const auto all = [&](const std::vector<int>& ids, std::vector<std::string> stops) {
    TextStream stream(&tokenizer, std::move(stops));
    std::string text;
    for (const int id : ids) text += stream.push(id);
    return text + stream.finish();
  };
  EXPECT_EQ(all({'a', 0xe2, 0x82, 'x', 'y'}, {"x"}), "a\xef\xbf\xbd");
  EXPECT_EQ(all({'a', 0xe2, 0x82, 0xac, 'x'}, {"x"}), "a\xe2\x82\xac");
  EXPECT_EQ(all({'a', 0xe2, 0x82}, {"x"}), "a\xef\xbf\xbd");
  EXPECT_EQ(all({'a', 0xe2, 0x82, 0xac}, {"\xe2\x82\xac"}), "a") << "a stop string of one long character";
  EXPECT_EQ(all({0xff, 'b'}, {}),
            "\xef\xbf\xbd"
            "b")
      << "a byte that begins no character";
}

TEST(TextStream, WithoutATokenizerThereIsNoText) {
  TextStream stream(nullptr, {});
  EXPECT_EQ(stream.push(1) + stream.finish(), "");
}

}  // namespace
}  // namespace carpool
