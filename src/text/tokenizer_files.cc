// See tokenizer_files.h.
#include "text/tokenizer_files.h"

#include <filesystem>

#include "text/rank_merges.h"
#include "text/tiktoken.h"

namespace carpool {
namespace {

constexpr const char *kJson = "tokenizer.json", *kRanks = "tiktoken.model", *kConfig = "tokenizer_config.json";

std::string in(const std::string& directory, const char* name) {
  return (std::filesystem::path(directory) / name).string();
}

json::value read_tiktoken(const std::string& directory) {
  const std::string ranks = in(directory, kRanks), config = in(directory, kConfig);
  return tiktoken_json(read_text_file(ranks), ranks, read_text_file(config, 16 << 20), config);
}

bool is_tiktoken(const std::string& directory) {
  std::error_code ignored;
  return !std::filesystem::exists(in(directory, kJson), ignored) &&
         std::filesystem::exists(in(directory, kRanks), ignored);
}

}  // namespace

std::string tokenizer_file(const std::string& directory) {
  if (is_tiktoken(directory)) return in(directory, kRanks);
  std::error_code ignored;
  return std::filesystem::exists(in(directory, kJson), ignored) ? in(directory, kJson) : std::string();
}

Tokenizer load_tokenizer(const std::string& directory) {
  if (!is_tiktoken(directory)) return Tokenizer::load(in(directory, kJson));
  return Tokenizer::from_json(read_tiktoken(directory), in(directory, kRanks));
}

std::string read_tokenizer_json(const std::string& directory) {
  if (!is_tiktoken(directory)) return read_text_file(in(directory, kJson));
  json::value root = read_tiktoken(directory);
  list_merges(root);
  return json::serialize(root);
}

}  // namespace carpool
