// OpenAI's /v1/chat/completions: "chat.completion" and its chunks.
//
// The first chunk of a choice carries the role and comes with its first text, so that clients that time the first chunk
// time the first token; then deltas of reasoning, content and calls, and a chunk with the finish reason and an empty
// delta.
#include <algorithm>
#include <utility>

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
      object["message"] = message(i);
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
    bool scored = false;
    for (const News& piece : news(c)) {
      for (json::object& delta : deltas(index, piece)) {
        json::object object = part(index, std::move(delta));
        if (!std::exchange(scored, true)) add_scores(c, object);
        push(std::move(object), false, out);
      }
    }
    if (!c.finished()) return;
    json::object object = part(index, {});
    if (!scored) add_scores(c, object);  // tokens without text, such as the end token
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

  // Of the tokens since the last chunk.
  void add_scores(const Choice& c, json::object& out) const {
    out["logprobs"] = logprobs(c);
    add_token_ids(c, out);
  }

  json::object tool_call(int choice_index, int index, const std::string& name, const std::string& arguments) const {
    json::object call;
    call["id"] = call_id("call_", choice_index, index, name);
    call["type"] = "function";
    call["function"] = json::object{{"name", name}, {"arguments", arguments}};
    return call;
  }

  json::object message(int index) const {
    std::string texts[2];  // reasoning, content
    json::array calls;
    for (const AnswerPart& p : choice(index).all_parts()) {
      if (p.kind == AnswerPart::Kind::kCall) {
        calls.push_back(tool_call(index, static_cast<int>(calls.size()), p.name, p.text));
      } else {
        texts[p.kind == AnswerPart::Kind::kReasoning ? 0 : 1] += p.text;
      }
    }
    json::object out;
    out["role"] = "assistant";
    const bool nothing = texts[1].empty() && (!texts[0].empty() || !calls.empty());
    out["content"] = nothing ? json::value(nullptr) : json::value(texts[1]);
    if (splits_reasoning()) out["reasoning_content"] = texts[0].empty() ? json::value(nullptr) : json::value(texts[0]);
    if (!calls.empty()) out["tool_calls"] = std::move(calls);
    return out;
  }

  // A call begins with its name; its arguments follow.
  std::vector<json::object> deltas(int choice_index, const News& piece) const {
    if (piece.kind != AnswerPart::Kind::kCall) {
      const char* key = piece.kind == AnswerPart::Kind::kReasoning ? "reasoning_content" : "content";
      return {{{key, piece.text}}};
    }
    int index = 0;
    for (const AnswerPart* p = choice(choice_index).parts.data(); p != piece.part; ++p) {
      if (p->kind == AnswerPart::Kind::kCall) ++index;
    }
    std::vector<json::object> out;
    if (piece.begins) {
      json::object call = tool_call(choice_index, index, piece.part->name, "");
      call["index"] = index;
      out.push_back({{"tool_calls", json::array{std::move(call)}}});
    }
    const json::object call{{"index", index}, {"function", json::object{{"arguments", piece.text}}}};
    out.push_back({{"tool_calls", json::array{call}}});
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
