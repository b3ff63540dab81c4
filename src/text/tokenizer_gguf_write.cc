// From a tokenizer.json to metadata; see tokenizer_gguf.h.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "text/gguf_keys.h"
#include "text/gguf_pre_tokenizers.h"
#include "text/token_decoder.h"
#include "text/tokenizer_gguf.h"

namespace carpool {
namespace {

using namespace gguf_keys;
using Pre = GgufPreTokenizer;

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
    if (is_text(*steps[i], "type", "Digits") && is_true(*steps[i], "individual_digits")) {
      splits.emplace_back("\\p{N}");
      continue;
    }
    const json::value* pattern = steps[i]->if_contains("pattern");
    const json::value* regex = pattern && pattern->is_object() ? pattern->get_object().if_contains("Regex") : nullptr;
    const bool plain = is_text(*steps[i], "type", "Split") && is_text(*steps[i], "behavior", "Isolated") &&
                       !is_true(*steps[i], "invert");
    if (!regex || !regex->is_string() || !plain) return nullptr;
    splits.emplace_back(regex->get_string());
  }
  const json::object& last = *steps.back();
  if (!is_text(last, "type", "ByteLevel") || is_true(last, "add_prefix_space", true)) return nullptr;
  const bool byte_level_split = is_true(last, "use_regex", true);
  for (const Pre& pre : gguf_pre_tokenizers()) {
    if (pre.nfc == !normalizers.empty() && pre.ignore_merges == is_true(*model, "ignore_merges") &&
        pre.byte_level_split == byte_level_split &&
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

bool is_byte_level(const json::object& root) {
  std::vector<const json::object*> steps;
  collect_steps(root.if_contains("pre_tokenizer"), "pretokenizers", steps);
  return std::any_of(steps.begin(), steps.end(), [](const auto* step) { return is_text(*step, "type", "ByteLevel"); });
}

// The keys of a SentencePiece vocabulary. What is made of its texts, and merges in another order than a score for each
// token can give, have no keys.
void add_sentencepiece(const json::object& root, const std::vector<std::string>& tokens, std::vector<int32_t> types,
                       GgufWriter& out) {
  const json::object& model = root.at("model").get_object();
  const json::array& merges = model.at("merges").as_array();
  const auto worst = -static_cast<float>(merges.size()) - 1;
  const json::object& vocab = model.at("vocab").get_object();
  std::vector<float> scores(tokens.size(), worst);
  for (size_t i = merges.size(); i-- > 0;) {
    std::string result = merge_text(merges[i]);
    result.erase(result.find(' '), 1);
    scores[vocab.at(result).to_number<size_t>()] = -static_cast<float>(i);
  }
  const json::value* unknown = model.if_contains("unk_token");
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (unknown && unknown->is_string() && std::string_view(unknown->get_string()) == tokens[i]) types[i] = kUnknown;
    if (types[i] == kNormal && spelled_byte(tokens[i]) >= 0) types[i] = kByte;
    if (types[i] != kNormal) scores[i] = 0;
  }
  out.add_string(kModel, "llama");
  out.add_strings(kTokens, tokens);
  out.add_i32s(kTypes, types);
  out.add_f32s(kScores, scores);
}

// The keys of a byte-level vocabulary; true when they describe the tokenizer.
bool add_byte_level(const json::object& root, const std::vector<std::string>& tokens, const std::vector<int32_t>& types,
                    std::optional<bool> begin, GgufWriter& out) {
  std::vector<std::string> merges;
  for (const json::value& merge : root.at("model").at("merges").as_array()) merges.push_back(merge_text(merge));
  const Pre* pre = name_of(root);
  const bool described = pre && begin && has_plain_added_tokens(root, pre->nfc);
  out.add_string(kModel, "gpt2");
  if (pre) out.add_string(kPre, pre->name);
  out.add_strings(kTokens, tokens);
  out.add_i32s(kTypes, types);
  out.add_strings(kMerges, merges);
  if (described) out.add_bool(kAddBos, *begin);
  return described;
}

}  // namespace

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
  bool described = false;
  if (is_byte_level(root)) {
    described = add_byte_level(root, tokens, types, adds_begin(tokenizer, config), out);
  } else {
    add_sentencepiece(root, tokens, types, out);
  }
  add_special_ids(config, tokenizer, out);
  if (!described) out.add_string(kJson, text);
  return described;
}

}  // namespace carpool
