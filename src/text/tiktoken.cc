// See tiktoken.h.
#include "text/tiktoken.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "text/bpe.h"
#include "text/byte_alphabet.h"
#include "text/gguf_pre_tokenizers.h"

namespace carpool {
namespace {

constexpr int kSpecialTokens = 256;  // ids kept above the ranks, named or not

std::optional<std::string> decode_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  text.remove_suffix(padding);
  std::string out;
  uint32_t bits = 0;
  int n = 0;
  for (const char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = (bits << 6 | static_cast<uint32_t>(digit)) & 0xFFFFFF;
    n += 6;
    if (n < 8) continue;
    n -= 8;
    out += static_cast<char>(bits >> n & 0xFF);
  }
  return out;
}

// The tokens of the file, spelled as in a tokenizer.json, with their ranks as ids.
json::object read_ranks(std::string_view text, const std::string& where) {
  const ByteAlphabet alphabet;
  json::object vocab;
  for (int line = 1; !text.empty(); ++line) {
    const auto fail = [&](const std::string& what) {
      throw Error(ErrorKind::kMalformed, fmt::format("{}: line {}: {}", where, line, what));
    };
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view row = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (row.ends_with('\r')) row.remove_suffix(1);
    if (row.empty()) continue;
    const size_t space = std::min(row.find(' '), row.size());
    const std::optional<std::string> bytes = decode_base64(row.substr(0, space));
    if (!bytes) fail("does not begin with a token in base64");
    const std::string_view number = row.substr(std::min(space + 1, row.size()));
    int rank = -1;
    const auto parsed = std::from_chars(number.data(), number.data() + number.size(), rank);
    if (parsed.ec != std::errc() || parsed.ptr != number.data() + number.size() || rank < 0 || rank >= kMaxTokens) {
      fail(fmt::format("the rank must be 0 to {}", kMaxTokens - 1));
    }
    std::string spelled;
    for (const char c : *bytes) spelled += alphabet.spelling(static_cast<unsigned char>(c));
    if (!vocab.emplace(spelled, rank).second) fail("the token is there twice");
  }
  return vocab;
}

// Ids `first` and up, with the names and flags of the config where it has any.
json::array special_tokens(const JsonObject& config, int64_t first) {
  json::array added;
  for (int64_t id = first; id < first + kSpecialTokens; ++id) {
    added.push_back(json::object{
        {"id", id}, {"content", fmt::format("<|reserved_token_{}|>", id)}, {"special", true}, {"normalized", false}});
  }
  if (!config.has("added_tokens_decoder")) return added;
  const JsonObject named = config.object("added_tokens_decoder");
  for (const auto& [key, value] : named.raw()) {
    int64_t id = -1;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
    const bool whole = parsed.ec == std::errc() && parsed.ptr == key.data() + key.size();
    if (!whole || id < first || id >= first + kSpecialTokens) {
      named.fail(key, fmt::format("must be an id from {} to {}", first, first + kSpecialTokens - 1));
    }
    const JsonObject token = named.object(key);
    json::object& entry = added[static_cast<size_t>(id - first)].as_object();
    entry["content"] = token.string("content");
    entry["special"] = token.boolean_or("special", false);
  }
  return added;
}

}  // namespace

json::value tiktoken_json(std::string_view ranks, const std::string& ranks_where, std::string_view config,
                          const std::string& config_where) {
  const json::value parsed = parse_json(config, config_where);
  const JsonObject settings(parsed, config_where);
  if (const std::string name = settings.string("tokenizer_class"); name != "TikTokenTokenizer") {
    throw Error(
        ErrorKind::kConfig,
        fmt::format("{}: key \"tokenizer_class\": which expression cuts text for the class \"{}\" is unknown; known: "
                    "TikTokenTokenizer",
                    config_where, escape(name)));
  }
  json::object vocab = read_ranks(ranks, ranks_where);
  json::array own_ranks;
  for (size_t i = 0; i < vocab.size(); ++i) own_ranks.emplace_back(static_cast<int64_t>(i));
  json::object root;
  root["added_tokens"] = special_tokens(settings, static_cast<int64_t>(vocab.size()));
  root["normalizer"] = nullptr;
  root["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", kimi_split()}}}, {"behavior", "Isolated"}, {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  root["post_processor"] = nullptr;
  root["decoder"] = {{"type", "ByteLevel"}};
  root["model"] = {
      {"type", "BPE"}, {"ignore_merges", true}, {"vocab", std::move(vocab)}, {"ranks", std::move(own_ranks)}};
  return root;
}

}  // namespace carpool
