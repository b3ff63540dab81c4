// Data sets: the same seed the same prompts, the lengths that were asked for, and files of every shape.
#include "measure/load_dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"

namespace carpool {
namespace {

int words_in(const std::string& text) {
  return text.empty() ? 0 : static_cast<int>(std::count(text.begin(), text.end(), ' ')) + 1;
}

std::vector<std::string> texts(const std::vector<LoadPrompt>& prompts) {
  std::vector<std::string> out;
  for (const LoadPrompt& p : prompts) out.push_back(p.text);
  return out;
}

TEST(RandomIds, AreConsecutiveModuloTheVocabularyAndDependOnTheSeedAlone) {
  const auto a = random_ids(20, {64, 16, 0.5}, 50, 1);
  const auto b = random_ids(20, {64, 16, 0.5}, 50, 1);
  ASSERT_EQ(a.size(), 20u);
  std::set<std::vector<int>> different;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].ids, b[i].ids);
    EXPECT_EQ(a[i].input_tokens, static_cast<int>(a[i].ids.size()));
    EXPECT_GE(a[i].input_tokens, 32);
    EXPECT_LE(a[i].input_tokens, 64);
    EXPECT_GE(a[i].output_tokens, 8);
    EXPECT_LE(a[i].output_tokens, 16);
    for (size_t j = 1; j < a[i].ids.size(); ++j) EXPECT_EQ(a[i].ids[j], (a[i].ids[j - 1] + 1) % 50);
    different.insert(a[i].ids);
  }
  EXPECT_GT(different.size(), 10u);
  EXPECT_NE(random_ids(20, {64, 16, 0.5}, 50, 2)[0].ids, a[0].ids);
}

TEST(RandomLengths, AreUniformFromOneByDefaultAndFixedAtRatioOne) {
  std::mt19937_64 random(3);
  std::set<int> seen;
  for (int i = 0; i < 400; ++i) seen.insert(draw_length(random, 8, 0));
  EXPECT_EQ(seen, (std::set<int>{1, 2, 3, 4, 5, 6, 7, 8}));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(draw_length(random, 8, 1), 8);
  EXPECT_EQ(draw_length(random, 1, 0), 1);
}

TEST(RandomText, HasTheLengthThatWasAskedFor) {
  const RandomText by_words(TokenCounter{});
  for (const LoadPrompt& p : random_text(30, {40, 8, 0}, by_words, 5)) EXPECT_EQ(words_in(p.text), p.input_tokens);
  // A tokenizer in which every word of more than four letters is two tokens.
  const auto cost = [](const std::string& word) { return word.size() > 5 ? 2 : 1; };
  const RandomText by_tokens(cost);
  for (const LoadPrompt& p : random_text(30, {40, 8, 0}, by_tokens, 5)) {
    int tokens = 0;
    std::string word;
    for (const char c : p.text + " ") {
      if (c != ' ') {
        word += c;
        continue;
      }
      tokens += cost(" " + word);
      word.clear();
    }
    EXPECT_EQ(tokens, p.input_tokens) << p.text;
  }
}

TEST(RandomText, IsTheSameForTheSameSeedOnly) {
  const RandomText words(TokenCounter{});
  EXPECT_EQ(texts(random_text(5, {20, 8, 1}, words, 5)), texts(random_text(5, {20, 8, 1}, words, 5)));
  EXPECT_NE(texts(random_text(5, {20, 8, 1}, words, 5)), texts(random_text(5, {20, 8, 1}, words, 6)));
}

TEST(SharedPrefix, GroupsShareTheirBeginningAndNothingElse) {
  const RandomText words(TokenCounter{});
  const auto prompts = shared_prefix({3, 4, 50, 10, 6, 1}, words, 9);
  ASSERT_EQ(prompts.size(), 12u);
  std::map<std::string, int> beginnings;
  std::set<std::string> whole;
  for (const LoadPrompt& p : prompts) {
    ++beginnings[p.text.substr(0, p.text.find("\n\n"))];
    whole.insert(p.text);
    EXPECT_EQ(p.input_tokens, 60);
    EXPECT_EQ(p.output_tokens, 6);
  }
  EXPECT_EQ(beginnings.size(), 3u);
  for (const auto& [text, n] : beginnings) {
    EXPECT_EQ(n, 4);
    EXPECT_EQ(words_in(text), 50);
  }
  EXPECT_EQ(whole.size(), 12u);
}

constexpr const char* kLines =
    "{\"prompt\": \"One\", \"output_len\": 11}\n"
    "\n"
    "{\"conversations\": [{\"from\": \"human\", \"value\": \"Two\"}, {\"from\": \"gpt\", \"value\": \"a b c\"}]}\n"
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", \"content\": [{\"type\": "
    "\"text\", \"text\": \"Three\"}]}, {\"role\": \"assistant\", \"content\": \"a b\"}]}\r\n"
    "{\"prompt\": \"Four\"}\n";

LoadPrompt find(const LoadDataset& set, const std::string& part) {
  for (const LoadPrompt& p : set.prompts) {
    if (p.text.find(part) != std::string::npos) return p;
  }
  ADD_FAILURE() << "no prompt with " << part;
  return {};
}

TEST(CustomPrompts, ReadAllThreeShapes) {
  const LoadDataset set = custom_prompts(kLines, "x.jsonl", 4, 99, {}, 1);
  ASSERT_EQ(set.prompts.size(), 4u);
  EXPECT_TRUE(set.notes.empty());
  EXPECT_EQ(find(set, "One").output_tokens, 11);
  EXPECT_EQ(find(set, "Two").output_tokens, 3) << "as long as the answer in the file";
  EXPECT_EQ(find(set, "Two").messages.size(), 1u);
  const LoadPrompt three = find(set, "Three");
  EXPECT_EQ(three.text, "Be brief.\nThree");
  EXPECT_EQ(three.output_tokens, 2);
  ASSERT_EQ(three.messages.size(), 2u) << "the answer is not part of the question";
  EXPECT_EQ(three.messages[0].at("role"), "system");
  EXPECT_EQ(find(set, "Four").output_tokens, 99);
}

TEST(CustomPrompts, AnswersAreCountedByTheServersTokenizerWhenThereIsOne) {
  const auto letters = [](const std::string& text) { return static_cast<int>(text.size()); };
  EXPECT_EQ(find(custom_prompts(kLines, "x.jsonl", 4, 99, letters, 1), "Two").output_tokens, 5);
}

TEST(CustomPrompts, AreDrawnBySeedAndRepeatWithANote) {
  const auto order = [](int count, uint64_t seed) {
    return texts(custom_prompts(kLines, "x", count, 9, {}, seed).prompts);
  };
  EXPECT_EQ(order(4, 1), order(4, 1));
  std::set<std::vector<std::string>> orders;
  for (uint64_t seed = 0; seed < 8; ++seed) orders.insert(order(4, seed));
  EXPECT_GT(orders.size(), 1u);
  EXPECT_EQ(order(2, 1), (std::vector<std::string>{order(4, 1)[0], order(4, 1)[1]}));
  const LoadDataset more = custom_prompts(kLines, "x", 10, 9, {}, 1);
  EXPECT_EQ(more.prompts.size(), 10u);
  EXPECT_EQ(more.prompts[9].text, more.prompts[1].text);
  EXPECT_EQ(more.prompts[9].output_tokens, more.prompts[1].output_tokens);
  ASSERT_EQ(more.notes.size(), 1u);
  EXPECT_NE(more.notes[0].find("10 requests repeat 4 prompts"), std::string::npos) << more.notes[0];
}

TEST(CustomPrompts, OneJsonArrayIsAsGoodAsLines) {
  const LoadDataset set = custom_prompts("  [{\"prompt\": \"One\"}, {\"prompt\": \"Two\"}]", "x.json", 2, 9, {}, 1);
  EXPECT_EQ(set.prompts.size(), 2u);
}

TEST(CustomPrompts, EntriesWithoutAPromptAreCountedAndNotDroppedSilently) {
  const LoadDataset set = custom_prompts(
      "{\"conversations\": []}\n{\"prompt\": \"\"}\n{\"prompt\": \"a\"}\n{\"messages\": [{\"role\": \"assistant\"}]}",
      "x.jsonl", 1, 9, {}, 1);
  ASSERT_EQ(set.notes.size(), 1u);
  EXPECT_NE(set.notes[0].find("3 of 4 entries"), std::string::npos) << set.notes[0];
}

TEST(CustomPrompts, WhatIsWrongIsNamedWithItsLine) {
  const auto refused = [](const std::string& text, const std::string& part) {
    try {
      custom_prompts(text, "x.jsonl", 1, 9, {}, 1);
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kMalformed);
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  refused("{\"prompt\": \"a\"}\n{\"question\": \"b\"}", "x.jsonl line 2");
  refused("{\"prompt\": \"a\"}\n{", "x.jsonl line 2");
  refused("{\"prompt\": 3}", "prompt");
  refused("{\"prompt\": \"a\", \"output_len\": -1}", "output_len");
  refused("[{\"prompt\": \"a\"}, 3]", "entry 2");
  refused("", "no prompt");
}

}  // namespace
}  // namespace carpool
