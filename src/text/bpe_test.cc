// That merging a word is work in proportion to it. What the ids are is held against the Python package in
// tokenizer_test.cc. Catalogue: T4 of the reliability reference.
#include "text/bpe.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/source_dir_test_util.h"

namespace carpool {
namespace {

std::string repeat(std::string_view unit, size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += unit;
  text.resize(bytes);
  return text;
}

std::string random_letters(size_t bytes) {
  std::mt19937 rng(1);
  std::string text;
  while (text.size() < bytes) text += static_cast<char>('a' + rng() % 26);
  return text;
}

// Pairs that were looked up to merge one word.
double lookups(const BpeModel& model, const std::string& word) {
  BpeModel::Scratch scratch;
  std::vector<int> ids;
  model.encode_word(word, scratch, ids);
  EXPECT_FALSE(ids.empty());
  return static_cast<double>(scratch.lookups);
}

TEST(Bpe, AWordOfAMillionLettersIsWorkInProportionToIt) {
  constexpr size_t kLetters = 1'000'000;
  for (const char* name : {"qwen2", "llama2"}) {
    const std::string path = source_dir() + "/tests/golden/tokenizer/" + name + ".json";
    const json::value root = parse_json(read_text_file(path), path);
    const BpeModel model = BpeModel::load(JsonObject(root, path).object("model"), name == std::string("qwen2"));
    const std::vector<std::function<std::string(size_t)>> words = {
        [](size_t n) { return repeat("A", n); }, [](size_t n) { return repeat("ab", n); },
        [](size_t n) { return repeat("\n", n); }, random_letters};
    for (const auto& word : words) {
      const double quarter = lookups(model, word(kLetters / 4)), whole = lookups(model, word(kLetters));
      EXPECT_GT(quarter, kLetters / 4.0 - 2) << "every pair is looked at";
      EXPECT_LT(whole, 4.1 * quarter) << name;
      EXPECT_LT(whole, 6.0 * kLetters)
          << "a pair when it comes to be and when its turn comes; a join makes two new ones";
    }
  }
}

}  // namespace
}  // namespace carpool
