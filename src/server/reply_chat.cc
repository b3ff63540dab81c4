// OpenAI's /v1/chat/completions: "chat.completion" and its chunks.
//
// The first chunk of a choice carries the role and comes with its first text, so that clients that time the first chunk
// time the first token; then deltas of content, and a chunk with the finish reason and an empty delta.
#include <algorithm>

#include "server/reply_openai.h"

namespace carpool {
namespace {

class ChatReply : public OpenAiReply {
 public:
  explicit ChatReply(Setup setup) : OpenAiReply(std::move(setup), "chat.completion", "chat.completion.chunk") {}

  json::value whole() override {
    json::array list;
    for (int i = 0; i < choices(); ++i) {
      const Choice& c = choice(i);
      json::object object;
      object["index"] = i;
      json::object& message = object["message"].emplace_object();
      message["role"] = "assistant";
      message["content"] = c.text;
      object["logprobs"] = logprobs(c);
      add_reasons(c, object);
      add_token_ids(c, object);
      list.push_back(std::move(object));
    }
    json::value out = whole_of(std::move(list));
    if (json::value scores = prompt_logprobs(choice(0)); !scores.is_null()) {
      out.as_object()["prompt_logprobs"] = std::move(scores);
    }
    return out;
  }

 protected:
  void chunk(int index, Chunks& out) override {
    const Choice& c = choice(index);
    if (!c.started) {
      json::object role;
      role["role"] = "assistant";
      role["content"] = "";
      push(part(index, std::move(role)), false, out);
    }
    const std::string text = c.text.substr(c.sent_text);
    if (!text.empty()) {
      json::object content;
      content["content"] = text;
      json::object object = part(index, std::move(content));
      object["logprobs"] = logprobs(c);
      add_token_ids(c, object);
      push(std::move(object), false, out);
    }
    if (!c.finished()) return;
    json::object object = part(index, {});
    if (text.empty()) {  // tokens without text, such as the end token
      object["logprobs"] = logprobs(c);
      add_token_ids(c, object);
    }
    add_reasons(c, object);
    push(std::move(object), ends_stream(index), out);
  }

 private:
  static json::object part(int index, json::object delta) {
    json::object out;
    out["index"] = index;
    out["delta"] = std::move(delta);
    out["logprobs"] = nullptr;
    out["finish_reason"] = nullptr;
    return out;
  }

  json::object score(const TokenScore& s) const {
    json::object out;
    out["token"] = token(s.token);
    out["logprob"] = finite_logprob(s.logprob);
    json::array& bytes = out["bytes"].emplace_array();
    for (const char c : setup().tokenizer.token_bytes(s.token)) bytes.push_back(static_cast<unsigned char>(c));
    return out;
  }

  json::value logprobs(const Choice& c) const {
    if (generation().logprobs < 0) return nullptr;
    json::array content;
    for (size_t i = c.sent_tokens; i < c.logprobs.size(); ++i) {
      json::object entry = score(c.logprobs[i]->chosen);
      json::array& top = entry["top_logprobs"].emplace_array();
      const size_t n = std::min(c.logprobs[i]->top.size(), static_cast<size_t>(generation().logprobs));
      for (size_t j = 0; j < n; ++j) top.push_back(score(c.logprobs[i]->top[j]));
      content.push_back(std::move(entry));
    }
    json::object out;
    out["content"] = std::move(content);
    out["refusal"] = nullptr;
    return out;
  }
};

}  // namespace

std::unique_ptr<Reply> chat_reply(Reply::Setup setup) { return std::make_unique<ChatReply>(std::move(setup)); }

}  // namespace carpool
