// The made-up vocabulary: every id has a text of its own, and every text has ids.
#include "text/dummy_tokenizer.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"

namespace carpool {
namespace {

TEST(DummyTokenizer, BytesAreTheFirstIdsAndTextsComeBackWhole) {
  const Tokenizer tokenizer = make_dummy_tokenizer(1000);
  EXPECT_EQ(tokenizer.vocab_size(), 1000);
  EXPECT_EQ(tokenizer.encode("aB 7\n", true), (std::vector<int>{'a', 'B', ' ', '7', '\n'}));
  for (const std::string text : {"a t300 b", "caf\xc3\xa9 \xf0\x9f\x98\x80", " t999 t257", "\t\r\n  "}) {
    const std::vector<int> ids = tokenizer.encode(text, true);
    EXPECT_EQ(ids.size(), text.size());
    EXPECT_EQ(tokenizer.decode(ids, false), text);
  }
}

TEST(DummyTokenizer, FurtherIdsHaveShortAsciiTextsOfTheirOwn) {
  const Tokenizer tokenizer = make_dummy_tokenizer(5000);
  std::set<std::string> seen;
  for (int id = kDummyEndToken + 1; id < 5000; ++id) {
    const std::string text = tokenizer.token_bytes(id);
    EXPECT_EQ(text, " t" + std::to_string(id));
    EXPECT_FALSE(tokenizer.is_special(id));
    seen.insert(text);
  }
  EXPECT_EQ(seen.size(), 5000u - 257u);
  EXPECT_EQ(tokenizer.decode(std::vector<int>{300, 'x', 4999}, true), " t300x t4999");
}

TEST(DummyTokenizer, OneSpecialTokenEndsATextAndUsersCannotSpellIt) {
  const Tokenizer tokenizer = make_dummy_tokenizer(257);
  EXPECT_TRUE(tokenizer.is_special(kDummyEndToken));
  EXPECT_TRUE(tokenizer.is_control(kDummyEndToken));
  EXPECT_EQ(tokenizer.encode("a<|end|>", false), (std::vector<int>{'a', kDummyEndToken}));
  EXPECT_EQ(tokenizer.encode("a<|end|>", false, /*parse_special=*/false).size(), 8u);
  EXPECT_EQ(tokenizer.decode(std::vector<int>{'a', kDummyEndToken}, true), "a");
}

TEST(DummyTokenizer, VocabulariesOfTheWrongSizeAreRefused) {
  EXPECT_THROW(make_dummy_tokenizer(256), Error);
  EXPECT_THROW(make_dummy_tokenizer(0), Error);
  EXPECT_THROW(make_dummy_tokenizer((1 << 22) + 1), Error);
}

TEST(DummyTokenizer, LargeVocabulariesWork) {
  const Tokenizer tokenizer = make_dummy_tokenizer(40000);
  EXPECT_EQ(tokenizer.vocab_size(), 40000);
  EXPECT_EQ(tokenizer.token_bytes(39999), " t39999");
}

}  // namespace
}  // namespace carpool
