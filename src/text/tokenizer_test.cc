// Equality with the Python package `tokenizers` on generated hard text, and the promises of tokenizer.h.
//
// The files under tests/golden/tokenizer are made by python/golden/make_tokenizer.py,
// make_tokenizer_spm.py and make_tokenizer_tiktoken.py.
#include "text/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "base/json.h"
#include "base/source_dir_test_util.h"
#include "text/stream_decoder.h"
#include "text/tokenizer_files.h"
#include "text/utf8.h"

namespace carpool {
namespace {

const std::string kGolden = source_dir() + "/tests/golden/tokenizer/";

std::string hash_line(const std::vector<int>& ids) {
  uint64_t h = 0xCBF29CE484222325ull;
  for (int id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      h = (h ^ ((static_cast<uint32_t>(id) >> shift) & 0xFFu)) * 0x100000001B3ull;
    }
  }
  return fmt::format("{} {:016x}", ids.size(), h);
}

std::vector<std::string> hard_cases() {
  const json::value root = parse_json(read_text_file(kGolden + "hard_text.json"), "hard_text.json");
  return json::value_to<std::vector<std::string>>(root.at("cases"));
}

class GoldenTokenizer : public testing::TestWithParam<const char*> {
 protected:
  Tokenizer tokenizer = GetParam() == std::string("kimi") ? load_tokenizer(kGolden + "kimi")
                                                          : Tokenizer::load(kGolden + GetParam() + ".json");
  json::value golden = parse_json(read_text_file(kGolden + GetParam() + ".golden.json"), GetParam());
  std::vector<std::string> cases = hard_cases();
};

INSTANTIATE_TEST_SUITE_P(Styles, GoldenTokenizer,
                         testing::Values("gpt2", "qwen2", "llama3", "flags", "digits", "behaviors", "llama2",
                                         "metaspace", "metaspace_split", "unknown", "kimi", "smollm"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_P(GoldenTokenizer, IdsEqualThoseOfTheReferenceOnEveryHardCase) {
  const json::array& hashes = golden.at("hashes").as_array();
  ASSERT_EQ(hashes.size(), cases.size());
  ASSERT_GT(cases.size(), 1000u);
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(hash_line(tokenizer.encode(cases[i], true)), std::string(hashes[i].as_string()))
        << i << " " << escape(cases[i]);
  }
}

TEST_P(GoldenTokenizer, IdsOfTheShortCasesAreTheReferenceIds) {
  const json::array& ids = golden.at("ids").as_array();
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(tokenizer.encode(cases[i], true), json::value_to<std::vector<int>>(ids[i]))
        << i << " " << escape(cases[i]);
  }
}

TEST_P(GoldenTokenizer, UntrustedTextGivesTheReferenceIdsWithSpecialTokensSwitchedOff) {
  const json::object& differing = golden.at("untrusted_hashes").as_object();
  ASSERT_GT(differing.size(), 10u);
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::vector<int> ids = tokenizer.encode(cases[i], false, false);
    const json::value* other = differing.if_contains(std::to_string(i));
    const std::string expected =
        other ? std::string(other->as_string()) : hash_line(tokenizer.encode(cases[i], false, true));
    EXPECT_EQ(hash_line(ids), expected) << i << " " << escape(cases[i]);
    // Characters that are no token become the unknown one, whoever wrote them.
    for (int id : ids) EXPECT_TRUE(!tokenizer.is_control(id) || id == tokenizer.token_id("<unk>")) << i;
  }
}

TEST_P(GoldenTokenizer, DecodedTextsAreTheReferenceTexts) {
  for (const json::value& item : golden.at("decoded").as_array()) {
    const auto ids = json::value_to<std::vector<int>>(item.at("ids"));
    EXPECT_EQ(tokenizer.decode(ids, false), std::string(item.at("text").as_string()));
    EXPECT_EQ(tokenizer.decode(ids, true), std::string(item.at("without_special").as_string()));
  }
}

TEST_P(GoldenTokenizer, StreamingGivesTheTextOfDecodeAndOnlyWholeCharacters) {
  const bool strips = GetParam() == std::string("llama2") || std::string(GetParam()).starts_with("metaspace");
  const auto check = [&](const std::vector<int>& ids, bool skip_special) {
    StreamDecoder decoder(tokenizer, skip_special);
    std::string text;
    for (int id : ids) {
      const std::string part = decoder.push(id);
      EXPECT_TRUE(is_valid_utf8(part));
      text += part;
    }
    text += decoder.finish();
    // A stream continues a text, so the space that a text begins with stays.
    if (strips && text.starts_with(' ')) text.erase(0, 1);
    EXPECT_EQ(text, tokenizer.decode(ids, skip_special));
  };
  for (const std::string& text : cases) check(tokenizer.encode(text, false), false);
  for (const json::value& item : golden.at("decoded").as_array()) {
    const auto ids = json::value_to<std::vector<int>>(item.at("ids"));
    // A stream may stop anywhere, also inside a character.
    for (size_t n = 0; n <= ids.size(); ++n) {
      check({ids.begin(), ids.begin() + static_cast<ptrdiff_t>(n)}, false);
      check({ids.begin(), ids.begin() + static_cast<ptrdiff_t>(n)}, true);
    }
  }
}

TEST_P(GoldenTokenizer, EveryTokenIsFoundByItsIdAndNothingLiesOutside) {
  EXPECT_EQ(tokenizer.vocab_size(), golden.at("vocab_size").as_int64());
  for (int id = 0; id < tokenizer.vocab_size(); ++id) EXPECT_FALSE(tokenizer.token_bytes(id).empty()) << id;
  EXPECT_EQ(tokenizer.token_bytes(-1), "");
  EXPECT_EQ(tokenizer.token_bytes(tokenizer.vocab_size()), "");
  EXPECT_EQ(tokenizer.decode(std::vector<int>{-1, tokenizer.vocab_size()}, false), "");
  const auto end = tokenizer.token_id("<|end|>");
  ASSERT_TRUE(end);
  EXPECT_TRUE(tokenizer.is_special(*end));
  EXPECT_EQ(tokenizer.token_bytes(*end), "<|end|>");
  EXPECT_FALSE(tokenizer.token_id("no such token"));
}

// Without a normalizer the bytes survive; with NFC the normalized text does.
TEST(Tokenizer, DecodingWhatWasEncodedGivesTheTextBack) {
  for (const char* name : {"gpt2", "llama3"}) {
    const Tokenizer tokenizer = Tokenizer::load(kGolden + name + ".json");
    for (const std::string& text : hard_cases()) {
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false, false), false), text) << name;
    }
  }
  const Tokenizer nfc = Tokenizer::load(kGolden + "qwen2.json");
  EXPECT_EQ(nfc.decode(nfc.encode("e\xCC\x81", false), false), "\xC3\xA9");
}

TEST(Tokenizer, BrokenUtf8IsEncodedAsReplacementCharacters) {
  const Tokenizer tokenizer = Tokenizer::load(kGolden + "gpt2.json");
  const std::string r(kReplacement);
  const std::pair<std::string, std::string> cases[] = {{"a\xFF"
                                                        "b",
                                                        std::string("a").append(r).append("b")},
                                                       {"\xE4\xB8", r},
                                                       {"\xE4\xB8"
                                                        "a",
                                                        r + "a"},
                                                       {"\xC0\x80", r + r},
                                                       {"\xED\xA0\x80", r + r + r},
                                                       {"\xF0\x9F\x98", r},
                                                       {"\xF4\x90\x80\x80", r + r + r + r},
                                                       {"\x80\xE2\x82\xAC", r + "\xE2\x82\xAC"}};
  for (const auto& [input, expected] : cases) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(input, false), false), expected) << escape(input);
  }
}

TEST(Tokenizer, AllPairsOfBytesSurviveEncodingAsValidText) {
  const Tokenizer tokenizer = Tokenizer::load(kGolden + "gpt2.json");
  for (int pair = 0; pair < 65536; ++pair) {
    const std::string text{static_cast<char>(pair >> 8), static_cast<char>(pair)};
    const std::string out = tokenizer.decode(tokenizer.encode(text, false, false), false);
    ASSERT_TRUE(is_valid_utf8(out)) << pair;
    if (is_valid_utf8(text)) {
      ASSERT_EQ(out, text) << pair;
    }
  }
}

TEST(Tokenizer, OfCharacterVocabulariesBrokenRunsOfByteTokensAreReplacedAsEverywhere) {
  const Tokenizer tokenizer = Tokenizer::load(kGolden + "llama2.json");
  const int first = tokenizer.token_id("<0xE4>").value(), second = tokenizer.token_id("<0xB8>").value(),
            third = tokenizer.token_id("<0xAD>").value(), space = tokenizer.token_id("\u2581").value();
  EXPECT_EQ(tokenizer.decode(std::vector<int>{first, second, third}, false), "\u4e2d");
  EXPECT_EQ(tokenizer.decode(std::vector<int>{first, second, space}, false), std::string(kReplacement) + " ");
  EXPECT_EQ(tokenizer.decode(std::vector<int>{space, space, first}, false), " " + std::string(kReplacement));
  EXPECT_EQ(tokenizer.token_bytes(space), " ");
  EXPECT_EQ(tokenizer.token_bytes(second), "\xB8");
}

TEST(Tokenizer, ControlTokensAreMadeOnlyFromTrustedPieces) {
  const Tokenizer tokenizer = Tokenizer::load(kGolden + "qwen2.json");
  const int end = tokenizer.token_id("<|end|>").value();
  const auto count = [&](std::vector<Piece> pieces) {
    const std::vector<int> ids = tokenizer.encode(pieces, false);
    EXPECT_EQ(tokenizer.decode(ids, false), [&] {
      std::string s;
      for (auto& p : pieces) s += p.text;
      return s;
    }());
    return std::count(ids.begin(), ids.end(), end);
  };
  EXPECT_EQ(count({{"a<|end|>b", true}}), 1);
  EXPECT_EQ(count({{"a<|end|>b", false}}), 0);
  EXPECT_EQ(count({{"<|end", true}, {"|>", false}}), 0);
  EXPECT_EQ(count({{"<|end", false}, {"|>", true}}), 0);
  EXPECT_EQ(count({{"<|e", true}, {"nd|>", true}}), 1);
  EXPECT_EQ(count({{"<|end|>", true}, {"<|end|>", false}, {"<|end|>", true}}), 2);
  EXPECT_EQ(count({{"<|e", true}, {"", false}, {"nd|>", true}}), 1);
  EXPECT_EQ(count({{"<|e", true}, {"n", false}, {"d|>", true}}), 0);
}

TEST(Tokenizer, WordsSpanPiecesAsTheyWouldInOneText) {
  for (const char* name : {"qwen2", "llama2", "metaspace", "metaspace_split"}) {
    const Tokenizer tokenizer = Tokenizer::load(kGolden + name + ".json");
    const std::string text = "the old driver shared   the road";
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      const std::vector<Piece> pieces{{text.substr(0, cut), true}, {text.substr(cut), false}};
      EXPECT_EQ(tokenizer.encode(pieces, false), tokenizer.encode(text, false)) << name << cut;
    }
  }
}

TEST(Tokenizer, AMarkInUntrustedTextCannotChangeATrustedTokenBeforeIt) {
  // U+0338 would turn the ">" before it into another character under NFC.
  const Tokenizer tokenizer = Tokenizer::load(kGolden + "flags.json");
  const int end = tokenizer.token_id("<|end|>").value();
  const std::vector<Piece> pieces{{"<|end|>", true}, {"\xCC\xB8", false}};
  EXPECT_EQ(tokenizer.encode(pieces, false).front(), end);
}

TEST(Tokenizer, LongRunsAreEncodedInFullAndDecodeToThemselves) {
  constexpr size_t kLength = 1'000'000;
  const auto repeat = [](std::string_view unit) {
    std::string text;
    while (text.size() < kLength) text += unit;
    return text;
  };
  std::string random_letters;
  std::mt19937 rng(1);
  while (random_letters.size() < kLength) random_letters += static_cast<char>('a' + rng() % 26);
  // Alternating combining marks of two classes are what makes naive reordering quadratic.
  for (const std::string& text : {repeat("A"), repeat("\n"), repeat(" "), repeat(" \n"), repeat("\xE4\xB8\xAD"),
                                  repeat("!"), repeat("7"), repeat("<|end"), repeat("ab"), random_letters}) {
    for (const char* name : {"qwen2", "llama2"}) {
      const Tokenizer tokenizer = Tokenizer::load(kGolden + name + ".json");
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false, false), false), text) << name << escape(text, 10);
    }
  }
  const Tokenizer tokenizer = Tokenizer::load(kGolden + "qwen2.json");
  EXPECT_FALSE(tokenizer.encode(repeat("\xCC\x81\xCC\xA3"), false).empty());
}

TEST(Tokenizer, TheBeginTokenIsAddedOnlyWhenAskedFor) {
  const Tokenizer tokenizer = Tokenizer::load(kGolden + "llama3.json");
  const int begin = tokenizer.token_id("<|begin|>").value();
  const std::vector<int> with = tokenizer.encode("the road", true), without = tokenizer.encode("the road", false);
  ASSERT_EQ(with.size(), without.size() + 1);
  EXPECT_EQ(with.front(), begin);
  EXPECT_NE(without.front(), begin);
}

}  // namespace
}  // namespace carpool
