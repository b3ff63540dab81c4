#include "server/reply.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "server/api_error.h"
#include "server/output_plan.h"
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
  if (const OutputPlan* plan = setup_.generation.output.get()) {
    for (Choice& c : choices_) c.parser.emplace(plan->format, plan->options);
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
    c.finish = event.finish;
    c.matched = event.matched;
    c.matched_token = event.matched_token;
    take_text(event, c);
    if (!c.finished()) continue;
    if (event.stats) c.stats = *event.stats;
    --unfinished_;
  }
}

void Reply::take_text(const Event& event, Choice& c) {
  if (!c.parser) {
    c.text += event.text;
    return;
  }
  const bool before = c.parser->in_reasoning();
  OutputEvents events;
  c.parser->feed(event.text, events);
  if (event.token >= 0 && (before || c.parser->in_reasoning())) ++c.reasoning_tokens;
  bool stopped = false;  // by the client's wish
  if (c.finished()) {
    const std::vector<int>& asked = generation().request.stop_ids;
    stopped = !c.matched.empty() || std::find(asked.begin(), asked.end(), c.matched_token) != asked.end();
    c.parser->finish(c.finish == FinishReason::kStop && !stopped, events);
  }
  take_output(events, c);
  if (c.finish == FinishReason::kStop && !stopped && generation().output->must_call && !c.calls()) {
    throw ApiError(500, "server_error", "tool_call_failed",
                   "the model ended its answer without the call that tool_choice asks for");
  }
}

void Reply::take_output(const OutputEvents& events, Choice& c) const {
  using Kind = AnswerPart::Kind;
  for (const OutputEvent& event : events) {
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning:
      case OutputEvent::Kind::kContent: {
        const Kind kind = event.kind == OutputEvent::Kind::kReasoning ? Kind::kReasoning : Kind::kContent;
        if (c.parts.empty() || c.parts.back().kind != kind) c.parts.push_back({kind, "", ""});
        c.parts.back().text += event.text;
        break;
      }
      case OutputEvent::Kind::kCallBegin:
        c.parts.push_back({Kind::kCall, "", event.text});
        break;
      case OutputEvent::Kind::kArguments:
        c.parts.back().text += event.text;
        break;
      case OutputEvent::Kind::kCallEnd:
        break;
    }
  }
}

size_t Reply::tellable_parts(const Choice& c) const {
  const size_t all = c.parts.size();
  const bool withheld = all > 0 && c.parts.back().kind == AnswerPart::Kind::kReasoning && !c.finished() &&
                        !generation().output->stream_reasoning && c.parser->in_reasoning();
  return withheld ? all - 1 : all;
}

std::vector<News> Reply::news(const Choice& c) const {
  std::vector<News> out;
  if (!c.parser) {
    const std::string_view text = std::string_view(c.text).substr(c.sent_text);
    if (!text.empty()) out.push_back({AnswerPart::Kind::kContent, text, nullptr, c.sent_text == 0});
    return out;
  }
  for (size_t i = c.sent_part; i < tellable_parts(c); ++i) {
    const size_t from = i == c.sent_part ? c.sent_text : 0;
    const std::string_view text = std::string_view(c.parts[i].text).substr(from);
    if (!text.empty()) out.push_back({c.parts[i].kind, text, &c.parts[i], from == 0});
  }
  return out;
}

void Reply::start(Chunks&) {}

bool Reply::has_chunk(const Choice& c) const { return !c.ended && (c.finished() || (due(c) && !news(c).empty())); }

size_t Reply::values_of_next(int choice) const {
  const Choice& c = choices_[static_cast<size_t>(choice)];
  const size_t from = cumulative() ? 0 : c.sent_tokens;
  size_t scores = c.logprobs.empty() ? 0 : c.tokens.size() - from;
  if (c.prompt_logprobs && (!c.started || (cumulative() && c.finished()))) scores += c.prompt_logprobs->size();
  const size_t values = c.tokens.size() - from + scores * static_cast<size_t>(generation().request.logprobs + 1);
  return has_chunk(c) ? values : 0;
}

void Reply::flush(int choice, Chunks& out) {
  Choice& c = choices_[static_cast<size_t>(choice)];
  if (!has_chunk(c)) return;
  chunk(choice, out);
  c.started = true;
  c.ended = c.finished();
  if (!c.parser) {
    c.sent_text = c.text.size();
  } else if (const size_t told = tellable_parts(c); told > 0) {
    c.sent_part = told - 1;
    c.sent_text = c.parts[c.sent_part].text.size();
  }
  c.sent_tokens = c.tokens.size();
}

json::object Reply::report() const {
  RequestStats sum;
  for (const Choice& c : choices_) add(c.stats, sum);
  sum.prefix = choices_[0].stats.prefix;
  json::object out = setup_.report(sum);
  LostCalls lost;
  for (const Choice& c : choices_) {
    if (!c.parser) continue;
    lost.unknown += c.parser->lost().unknown;
    lost.broken += c.parser->lost().broken;
    lost.surplus += c.parser->lost().surplus;
  }
  if (lost.unknown + lost.broken + lost.surplus > 0) {
    out["lost_calls"] = {{"unknown_function", lost.unknown}, {"malformed", lost.broken}, {"surplus", lost.surplus}};
  }
  return out;
}

bool Reply::splits_reasoning() const {
  const OutputPlan* plan = generation().output.get();
  return plan && plan->format.reasoning && plan->options.separate_reasoning;
}

std::string Reply::call_id(const char* prefix, int choice, int index, const std::string& function) const {
  return carpool::call_id(*generation().output, prefix, setup_.head.id, choice, index, function);
}

bool Choice::calls() const {
  return std::any_of(parts.begin(), parts.end(), [](const AnswerPart& p) { return p.kind == AnswerPart::Kind::kCall; });
}

std::vector<AnswerPart> Choice::all_parts() const {
  if (parser || text.empty()) return parts;
  return {{AnswerPart::Kind::kContent, text, ""}};
}

json::value finish_reason(const Choice& choice) {
  switch (choice.finish) {
    case FinishReason::kStop:
      return choice.calls() ? "tool_calls" : "stop";
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
