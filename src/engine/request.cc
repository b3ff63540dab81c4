// Names of outcomes, and the ranges of every value that a user can set. See request.h.
#include "engine/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/kv_cache.h"

namespace carpool {
namespace {

constexpr size_t kMaxStopStrings = 4, kMaxStopBytes = 256, kMaxStopIds = 128, kMaxLogitBias = 300;
constexpr int kMaxLogprobs = 20;

[[noreturn]] void invalid(const char* field, const std::string& sentence) {
  throw RequestError(field, "invalid_value", sentence);
}

// Comparisons are written so that NaN is outside.
template <class T>
void in_range(const char* field, bool inside, const char* range, T value) {
  if (!inside) invalid(field, fmt::format("{} must be {}, got {}", field, range, value));
}

void at_most(const char* field, const char* what, size_t count, size_t most) {
  if (count <= most) return;
  throw RequestError(field, "too_many_items", fmt::format("at most {} {} are allowed, got {}", most, what, count));
}

void check_id(const char* field, int id, int vocab) {
  if (id >= 0 && id < vocab) return;
  invalid(field, fmt::format("token id {} of {} is outside the model's vocabulary of {}", id, field, vocab));
}

// The wording is that of OpenAI's API, which clients recognise to shorten what they send.
void check_length(const Request& r, const RequestLimits& limits) {
  const auto prompt = static_cast<int64_t>(r.prompt.size());
  const int64_t wanted = prompt + r.max_tokens;
  const int64_t stored = std::max(prompt, wanted - 1);  // the last token is never fed back
  std::string limit;
  int64_t room = limits.context;
  if (wanted > limits.context) {
    limit = fmt::format("This model's maximum context length is {} tokens", limits.context);
  } else if (stored > limits.pool_positions) {
    limit = fmt::format("This server's cache for a context has {} KV blocks for {} tokens",
                        KvCache::blocks_for(limits.pool_positions), limits.pool_positions);
    room = limits.pool_positions;
  } else {
    return;
  }
  throw RequestError(prompt >= room ? "prompt" : "max_tokens", "context_length_exceeded",
                     fmt::format("{}. However, you requested {} tokens ({} in the messages, {} in the completion). "
                                 "Please reduce the length of the messages or completion.",
                                 limit, wanted, prompt, r.max_tokens));
}

}  // namespace

const char* name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kNumericalError:
      return "numerical_error";
    case FinishReason::kConstraintError:
      return "constraint_error";
  }
  return "";
}

const char* name(PrefixReason reason) {
  switch (reason) {
    case PrefixReason::kWhole:
      return "whole";
    case PrefixReason::kOff:
      return "off";
    case PrefixReason::kNoMatch:
      return "no_match";
    case PrefixReason::kDiverged:
      return "diverged";
    case PrefixReason::kOtherTenant:
      return "other_tenant";
    case PrefixReason::kLogprobs:
      return "prompt_logprobs";
    case PrefixReason::kEvicted:
      return "evicted";
  }
  return "";
}

void check(const SamplingParams& p, int vocab) {
  at_most("logit_bias", "entries of logit_bias", p.logit_bias.size(), kMaxLogitBias);
  in_range("temperature", p.temperature >= 0 && p.temperature <= 100, "0 to 100", p.temperature);
  in_range("top_k", p.top_k >= 0, "0 (all) or more", p.top_k);
  in_range("top_p", p.top_p > 0 && p.top_p <= 1, "above 0 and at most 1", p.top_p);
  in_range("min_p", p.min_p >= 0 && p.min_p < 1, "0 or more and below 1", p.min_p);
  in_range("repetition_penalty", p.repetition_penalty > 0 && p.repetition_penalty <= 2, "above 0 and at most 2",
           p.repetition_penalty);
  in_range("presence_penalty", p.presence_penalty >= -2 && p.presence_penalty <= 2, "-2 to 2", p.presence_penalty);
  in_range("frequency_penalty", p.frequency_penalty >= -2 && p.frequency_penalty <= 2, "-2 to 2", p.frequency_penalty);
  for (const auto& [id, bias] : p.logit_bias) {
    check_id("logit_bias", id, vocab);
    in_range("logit_bias", bias >= -100 && bias <= 100, "-100 to 100 for every token", bias);
  }
}

void check(const Request& r, const RequestLimits& limits) {
  // Counts and lengths before anything that looks at single items.
  if (r.prompt.empty()) invalid("prompt", "the prompt is empty");
  at_most("stop_token_ids", "stop ids", r.stop_ids.size(), kMaxStopIds);
  at_most("stop", "stop strings", r.stop_strings.size(), kMaxStopStrings);
  if (r.logprobs > kMaxLogprobs) {
    throw RequestError("logprobs", "too_many_items",
                       fmt::format("logprobs must be at most {}, got {}", kMaxLogprobs, r.logprobs));
  }
  in_range("logprobs", r.logprobs >= -1, "0 or more", r.logprobs);
  const int least = r.prompt_logprobs ? 0 : 1;
  if (r.max_tokens < least) {
    invalid("max_tokens", fmt::format("max_tokens must be at least {}, got {}", least, r.max_tokens));
  }
  if (r.min_tokens < 0 || r.min_tokens > r.max_tokens) {
    invalid("min_tokens",
            fmt::format("min_tokens must be 0 to max_tokens, which is {}, got {}", r.max_tokens, r.min_tokens));
  }
  check_length(r, limits);
  check(r.sampling, limits.vocab);
  for (const std::string& stop : r.stop_strings) {
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      invalid("stop", fmt::format("a stop string must have 1 to {} bytes, got {}", kMaxStopBytes, stop.size()));
    }
  }
  for (const int id : r.stop_ids) check_id("stop_token_ids", id, limits.vocab);
  for (const int id : r.prompt) check_id("prompt", id, limits.vocab);
}

}  // namespace carpool
