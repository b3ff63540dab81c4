// Masks against brute force over small vocabularies: a token may come exactly when some text of the language goes on
// so.
#include "grammar/constraint.h"

#include <chrono>
#include <cmath>
#include <random>
#include <regex>

#include "grammar/language_test_util.h"

namespace carpool {
namespace {

std::shared_ptr<const TokenTrie> trie_of(std::vector<std::string> tokens) {
  return std::make_shared<const TokenTrie>(std::move(tokens));
}

ConstraintCursor cursor_of(const StructureSpec& spec, const std::shared_ptr<const TokenTrie>& trie) {
  return ConstraintCursor(std::make_shared<Constraint>(make_grammar(spec), trie));
}

// All texts of at most `longest` bytes that `expression` matches.
std::vector<std::string> language_of(const std::string& expression, std::string_view alphabet, size_t longest) {
  const std::regex oracle(expression);
  std::vector<std::string> out;
  for_all_texts(alphabet, longest, [&](const std::string& text) {
    if (std::regex_match(text, oracle)) out.push_back(text);
  });
  return out;
}

TEST(Constraint, EveryMaskIsWhatBruteForceFinds) {
  const std::vector<std::string> tokens = {"a", "b", "c", "ab", "abc", "ca", "bb", "cab", "aa", "", "aab", "x", "cc"};
  const auto trie = trie_of(tokens);
  for (const char* expression : {"(a|b)c{1,2}", "a{2,3}b?c", "(ab|abc|b)(c|a){1,2}", "(a|aa){2,3}",
                                 "((a|b){1,2}c){1,2}", "a?b?c?", "(cab|ca|c)(b|bb)?", "[^b]{2}a"}) {
    const std::vector<std::string> texts = language_of(expression, "abcx", 6);
    const auto some = [&](const std::string& beginning) {
      return std::any_of(texts.begin(), texts.end(), [&](const std::string& t) { return t.starts_with(beginning); });
    };
    int masks = 0;
    const std::function<void(const ConstraintCursor&, const std::string&)> go = [&](const ConstraintCursor& at,
                                                                                    const std::string& text) {
      ConstraintCursor cursor = at;
      const auto mask = cursor.mask();
      const bool ends = std::find(texts.begin(), texts.end(), text) != texts.end();
      std::vector<int> expected;
      for (size_t id = 0; id < tokens.size(); ++id) {
        if (!tokens[id].empty() && some(text + tokens[id])) expected.push_back(static_cast<int>(id));
      }
      if (expected.empty() && !ends) {
        EXPECT_EQ(mask, nullptr);
        return;
      }
      ASSERT_NE(mask, nullptr) << expression << " after \"" << text << "\"";
      ++masks;
      EXPECT_EQ(mask->can_end, ends) << expression << " after \"" << text << "\"";
      EXPECT_EQ(cursor.complete(), ends && expected.empty());
      std::vector<float> logits(tokens.size(), 1), masked(tokens.size());
      mask->apply(logits, masked);
      for (size_t id = 0; id < tokens.size(); ++id) {
        const bool allowed = std::find(expected.begin(), expected.end(), static_cast<int>(id)) != expected.end();
        EXPECT_EQ(mask->allows(static_cast<int>(id)), allowed)
            << expression << " after \"" << text << "\": " << tokens[id];
        EXPECT_EQ(masked[id], allowed ? 1 : -INFINITY);
        ConstraintCursor next = cursor;
        EXPECT_EQ(next.accept(static_cast<int>(id)), allowed);
        if (allowed) go(next, text + tokens[id]);
      }
    };
    go(cursor_of(regex_spec(expression), trie), "");
    EXPECT_GT(masks, 3) << expression;
  }
}

TEST(Constraint, CountsFarFromTheirEndShareOneMaskAndStillHoldAtTheEnd) {
  const auto trie = trie_of({"a", "aa", "aaa", "b"});
  ConstraintCursor cursor = cursor_of(regex_spec("a{5,1000}b"), trie);
  int n = 0;
  const TokenMask* shared = nullptr;
  std::vector<std::shared_ptr<const TokenMask>> kept;
  while (n < 1000) {
    const auto mask = cursor.mask();
    ASSERT_NE(mask, nullptr);
    kept.push_back(mask);
    EXPECT_EQ(mask->allows(3), n >= 5) << n;
    for (int id = 0; id < 3; ++id) EXPECT_EQ(mask->allows(id), n + id + 1 <= 1000) << n;
    if (n >= 10 && n < 990) {
      if (shared) EXPECT_EQ(mask.get(), shared) << n;
      shared = mask.get();
    }
    ASSERT_TRUE(cursor.accept(0));
    ++n;
  }
  EXPECT_FALSE(cursor.mask()->allows(0));
  EXPECT_TRUE(cursor.accept(3));
  EXPECT_TRUE(cursor.complete());
}

TEST(KnownProblemT26, CharactersMayBeSplitOverTokensAndAreNeverBroken) {
  const auto trie = trie_of({"\"", "\xF0", "\x9F", "\x98\x80", "\x98", "\x80\"", "\xC3", "\xA9", "a"});
  ConstraintCursor cursor = cursor_of(schema_spec(R"({"type":"string"})"), trie);
  for (const int id : {0, 1}) ASSERT_TRUE(cursor.mask()->allows(id) && cursor.accept(id));
  auto mask = cursor.mask();
  for (const int id : {0, 1, 5, 6, 8}) EXPECT_EQ(mask->allows(id), false) << "no start of a character within one";
  EXPECT_TRUE(mask->allows(4) && mask->allows(7)) << "98 and A9 may follow F0, too";
  EXPECT_TRUE(mask->allows(2) && cursor.accept(2));
  mask = cursor.mask();
  EXPECT_TRUE(mask->allows(3) && mask->allows(4)) << "the rest of the character, at once or in parts";
  EXPECT_FALSE(mask->allows(0) || mask->allows(8));
  ASSERT_TRUE(cursor.accept(4));
  mask = cursor.mask();
  EXPECT_TRUE(mask->allows(5)) << "the end of the character together with what follows";
  ASSERT_TRUE(cursor.accept(5));
  EXPECT_TRUE(cursor.complete());
}

TEST(Constraint, ADeadEndOfTheVocabularyHasNoMask) {
  ConstraintCursor cursor = cursor_of(regex_spec("ab"), trie_of({"a", "c"}));
  ASSERT_NE(cursor.mask(), nullptr);
  ASSERT_TRUE(cursor.accept(0));
  EXPECT_EQ(cursor.mask(), nullptr);
}

TEST(Constraint, AfterAWrongTokenThereIsNoMask) {
  ConstraintCursor cursor = cursor_of(regex_spec("ab*"), trie_of({"a", "b", "c"}));
  EXPECT_FALSE(cursor.accept(2));
  EXPECT_EQ(cursor.mask(), nullptr);
  EXPECT_FALSE(cursor.can_end());
  EXPECT_FALSE(cursor.accept(0));
}

TEST(Constraint, WorkBeyondItsLimitGivesNoMaskInsteadOfAFreeOne) {
  std::vector<std::string> tokens;
  for (int i = 0; i < 26 * 26; ++i)
    tokens.push_back({static_cast<char>('a' + i / 26), static_cast<char>('a' + i % 26)});
  MatcherLimits limits;
  limits.work = 10;
  ConstraintCursor cursor(
      std::make_shared<Constraint>(make_grammar(regex_spec("([a-z]{1,3}-?){1,9}")), trie_of(tokens), limits));
  EXPECT_EQ(cursor.mask(), nullptr);
}

// What a full cache forgets is found again: the masks do not change.
TEST(Constraint, ASmallCacheChangesNoMask) {
  const auto trie = trie_of({"a", "b", "ab", "ba", "bb", "c"});
  const auto grammar = make_grammar(regex_spec("((a|b){1,7}c){1,30}"));
  MatcherLimits small;
  small.states = 12;
  small.frames = 40;
  ConstraintCursor one(std::make_shared<Constraint>(grammar, trie)),
      two(std::make_shared<Constraint>(grammar, trie, small));
  std::mt19937 random(3);
  for (int i = 0; i < 150 && !one.complete(); ++i) {
    const auto a = one.mask(), b = two.mask();
    ASSERT_NE(a, nullptr);
    ASSERT_NE(b, nullptr) << i;
    std::vector<int> allowed;
    for (int id = 0; id < 6; ++id) {
      EXPECT_EQ(a->allows(id), b->allows(id)) << i;
      if (a->allows(id)) allowed.push_back(id);
    }
    EXPECT_EQ(a->can_end, b->can_end);
    const int id = allowed[random() % allowed.size()];
    ASSERT_TRUE(one.accept(id));
    ASSERT_TRUE(two.accept(id));
  }
}

TEST(Constraint, CopiesGoTheirOwnWays) {
  const auto trie = trie_of({"a", "b"});
  ConstraintCursor one = cursor_of(regex_spec("ab|ba"), trie);
  ConstraintCursor two = one;
  EXPECT_TRUE(one.accept(0));
  EXPECT_TRUE(two.accept(1));
  EXPECT_TRUE(one.mask()->allows(1) && !one.mask()->allows(0));
  EXPECT_TRUE(two.mask()->allows(0) && !two.mask()->allows(1));
}

}  // namespace
}  // namespace carpool
