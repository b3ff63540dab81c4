// From metadata to the JSON of a tokenizer; see tokenizer_gguf.h.
#include "text/tokenizer_gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <set>

#include "base/error.h"
#include "text/gguf_keys.h"
#include "text/gguf_pre_tokenizers.h"
#include "text/rank_merges.h"
#include "text/utf8.h"

namespace carpool {
namespace {

using namespace gguf_keys;

constexpr std::string_view kSpace = "\u2581";

const GgufPreTokenizer& pre_tokenizer(const GgufMetadata& m) {
  const std::string_view name = m.has(kPre) ? m.string(kPre) : "default";
  if (const GgufPreTokenizer* pre = find_gguf_pre_tokenizer(name)) return *pre;
  std::string known;
  for (const GgufPreTokenizer& pre : gguf_pre_tokenizers()) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", pre.name);
  }
  throw Error(ErrorKind::kConfig,
              fmt::format("{}: key \"{}\": the pre-tokenizer \"{}\" is not supported; supported: {}", m.where(), kPre,
                          escape(name), known));
}

json::object pre_tokenizer_json(const GgufPreTokenizer& pre) {
  json::array steps;
  for (const std::string_view split : pre.splits) {
    steps.push_back(
        json::object{{"type", "Split"}, {"pattern", {{"Regex", split}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  steps.push_back(
      json::object{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", pre.byte_level_split}});
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

// The tokens with their types; every token is UTF-8, and unused ones at the end are gone.
struct Tokens {
  std::vector<std::string_view> text;
  std::vector<int64_t> type;
};

Tokens read_tokens(const GgufMetadata& m) {
  Tokens t;
  t.text = m.strings(kTokens);
  const size_t n = t.text.size();
  t.type = m.has(kTypes) ? m.integers(kTypes) : std::vector<int64_t>(n, kNormal);
  if (t.type.size() != n) m.fail(kTypes, fmt::format("has {} entries for {} tokens", t.type.size(), n));
  if (const auto* scores = m.find(kScores); scores && (scores->type != GgufType::kArray || scores->count != n)) {
    m.fail(kScores, fmt::format("must be an array of {} entries, one for each token", n));
  }
  for (size_t i = 0; i < n; ++i) {
    if (!is_valid_utf8(t.text[i])) m.fail(kTokens, fmt::format("token {} is not UTF-8", i));
    if (t.type[i] < kNormal || t.type[i] > kByte) {
      m.fail(kTypes, fmt::format("entry {} is {}, must be {} to {}", i, t.type[i], int{kNormal}, int{kByte}));
    }
  }
  while (!t.type.empty() && t.type.back() == kUnused) {
    t.type.pop_back();
    t.text.pop_back();
  }
  return t;
}

// The vocabulary and the added tokens. A user-defined token is added, and a word part as well if merges speak of it.
void split_tokens(const GgufMetadata& m, const Tokens& tokens, const json::array& merges, json::object& vocab,
                  json::array& added) {
  std::set<std::string_view, std::less<>> user_defined;
  const auto enter = [&](std::string_view text, size_t id) {
    if (!vocab.emplace(text, id).second)
      m.fail(kTokens, fmt::format("token {}: \"{}\" is there twice", id, escape(text)));
  };
  std::vector<std::pair<std::string_view, size_t>> sorted;  // user-defined ones
  for (size_t i = 0; i < tokens.text.size(); ++i) {
    const bool control = tokens.type[i] == kControl, user = tokens.type[i] == kUserDefined;
    if (!control && !user) {
      enter(tokens.text[i], i);
      continue;
    }
    added.push_back(json::object{{"id", i}, {"content", tokens.text[i]}, {"special", control}, {"normalized", false}});
    if (user) sorted.emplace_back(tokens.text[i], i);
  }
  if (sorted.empty()) return;
  std::sort(sorted.begin(), sorted.end());
  for (const json::value& merge : merges) {
    const std::string_view both = merge.get_string();
    const size_t space = both.find(' ');
    if (space == std::string_view::npos) continue;  // refused by the loader
    for (const std::string& part : {std::string(both.substr(0, space)), std::string(both.substr(space + 1)),
                                    std::string(both.substr(0, space)).append(both.substr(space + 1))}) {
      const auto it = std::lower_bound(sorted.begin(), sorted.end(), std::pair<std::string_view, size_t>{part, 0});
      if (it != sorted.end() && it->first == part) vocab.emplace(part, it->second);
    }
  }
}

int special_id(const GgufMetadata& m, std::string_view key, size_t tokens) {
  return static_cast<int>(m.integer(key, 0, static_cast<int64_t>(tokens) - 1));
}

// {"type": "TemplateProcessing"} with the begin and end tokens that the file wants around a text, or null.
json::value post_processor(const GgufMetadata& m, bool add_bos, const std::vector<std::string_view>& tokens) {
  json::array single;
  json::object names;
  const auto add = [&](std::string_view key) {
    const int id = special_id(m, key, tokens.size());
    const std::string_view text = tokens[static_cast<size_t>(id)];
    single.push_back(json::object{{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
    names[text] = {{"id", text}, {"ids", {id}}, {"tokens", {text}}};
  };
  const bool bos = m.boolean_or(kAddBos, add_bos && m.has(kBos)), eos = m.boolean_or(kAddEos, false);
  if (!bos && !eos) return nullptr;
  if (bos) add(kBos);
  single.push_back(json::object{{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  if (eos) add(kEos);
  return {{"type", "TemplateProcessing"}, {"single", std::move(single)}, {"special_tokens", std::move(names)}};
}

json::value byte_level_json(const GgufMetadata& m) {
  const GgufPreTokenizer& pre = pre_tokenizer(m);
  const Tokens tokens = read_tokens(m);
  json::array merges;
  for (const std::string_view merge : m.strings(kMerges)) merges.emplace_back(merge);
  json::object vocab;
  json::array added;
  split_tokens(m, tokens, merges, vocab, added);
  json::object root;
  root["added_tokens"] = std::move(added);
  root["normalizer"] = pre.nfc ? json::value{{"type", "NFC"}} : json::value(nullptr);
  root["pre_tokenizer"] = pre_tokenizer_json(pre);
  root["post_processor"] = post_processor(m, pre.add_bos, tokens.text);
  root["decoder"] = {{"type", "ByteLevel"}};
  root["model"] = {{"type", "BPE"},
                   {"ignore_merges", pre.ignore_merges},
                   {"vocab", std::move(vocab)},
                   {"merges", std::move(merges)}};
  return root;
}

// By id: how many different scores are better. Only ordinary tokens have a rank.
json::array ranks_of_scores(const GgufMetadata& m, const Tokens& tokens) {
  const auto* entry = m.find(kScores);
  if (!entry || entry->element != GgufType::kF32) m.fail(kScores, "must be an array of float32");
  std::vector<float> scores(tokens.text.size());
  std::memcpy(scores.data(), entry->bytes.data(), scores.size() * sizeof(float));
  for (size_t i = 0; i < scores.size(); ++i) {
    if (std::isnan(scores[i])) m.fail(kScores, fmt::format("entry {} is not a number", i));
  }
  std::vector<float> distinct = scores;
  std::sort(distinct.begin(), distinct.end(), std::greater<>());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  json::array ranks;
  for (size_t i = 0; i < scores.size(); ++i) {
    const auto at = std::lower_bound(distinct.begin(), distinct.end(), scores[i], std::greater<>());
    ranks.push_back(tokens.type[i] == kNormal ? json::value(at - distinct.begin()) : json::value(nullptr));
  }
  return ranks;
}

// SentencePiece: characters, scores instead of merges, bytes for what is no token.
json::value sentencepiece_json(const GgufMetadata& m) {
  const Tokens tokens = read_tokens(m);
  json::object vocab;
  json::array added;
  json::value unknown = nullptr;
  size_t bytes = 0;
  for (size_t i = 0; i < tokens.text.size(); ++i) {
    const int64_t type = tokens.type[i];
    if (!vocab.emplace(tokens.text[i], i).second) {
      m.fail(kTokens, fmt::format("token {}: \"{}\" is there twice", i, escape(tokens.text[i])));
    }
    if (type == kUnknown) unknown = tokens.text[i];
    bytes += type == kByte;
    if (type == kNormal || type == kByte || type == kUnused) continue;
    added.push_back(
        json::object{{"id", i}, {"content", tokens.text[i]}, {"special", type != kUserDefined}, {"normalized", false}});
  }
  const bool prefix = m.boolean_or(kAddSpace, true);
  json::array normalizers, decoders = {{{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}},
                                       {{"type", "ByteFallback"}},
                                       {{"type", "Fuse"}}};
  if (prefix) {
    normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpace}});
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  normalizers.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}});
  json::object root;
  root["added_tokens"] = std::move(added);
  root["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}};
  root["pre_tokenizer"] = nullptr;
  root["post_processor"] = post_processor(m, /*add_bos=*/true, tokens.text);
  root["decoder"] = {{"type", "Sequence"}, {"decoders", std::move(decoders)}};
  root["model"] = {{"type", "BPE"},
                   {"unk_token", std::move(unknown)},
                   {"fuse_unk", true},
                   {"byte_fallback", bytes == 256},
                   {"vocab", std::move(vocab)},
                   {"ranks", ranks_of_scores(m, tokens)}};
  return root;
}

json::value tokenizer_json(const GgufMetadata& m) {
  const std::string_view model = m.string(kModel);
  if (model == "gpt2") return byte_level_json(m);
  if (model == "llama") return sentencepiece_json(m);
  throw Error(ErrorKind::kConfig,
              fmt::format("{}: key \"{}\": the tokenizer \"{}\" is not supported; supported: gpt2 (byte-level BPE) and "
                          "llama (SentencePiece BPE)",
                          m.where(), kModel, escape(model)));
}

std::optional<std::string> token_of(const GgufMetadata& m, std::string_view key) {
  if (!m.has(key) || !m.has(kTokens)) return std::nullopt;
  const std::vector<std::string_view> tokens = m.strings(kTokens);
  return std::string(tokens[static_cast<size_t>(special_id(m, key, tokens.size()))]);
}

}  // namespace

bool gguf_has_tokenizer(const GgufMetadata& metadata) {
  return metadata.has(kJson) || (metadata.has(kTokens) && !(metadata.has(kModel) && metadata.string(kModel) == "none"));
}

Tokenizer gguf_tokenizer(const GgufMetadata& m) {
  if (m.has(kJson)) return Tokenizer::parse(m.string(kJson), fmt::format("{}: key \"{}\"", m.where(), kJson));
  return Tokenizer::from_json(tokenizer_json(m), m.where() + ": tokenizer");
}

std::string gguf_tokenizer_json(const GgufMetadata& m) {
  if (m.has(kJson)) return std::string(m.string(kJson));
  json::value root = tokenizer_json(m);
  list_merges(root);
  return pretty(root);
}

TokenizerConfig gguf_tokenizer_config(const GgufMetadata& m) {
  TokenizerConfig config;
  config.bos_token = token_of(m, kBos);
  config.eos_token = token_of(m, kEos);
  if (m.has(kTemplate)) config.chat_template = std::string(m.string(kTemplate));
  return config;
}

}  // namespace carpool
