// A model that says what its prompt tells it to, with a tokenizer of bytes and tags: for tests of what is made of
// output.
//
// Owns ScriptedModel: the text between the last U+0001 of a prompt and the U+0002 behind it comes back token by token,
// then the end token. script_of() spells such a text. Tags are special tokens, as those of real models.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/canary.h"
#include "server/live_server_test_util.h"
#include "text/byte_alphabet.h"

namespace carpool {

// A template in the manner of GLM-4.7; the comment is what "auto" knows it by.
inline constexpr const char* kGlmTemplate =
    "{# <|observation|> <arg_key> <think> #}{% for m in messages %}<|{{ m.role }}|>{{ m.reasoning_content }}{{ "
    "m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments.items() %}"
    "<arg_key>{{ k }}</arg_key><arg_value>{{ v | tojson }}</arg_value>{% endfor %}</tool_call>{% endfor %}{% endfor %}"
    "{% for t in tools or [] %}({{ t.function.name }}){% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and not enable_thinking %}</think>"
    "{% else %}<think>{% endif %}{% endif %}";
inline const std::vector<std::string> kGlmTags = {"<think>",      "</think>",     "<tool_call>",
                                                  "</tool_call>", "<arg_key>",    "</arg_key>",
                                                  "<arg_value>",  "</arg_value>", "<|user|>"};

inline std::string script_of(const std::string& text) { return "\x01" + text + "\x02"; }

// Ids 0..255 are bytes, 256 ends, the tags follow.
inline Tokenizer tag_tokenizer(const std::vector<std::string>& tags) {
  const ByteAlphabet alphabet;
  json::object ids;
  for (int b = 0; b < 256; ++b) ids[alphabet.spelling(static_cast<unsigned char>(b))] = b;
  json::array added;
  std::vector<std::string> all = {"<|endoftext|>"};
  all.insert(all.end(), tags.begin(), tags.end());
  for (const std::string& tag : all) {
    added.push_back({{"id", 256 + added.size()},
                     {"content", tag},
                     {"special", true},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false}});
  }
  const json::object byte_level{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const json::object root{{"model", json::object{{"type", "BPE"}, {"vocab", ids}, {"merges", json::array{}}}},
                          {"pre_tokenizer", byte_level},
                          {"decoder", json::object{{"type", "ByteLevel"}}},
                          {"added_tokens", added}};
  return Tokenizer::from_json(root, "the tokenizer of tags");
}

class ScriptedModel final : public LanguageModel {
 public:
  explicit ScriptedModel(Tokenizer tokenizer) : inner_({1 << 16}), tokenizer_(std::move(tokenizer)) {
    config_ = inner_.config();
    config_.vocab = tokenizer_.vocab_size();
  }

  const ModelConfig& config() const override { return config_; }
  KvFormat kv_format() const override { return inner_.kv_format(); }
  uint64_t step_bytes(int rows, int logit_rows) const override { return inner_.step_bytes(rows, logit_rows); }
  void reserve(int rows, int logit_rows) override { inner_.reserve(rows, logit_rows); }
  Matrix forward(const Rows& rows, KvCache& kv, const Policy& policy, const StepRecord& record) override {
    inner_.forward(rows, kv, policy, record);
    for (size_t t = 0; t < rows.tokens.size(); ++t) {
      if (rows.positions[t] < 0) continue;
      memory_[slot(rows, t, rows.positions[t])] = {rows.tokens[t], rows.info[t].phase == Phase::kDecode};
    }
    const int wanted = static_cast<int>(rows.logit_rows.size());
    logits_.assign(static_cast<size_t>(wanted) * static_cast<size_t>(config_.vocab), 0.0f);
    const Matrix logits{logits_.data(), wanted, config_.vocab, config_.vocab};
    for (int i = 0; i < wanted; ++i) {
      logits.row(i)[next(rows, static_cast<size_t>(rows.logit_rows[static_cast<size_t>(i)]))] = 40;
    }
    return logits;
  }

 private:
  static int64_t slot(const Rows& rows, size_t t, int position) {
    const int block = KvCache::kBlockTokens;
    return int64_t{rows.block_tables[t][position / block]} * block + position % block;
  }
  int next(const Rows& rows, size_t t) const {
    std::vector<int> prompt;
    size_t said = 0;
    for (int position = 0; position <= rows.positions[t]; ++position) {
      const auto [token, generated] = memory_.at(slot(rows, t, position));
      if (generated) {
        ++said;
      } else {
        prompt.push_back(token);
      }
    }
    const std::string text = tokenizer_.decode(prompt, false);
    const size_t begin = text.rfind('\x01'), end = text.find('\x02', begin == std::string::npos ? 0 : begin);
    if (begin == std::string::npos || end == std::string::npos) return kDummyEndToken;
    const std::vector<int> script = tokenizer_.encode(text.substr(begin + 1, end - begin - 1), false, true);
    return said < script.size() ? script[said] : kDummyEndToken;
  }

  CanaryModel inner_;
  Tokenizer tokenizer_;
  ModelConfig config_;
  std::map<int64_t, std::pair<int, bool>> memory_;  // what stands where, and whether it was generated
  std::vector<float> logits_;
};

// A server of that model.
inline LiveServer::Parts scripted(const std::string& chat_template, const std::vector<std::string>& tags) {
  TokenizerConfig tokens;
  tokens.chat_template = chat_template;
  Tokenizer tokenizer = tag_tokenizer(tags);
  auto model = std::make_unique<ScriptedModel>(tokenizer);
  return {std::move(model), std::move(tokenizer), std::move(tokens)};
}

}  // namespace carpool
