// Equality with the Python package on real books, run by hand: see python/compare/tokenizer_books.py.
//
// Skips where the books, the embedded model's tokenizer or the reference ids are absent. CARPOOL_TOKENIZER may name
// another tokenizer, a tokenizer.json, a .gguf file or a model directory, and CARPOOL_TOKENIZER_TEXTS another folder.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/json.h"
#include "base/source_dir_test_util.h"
#include "text/tokenizer_files.h"
#include "text/tokenizer_gguf.h"

namespace carpool {
namespace {

std::string environment_or(const char* name, const std::string& fallback) {
  const char* value = std::getenv(name);
  return value ? value : fallback;
}

Tokenizer load_any(const std::string& path) {
  if (is_gguf_path(path)) return gguf_tokenizer(GgufFile::open(path).metadata());
  return std::filesystem::is_directory(path) ? load_tokenizer(path) : Tokenizer::load(path);
}

TEST(TokenizerBooks, IdsOfRealBooksEqualThoseOfTheReference) {
  const std::string source = source_dir();
  const std::string books = environment_or("CARPOOL_TOKENIZER_TEXTS", source + "/../shared/data/books") + "/";
  const std::string tokenizer_path = environment_or("CARPOOL_TOKENIZER", source + "/models/books-qwen3/tokenizer.json");
  const std::string ids_path = environment_or("CARPOOL_TOKENIZER_IDS", "");
  if (ids_path.empty()) GTEST_SKIP() << "CARPOOL_TOKENIZER_IDS is not set";
  for (const std::string& path : {books, tokenizer_path}) {
    if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent";
  }
  const Tokenizer tokenizer = load_any(tokenizer_path);
  const std::string file = read_text_file(ids_path);
  std::vector<uint32_t> values(file.size() / 4);
  std::memcpy(values.data(), file.data(), values.size() * 4);
  size_t pos = 0, compared = 0, differing = 0;
  const auto take = [&] { return values.at(pos++); };
  while (pos < values.size()) {
    std::string name(take(), '\0');
    for (char& c : name) c = static_cast<char>(take());
    std::vector<int> expected(take());
    for (int& id : expected) id = static_cast<int>(take());
    const std::string text = read_text_file(books + name);
    const std::vector<int> ids = tokenizer.encode(text, true);
    EXPECT_EQ(ids.size(), expected.size()) << name;
    for (size_t i = 0; i < expected.size(); ++i) differing += i >= ids.size() || ids[i] != expected[i];
    compared += expected.size();
  }
  RecordProperty("ids_compared", static_cast<int>(compared));
  EXPECT_GT(compared, 0u);
  EXPECT_EQ(differing, 0u) << "of " << compared << " ids";
}

}  // namespace
}  // namespace carpool
