// From engine events to what an API answers: the part that all APIs share, without sockets.
//
// Owns Reply: it takes the events of the requests that one HTTP request became, in any portions, and gives chunks of a
// stream or one whole object. Both are made of slices of the same accumulated choices, so a stream says what the whole
// says however events are batched. No chunk comes without new text except the last of a choice. Read next: the formats
// (reply_completion.cc, reply_chat.cc, reply_native.cc, reply_messages.cc), generation.h.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/request.h"
#include "server/parameters.h"
#include "server/prompt.h"
#include "text/parsers/output.h"
#include "text/tokenizer.h"

namespace carpool {

// One server-sent event.
struct Chunk {
  std::string data;
  std::string name = {};
};
using Chunks = std::vector<Chunk>;

// What names an answer.
struct ReplyHead {
  std::string id;  // "cmpl-..."
  std::string model;
  std::string fingerprint;
  int64_t created = 0;  // seconds since 1970
  double received = 0;  // now_seconds() of the request
};

// A stretch of an answer.
struct AnswerPart {
  enum class Kind { kReasoning, kContent, kCall };
  Kind kind;
  std::string text;  // of a call: its arguments, a JSON object
  std::string name;  // of a call
};

// One engine request's output so far.
struct Choice {
  int prompt = 0;    // which prompt it answers
  std::string text;  // generated, as is `tokens`; with a parser it is in `parts` instead
  std::optional<OutputParser> parser;
  std::vector<AnswerPart> parts;  // neighbours differ in kind, but for calls
  int reasoning_tokens = 0;
  std::vector<int> tokens;
  std::vector<std::shared_ptr<const TokenLogprobs>> logprobs;  // of `tokens`; empty when not recorded
  std::shared_ptr<const std::vector<TokenLogprobs>> prompt_logprobs;
  FinishReason finish = FinishReason::kNone;
  std::string matched;
  int matched_token = -1;
  RequestStats stats;
  // What chunks have said.
  size_t sent_text = 0, sent_tokens = 0;  // with a parser, sent_text is of parts[sent_part]
  size_t sent_part = 0;
  bool started = false, ended = false;

  bool finished() const { return finish != FinishReason::kNone; }
  bool calls() const;  // any tool
  // The parts, or the text as one.
  std::vector<AnswerPart> all_parts() const;
};

// What no chunk has said yet.
struct News {
  AnswerPart::Kind kind;
  std::string_view text;
  const AnswerPart* part;  // null without a parser
  bool begins;             // the part
};

class Reply {
 public:
  struct Setup {
    ReplyHead head;
    Tokenizer tokenizer;
    Generation generation;
    std::vector<Prompt> prompts;  // encoded
    // The `carpool` object for the sum of what the engine says about its requests.
    std::function<json::object(const RequestStats&)> report;
  };
  explicit Reply(Setup setup);
  virtual ~Reply() = default;

  // n choices of the first prompt, n of the second, ...
  int choices() const { return static_cast<int>(choices_.size()); }
  const Choice& choice(int i) const { return choices_[static_cast<size_t>(i)]; }
  // ApiError 500 numerical_error, 400 constraint_failed when the request ended with it; 500 tool_call_failed when it
  // had to call a tool and did not, although neither max_tokens nor a stop of the client's cut it short.
  void take(int choice, std::span<const Event> events);
  bool finished() const { return unfinished_ == 0; }

  // A stream: start, then flush(i) after every take(i), then end.
  virtual void start(Chunks& out);
  void flush(int choice, Chunks& out);
  virtual void end(Chunks& out) = 0;
  // About how many JSON values flush(i) is going to write; 0 when no chunk is due.
  size_t values_of_next(int choice) const;
  // Whether every chunk repeats what those before it said: then one for many tokens is as good as one for each.
  virtual bool cumulative() const { return false; }
  // Or everything at once, when finished.
  virtual json::value whole() = 0;

 protected:
  // What is new of `choice`: its text from sent_text on, its tokens from sent_tokens on.
  virtual void chunk(int index, Chunks& out) = 0;

  // Whether a chunk is worth its size before the choice has ended.
  virtual bool due(const Choice&) const { return true; }

  const Setup& setup() const { return setup_; }
  const Generation& generation() const { return setup_.generation; }
  // In order. Reasoning that is not to be streamed is news when it has ended.
  std::vector<News> news(const Choice& choice) const;
  const Prompt& prompt_of(const Choice& choice) const { return setup_.prompts[static_cast<size_t>(choice.prompt)]; }
  json::object report() const;  // when finished
  // Reasoning is told apart: usage counts its tokens.
  bool splits_reasoning() const;
  std::string call_id(const char* prefix, int choice, int index, const std::string& function) const;

 private:
  bool has_chunk(const Choice& choice) const;
  void take_text(const Event& event, Choice& choice);
  void take_output(const OutputEvents& events, Choice& choice) const;
  size_t tellable_parts(const Choice& choice) const;

  Setup setup_;
  std::vector<Choice> choices_;
  int unfinished_;
};

std::unique_ptr<Reply> completion_reply(Reply::Setup setup);
std::unique_ptr<Reply> chat_reply(Reply::Setup setup);
std::unique_ptr<Reply> messages_reply(Reply::Setup setup);

// What /generate asks beside sampling_params.
struct NativeOptions {
  std::vector<std::string> ids;  // of each choice
  bool list = false;             // answer with a list, name the index in streams
  bool return_logprob = false;
  int top_logprobs = 0;
  int logprob_start = -1;    // first prompt token with a logprob; -1 = none
  bool return_text = false;  // in logprob triples
};
std::unique_ptr<Reply> native_reply(Reply::Setup setup, NativeOptions options);

// "stop", "length", "abort" or "tool_calls"; null while unfinished.
json::value finish_reason(const Choice& choice);
// The text of a token as JSON can hold it: "bytes:\xe4\xbd" for part of a character, "token_id:17" when asked.
std::string token_name(const Tokenizer& tokenizer, int token, bool as_id);
// A finite number: what is impossible is -9999.
double finite_logprob(float logprob);

}  // namespace carpool
