// From the JSON of a request to what the engine is asked: the common part of all generating endpoints.
//
// Owns Generation and the reading of its fields from OpenAI's completions and chat, SGLang's /generate and Anthropic's
// messages, each with that API's defaults. Everything is checked before any work per item (reliability: counts first);
// what is unknown but harmless is ignored as those servers ignore it, what would silently change the answer is refused
// as unsupported_value. Throws ApiError 400 with the field's path. Prompts are read in prompt.h, chats in chat.h.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/request.h"
#include "grammar/structure.h"
#include "model/config.h"

namespace carpool {

struct OutputPlan;

// How a request wants to be routed: "topk", "isolated", or the spec of a policy the server allows; empty = the
// server's default.
struct RoutingWish {
  std::string text;
};

struct Generation {
  Request request;  // without the prompt, tenant, group and policy
  int n = 1;
  bool seed_given = false;        // else the seed is fresh
  bool max_tokens_given = false;  // else the endpoint's default, cut to what the context leaves
  bool stream = false;
  bool include_usage = false;     // stream_options.include_usage
  bool continuous_usage = false;  // stream_options.continuous_usage_stats
  bool echo = false;
  // What the response shows; request.logprobs is the larger of the two.
  int logprobs = -1;         // of generated tokens (and echoed ones): -1 none, else the number of alternatives
  int prompt_logprobs = -1;  // the same of the prompt, in a field of its own
  bool return_token_ids = false;
  bool tokens_as_ids = false;      // "token_id:17" in place of a token's text
  bool add_special_tokens = true;  // to prompts of text
  RoutingWish routing;
  std::optional<StructureSpec> structure;  // made into request.constraint by answer_job
  std::optional<std::string> model;
  std::shared_ptr<const OutputPlan> output;  // how the text is read (output_plan.h); null = as it is
};

// Limits of docs/server.md.
inline constexpr int kMaxN = 8, kMaxLogprobs = 20, kMaxStops = 4, kMaxStopBytes = 256, kMaxStopIds = 128,
                     kMaxLogitBias = 300, kMaxPrompts = 256, kMaxTools = 128,
                     kMaxChoices = 1024;  // prompts times n

// Defaults come from the model's generation_config.json (config.sampling) where the API leaves them open.
Generation read_completion(const json::object& body, const ModelConfig& config);  // max_tokens 16
Generation read_chat(const json::object& body, const ModelConfig& config);        // max_tokens: what the context leaves
// `path` names sampling_params in errors. logprobs are read by the endpoint.
Generation read_native(const json::object& sampling_params, const std::string& path, const json::object& body,
                       const ModelConfig& config);                              // max_new_tokens 128
Generation read_messages(const json::object& body, const ModelConfig& config);  // Anthropic; max_tokens required
// Throws for what neither /v1/messages nor its count_tokens can do.
void refuse_message_extras(const json::object& body);

// Throws too_many_items when `prompts` times n are more than kMaxChoices.
void check_choices(size_t prompts, int n);

// The default of max_tokens, cut to what a prompt of `prompt_tokens` leaves of the context and the KV pool. What was
// asked for stays as it is: the engine refuses what cannot fit.
void fit_max_tokens(int prompt_tokens, const RequestLimits& limits, bool max_tokens_given, Request& request);

}  // namespace carpool
