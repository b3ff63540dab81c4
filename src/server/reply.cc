#include "server/reply.h"

#include <fmt/format.h>

#include <cmath>

#include "server/api_error.h"
#include "text/utf8.h"

namespace carpool {
namespace {

void add(const RequestStats& stats, RequestStats& sum) {
  sum.prompt_tokens += stats.prompt_tokens;
  sum.completion_tokens += stats.completion_tokens;
  sum.cached_tokens += stats.cached_tokens;
  sum.preemptions += stats.preemptions;
  sum.rerouted += stats.rerouted;
  sum.underfilled += stats.underfilled;
  for (size_t i = 0; i < sum.rows.size(); ++i) sum.rows[i] += stats.rows[i];
}

}  // namespace

Reply::Reply(Setup setup) : setup_(std::move(setup)) {
  for (size_t p = 0; p < setup_.prompts.size(); ++p) {
    for (int i = 0; i < setup_.generation.n; ++i) choices_.emplace_back().prompt = static_cast<int>(p);
  }
  unfinished_ = choices();
}

void Reply::take(int choice, std::span<const Event> events) {
  Choice& c = choices_[static_cast<size_t>(choice)];
  for (const Event& event : events) {
    if (event.finish == FinishReason::kNumericalError) {
      throw ApiError(500, "server_error", "numerical_error", "the model computed values that are not finite");
    }
    if (event.finish == FinishReason::kConstraintError) {  // would happen again: nothing to retry, so not a 5xx
      throw ApiError(
          400, "invalid_request_error", "constraint_failed",
          "the structure that was asked for could not be kept: it takes too much work, or the model's tokens "
          "cannot spell what it needs");
    }
    if (event.prompt_logprobs) c.prompt_logprobs = event.prompt_logprobs;
    if (event.token >= 0) {
      c.tokens.push_back(event.token);
      if (event.logprobs) c.logprobs.push_back(event.logprobs);
    }
    c.text += event.text;
    if (event.finish == FinishReason::kNone) continue;
    c.finish = event.finish;
    c.matched = event.matched;
    c.matched_token = event.matched_token;
    if (event.stats) c.stats = *event.stats;
    --unfinished_;
  }
}

void Reply::start(Chunks&) {}

void Reply::flush(int choice, Chunks& out) {
  Choice& c = choices_[static_cast<size_t>(choice)];
  if (c.ended || (!c.finished() && c.text.size() == c.sent_text)) return;
  chunk(choice, out);
  c.started = true;
  c.ended = c.finished();
  c.sent_text = c.text.size();
  c.sent_tokens = c.tokens.size();
}

json::object Reply::report() const {
  RequestStats sum;
  for (const Choice& c : choices_) add(c.stats, sum);
  sum.prefix = choices_[0].stats.prefix;
  return setup_.report(sum);
}

json::value finish_reason(const Choice& choice) {
  switch (choice.finish) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "abort";
    case FinishReason::kNone:
    case FinishReason::kNumericalError:
    case FinishReason::kConstraintError:
      break;
  }
  return nullptr;
}

std::string token_name(const Tokenizer& tokenizer, int token, bool as_id) {
  if (as_id) return fmt::format("token_id:{}", token);
  std::string bytes = tokenizer.token_bytes(token);
  if (is_valid_utf8(bytes)) return bytes;
  std::string out = "bytes:";
  for (const char c : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return out;
}

double finite_logprob(float logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

}  // namespace carpool
