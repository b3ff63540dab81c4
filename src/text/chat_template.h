// Chat templates: a list of messages to the text a model was trained on, as pieces that know who wrote them.
//
// A template is code from a model file, run here by an interpreter of our own (jinja/): no code outside the template is
// reachable, and steps, time, memory, output and recursion are bounded. What a request contributes stays marked as
// untrusted through every string operation, so no message can spell a control token (piece.h). Rendering equals
// Jinja2 as transformers configures it (trim_blocks, lstrip_blocks, immutable sandbox, its own tojson).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/piece.h"
#include "text/tokenizer.h"

namespace carpool {

struct ChatInput {
  json::value messages;  // a list of objects with role and content
  bool add_generation_prompt = true;
  json::object variables;                    // further names from the request (tools, documents, ...); untrusted
  json::object trusted_variables;            // further names from the model's files (bos_token, eos_token)
  std::optional<int64_t> now;                // seconds since 1970, UTC, for templates that print the date
  std::chrono::milliseconds max_time{2000};  // of rendering; the other budgets are fixed (jinja/value.h)
};

// Immutable and safe to share between threads.
class ChatTemplate {
 public:
  // Throws Error{kMalformed} with the line for anything outside the supported subset (jinja/parser.h).
  static ChatTemplate parse(std::string_view source);

  // Adjacent pieces differ in trust; none is empty. A message's role counts as trusted when it is one of the usual
  // words, because templates build control tokens from it. Throws Error: kUsage when the template objects to the
  // messages (raise_exception), kMalformed when it fails or exceeds its budget, both with the line.
  std::vector<Piece> render(const ChatInput& input) const;

 private:
  struct State;
  explicit ChatTemplate(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

// The pieces' text put together.
std::string join(const std::vector<Piece>& pieces);

// The ids of a rendered chat. The template writes its own begin token if the model wants one, so none is added.
std::vector<int> encode_chat(const Tokenizer& tokenizer, const std::vector<Piece>& pieces);

}  // namespace carpool
