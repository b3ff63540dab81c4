// From metadata to the JSON of a tokenizer and back; see tokenizer_gguf.h.
#include "text/tokenizer_gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "text/utf8.h"

namespace carpool {
namespace {

constexpr std::string_view kModel = "tokenizer.ggml.model", kPre = "tokenizer.ggml.pre",
                           kTokens = "tokenizer.ggml.tokens", kTypes = "tokenizer.ggml.token_type",
                           kMerges = "tokenizer.ggml.merges", kScores = "tokenizer.ggml.scores",
                           kBos = "tokenizer.ggml.bos_token_id", kEos = "tokenizer.ggml.eos_token_id",
                           kAddBos = "tokenizer.ggml.add_bos_token", kAddEos = "tokenizer.ggml.add_eos_token",
                           kTemplate = "tokenizer.chat_template", kJson = "tokenizer.huggingface.json";

enum TokenType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

// What a name in tokenizer.ggml.pre stands for: parts of the tokenizer.json files of the models it was made for.
struct Pre {
  std::string_view name;
  bool nfc;            // text is normalized first
  bool ignore_merges;  // a word that is a token stays whole
  bool add_bos;        // unless the file says otherwise
  // Split expressions, applied one after another; without any, ByteLevel's own.
  std::vector<std::string_view> splits;
};

const std::vector<Pre>& pre_tokenizers() {
  static const std::vector<Pre> table = {
      {"gpt-2", false, false, false, {}},
      {"olmo", true, false, false, {}},
      {"qwen2",
       true,
       false,
       false,
       {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
      {"llama-bpe",
       false,
       true,
       true,
       {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
      {"glm4",
       false,
       false,
       false,
       {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
      {"deepseek-v3",
       false,
       false,
       false,
       {R"(\p{N}{1,3})", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
      {"gpt-4o",
       false,
       false,
       false,
       {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
        R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
        R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
  };
  return table;
}

// Other spellings of the same.
std::string_view canonical(std::string_view name) {
  for (const std::string_view same : {"llama3", "llama-v3"}) {
    if (name == same) return "llama-bpe";
  }
  return name;
}

const Pre& pre_tokenizer(const GgufMetadata& m) {
  const std::string_view name = m.has(kPre) ? canonical(m.string(kPre)) : "default";
  std::string known;
  for (const Pre& pre : pre_tokenizers()) {
    if (pre.name == name) return pre;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", pre.name);
  }
  throw Error(ErrorKind::kConfig,
              fmt::format("{}: key \"{}\": the pre-tokenizer \"{}\" is not supported; supported: {}", m.where(), kPre,
                          escape(name), known));
}

json::object pre_tokenizer_json(const Pre& pre) {
  json::array steps;
  for (const std::string_view split : pre.splits) {
    steps.push_back(
        json::object{{"type", "Split"}, {"pattern", {{"Regex", split}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  steps.push_back(json::object{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", pre.splits.empty()}});
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
json::value post_processor(const GgufMetadata& m, const Pre& pre, const std::vector<std::string_view>& tokens) {
  json::array single;
  json::object names;
  const auto add = [&](std::string_view key) {
    const int id = special_id(m, key, tokens.size());
    const std::string_view text = tokens[static_cast<size_t>(id)];
    single.push_back(json::object{{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
    names[text] = {{"id", text}, {"ids", {id}}, {"tokens", {text}}};
  };
  const bool bos = m.boolean_or(kAddBos, pre.add_bos && m.has(kBos)), eos = m.boolean_or(kAddEos, false);
  if (!bos && !eos) return nullptr;
  if (bos) add(kBos);
  single.push_back(json::object{{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  if (eos) add(kEos);
  return {{"type", "TemplateProcessing"}, {"single", std::move(single)}, {"special_tokens", std::move(names)}};
}

json::value tokenizer_json(const GgufMetadata& m) {
  if (const std::string_view model = m.string(kModel); model != "gpt2") {
    throw Error(ErrorKind::kConfig,
                fmt::format("{}: key \"{}\": the tokenizer \"{}\" is not supported; supported: gpt2 (byte-level BPE)",
                            m.where(), kModel, escape(model)));
  }
  const Pre& pre = pre_tokenizer(m);
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
  root["post_processor"] = post_processor(m, pre, tokens.text);
  root["decoder"] = {{"type", "ByteLevel"}};
  root["model"] = {{"type", "BPE"},
                   {"ignore_merges", pre.ignore_merges},
                   {"vocab", std::move(vocab)},
                   {"merges", std::move(merges)}};
  return root;
}

std::optional<std::string> token_of(const GgufMetadata& m, std::string_view key) {
  if (!m.has(key) || !m.has(kTokens)) return std::nullopt;
  const std::vector<std::string_view> tokens = m.strings(kTokens);
  return std::string(tokens[static_cast<size_t>(special_id(m, key, tokens.size()))]);
}

// Steps of a possibly nested Sequence, or the one step.
void collect_steps(const json::value* value, std::string_view list, std::vector<const json::object*>& out) {
  const json::object* object = value ? value->if_object() : nullptr;
  if (!object) return;
  const json::value* members = object->if_contains(list);
  if (!members || !members->is_array()) return out.push_back(object);
  for (const json::value& member : members->get_array()) collect_steps(&member, list, out);
}

bool is_text(const json::object& object, std::string_view key, std::string_view text) {
  const json::value* v = object.if_contains(key);
  return v && v->is_string() && std::string_view(v->get_string()) == text;
}

bool is_true(const json::object& object, std::string_view key, bool absent = false) {
  const json::value* v = object.if_contains(key);
  return v ? v->is_bool() && v->get_bool() : absent;
}

// The name of what a tokenizer.json does to text before BPE, or null when no name stands for exactly that.
const Pre* name_of(const json::object& root) {
  std::vector<const json::object*> normalizers, steps;
  collect_steps(root.if_contains("normalizer"), "normalizers", normalizers);
  collect_steps(root.if_contains("pre_tokenizer"), "pretokenizers", steps);
  const json::object* model = root.at("model").if_object();
  if (!model || steps.empty() || normalizers.size() > 1) return nullptr;
  if (!normalizers.empty() && !is_text(*normalizers[0], "type", "NFC")) return nullptr;
  std::vector<std::string_view> splits;
  for (size_t i = 0; i + 1 < steps.size(); ++i) {
    const json::value* pattern = steps[i]->if_contains("pattern");
    const json::value* regex = pattern && pattern->is_object() ? pattern->get_object().if_contains("Regex") : nullptr;
    const bool plain = is_text(*steps[i], "type", "Split") && is_text(*steps[i], "behavior", "Isolated") &&
                       !is_true(*steps[i], "invert");
    if (!regex || !regex->is_string() || !plain) return nullptr;
    splits.emplace_back(regex->get_string());
  }
  const json::object& last = *steps.back();
  if (!is_text(last, "type", "ByteLevel") || is_true(last, "add_prefix_space", true)) return nullptr;
  if (is_true(last, "use_regex", true) != splits.empty()) return nullptr;
  for (const Pre& pre : pre_tokenizers()) {
    if (pre.nfc == !normalizers.empty() && pre.ignore_merges == is_true(*model, "ignore_merges") &&
        std::equal(splits.begin(), splits.end(), pre.splits.begin(), pre.splits.end())) {
      return &pre;
    }
  }
  return nullptr;
}

// True when the ggml keys can describe how added tokens match.
bool has_plain_added_tokens(const json::object& root, bool nfc) {
  const json::value* added = root.if_contains("added_tokens");
  if (!added || !added->is_array()) return true;
  return std::all_of(added->get_array().begin(), added->get_array().end(), [&](const json::value& v) {
    const json::object& token = v.get_object();
    // With NFC, tokens that match after it are found in texts where others are not.
    const bool normalized = nfc && is_true(token, "normalized", !is_true(token, "special"));
    return !is_true(token, "lstrip") && !is_true(token, "rstrip") && !is_true(token, "single_word") && !normalized;
  });
}

// Whether the tokenizer puts its begin token before a text; nullopt when it puts anything else around it.
std::optional<bool> adds_begin(const Tokenizer& tokenizer, const TokenizerConfig& config) {
  const std::vector<int> around = tokenizer.encode("", /*add_special=*/true);
  if (around.empty()) return false;
  const std::optional<int> bos = config.bos_token ? tokenizer.token_id(*config.bos_token) : std::nullopt;
  if (around.size() != 1 || around[0] != bos || tokenizer.encode("a", true).front() != *bos) return std::nullopt;
  return true;
}

std::string merge_text(const json::value& merge) {
  if (const auto* text = merge.if_string()) return std::string(*text);
  const json::array& pair = merge.as_array();
  return fmt::format("{} {}", std::string_view(pair.at(0).as_string()), std::string_view(pair.at(1).as_string()));
}

// The ids of what begins and ends texts, where the vocabulary has the tokens.
void add_special_ids(const TokenizerConfig& config, const Tokenizer& tokenizer, GgufWriter& out) {
  for (const auto& [key, text] : {std::pair{kBos, config.bos_token}, {kEos, config.eos_token}}) {
    if (!text || out.has(key)) continue;  // the model's configuration may have said so already
    if (const auto id = tokenizer.token_id(*text)) out.add_u32(key, static_cast<uint32_t>(*id));
  }
  if (config.chat_template) out.add_string(kTemplate, *config.chat_template);
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
  return m.has(kJson) ? std::string(m.string(kJson)) : pretty(tokenizer_json(m));
}

TokenizerConfig gguf_tokenizer_config(const GgufMetadata& m) {
  TokenizerConfig config;
  config.bos_token = token_of(m, kBos);
  config.eos_token = token_of(m, kEos);
  if (m.has(kTemplate)) config.chat_template = std::string(m.string(kTemplate));
  return config;
}

bool add_gguf_tokenizer(const std::string& text, const std::string& where, const TokenizerConfig& config, int vocab,
                        GgufWriter& out) {
  const json::value value = parse_json(text, where);
  const Tokenizer tokenizer = Tokenizer::from_json(value, where);  // refuses what is wrong with the file
  if (tokenizer.vocab_size() > vocab) {
    throw Error(ErrorKind::kMalformed, fmt::format("{}: token ids go up to {}, the model's embedding has {} rows",
                                                   where, tokenizer.vocab_size() - 1, vocab));
  }
  const json::object& root = value.get_object();
  const json::object& model = root.at("model").get_object();
  std::vector<std::string> tokens(static_cast<size_t>(vocab));
  std::vector<int32_t> types(tokens.size(), kNormal);
  for (const auto& [token, id] : model.at("vocab").get_object()) tokens[id.to_number<size_t>()] = token;
  if (const json::value* added = root.if_contains("added_tokens"); added && added->is_array()) {
    for (const json::value& token : added->get_array()) {
      const auto id = token.at("id").to_number<size_t>();
      tokens[id] = token.at("content").as_string();
      types[id] = is_true(token.get_object(), "special") ? kControl : kUserDefined;
    }
  }
  for (size_t i = static_cast<size_t>(tokenizer.vocab_size()); i < tokens.size(); ++i) {
    tokens[i] = fmt::format("[PAD{}]", i);
    types[i] = kUnused;
  }
  std::vector<std::string> merges;
  for (const json::value& merge : model.at("merges").as_array()) merges.push_back(merge_text(merge));
  const Pre* pre = name_of(root);
  const std::optional<bool> begin = adds_begin(tokenizer, config);
  const bool described = pre && begin && has_plain_added_tokens(root, pre->nfc);
  out.add_string(kModel, "gpt2");
  if (pre) out.add_string(kPre, pre->name);
  out.add_strings(kTokens, tokens);
  out.add_i32s(kTypes, types);
  out.add_strings(kMerges, merges);
  if (described) out.add_bool(kAddBos, *begin);
  add_special_ids(config, tokenizer, out);
  if (!described) out.add_string(kJson, text);
  return described;
}

}  // namespace carpool
