// OpenAI's /v1/completions: "text_completion" objects with the legacy shape of logprobs.
//
// With echo a choice begins with its prompt: as text, as logprobs (the first token has none) and in the text offsets,
// which count characters from the start of the choice. Extras as vLLM has them: reply_openai.h.
#include <algorithm>

#include "server/reply_openai.h"

namespace carpool {
namespace {

size_t characters(std::string_view bytes) {
  size_t n = 0;
  for (const char c : bytes) n += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return n;
}

class CompletionReply : public OpenAiReply {
 public:
  explicit CompletionReply(Setup setup)
      : OpenAiReply(std::move(setup), "text_completion", "text_completion"),
        offsets_(static_cast<size_t>(choices()), 0) {}

  json::value whole() override {
    json::array list;
    for (int i = 0; i < choices(); ++i) list.push_back(choice_object(i));
    return whole_of(std::move(list));
  }

 protected:
  void chunk(int index, Chunks& out) override { push(choice_object(index), ends_stream(index), out); }

 private:
  // What is new of a choice; all of it when nothing was sent.
  json::object choice_object(int index) {
    const Choice& c = choice(index);
    json::object out;
    out["index"] = index;
    out["text"] = (c.started ? std::string() : echoed(c)) + c.text.substr(c.sent_text);
    out["logprobs"] = generation().logprobs >= 0 ? json::value(logprobs(index)) : json::value(nullptr);
    add_reasons(c, out);
    add_token_ids(c, out);
    if (json::value scores = prompt_logprobs(c); !scores.is_null()) out["prompt_logprobs"] = std::move(scores);
    return out;
  }

  std::string echoed(const Choice& c) const {
    if (!generation().echo) return "";
    const Prompt& prompt = prompt_of(c);
    return prompt.is_text ? prompt.text : setup().tokenizer.decode(prompt.ids, /*skip_special=*/false);
  }

  json::object logprobs(int index) {
    const Choice& c = choice(index);
    size_t& offset = offsets_[static_cast<size_t>(index)];
    json::array tokens, chosen, top, offsets;
    const auto append = [&](const TokenLogprobs& scores, bool has_score) {
      const int id = scores.chosen.token;
      offsets.push_back(offset);
      offset += characters(setup().tokenizer.token_bytes(id));
      tokens.push_back(json::value(token(id)));
      chosen.push_back(has_score ? json::value(finite_logprob(scores.chosen.logprob)) : json::value(nullptr));
      top.push_back(has_score ? json::value(alternatives(scores)) : json::value(nullptr));
    };
    if (!c.started && generation().echo && c.prompt_logprobs) {
      for (size_t i = 0; i < c.prompt_logprobs->size(); ++i) append((*c.prompt_logprobs)[i], i > 0);
    }
    for (size_t i = c.sent_tokens; i < c.logprobs.size(); ++i) append(*c.logprobs[i], true);
    json::object out;
    out["tokens"] = std::move(tokens);
    out["token_logprobs"] = std::move(chosen);
    out["top_logprobs"] = std::move(top);
    out["text_offset"] = std::move(offsets);
    return out;
  }

  // The best tokens and the chosen one; of tokens with one text the likelier counts.
  json::object alternatives(const TokenLogprobs& scores) const {
    json::object out;
    const size_t n = std::min(scores.top.size(), static_cast<size_t>(generation().logprobs));
    for (size_t i = 0; i < n; ++i) out.emplace(token(scores.top[i].token), finite_logprob(scores.top[i].logprob));
    out.emplace(token(scores.chosen.token), finite_logprob(scores.chosen.logprob));
    return out;
  }

  std::vector<size_t> offsets_;  // of the next token of each choice
};

}  // namespace

std::unique_ptr<Reply> completion_reply(Reply::Setup setup) {
  return std::make_unique<CompletionReply>(std::move(setup));
}

}  // namespace carpool
