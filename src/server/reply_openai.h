// What OpenAI's two answers share: the frame of chunks, usage, the end of a stream, and vLLM's extras.
//
// Owns OpenAiReply. Read next: reply_completion.cc, reply_chat.cc, which say what a choice looks like.
#pragma once

#include "server/reply.h"

namespace carpool {

class OpenAiReply : public Reply {
 public:
  // `whole` and `part` are the names of the objects ("chat.completion", "chat.completion.chunk").
  OpenAiReply(Setup setup, const char* whole, const char* part)
      : Reply(std::move(setup)), whole_name_(whole), part_name_(part) {}
  void end(Chunks& out) override;

 protected:
  json::object frame(const char* object) const;
  // A chunk with one choice; `last` = of the stream, but for usage. It has `carpool`.
  void push(json::object choice, bool last, Chunks& out) const;
  // Whether all other choices have ended, and this one too.
  bool ends_stream(int index) const;
  json::value whole_of(json::array choices) const;
  json::object usage() const;  // of all choices so far; a prompt counts once however many choices it has

  void add_reasons(const Choice& choice, json::object& out) const;    // finish_reason and vLLM's stop_reason
  void add_token_ids(const Choice& choice, json::object& out) const;  // when asked for
  json::value stop_reason(const Choice& choice) const;
  // vLLM's prompt_logprobs; null when not asked for.
  json::value prompt_logprobs(const Choice& choice) const;
  std::string token(int id) const { return token_name(setup().tokenizer, id, generation().tokens_as_ids); }

 private:
  const char* whole_name_;
  const char* part_name_;
};

json::array id_list(std::span<const int> ids);

}  // namespace carpool
