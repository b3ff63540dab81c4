// What is asked of the engine, and what it answers.
//
// Owns Request, SamplingParams, Event and the validation of the values a user can set. Plain data.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "routing/counters.h"

namespace carpool {

class Constraint;

struct SamplingParams {
  float temperature = 0;  // 0 (or below 1e-5) = greedy: the highest logit, ties to the lowest id
  int top_k = 0;          // 0 = all
  float top_p = 1;        // (0, 1]
  float min_p = 0;        // [0, 1): share of the best token's probability
  uint64_t seed = 0;      // with the token's index decides every draw; batch mates play no part
  // Before anything else, on the logits: prompt and generated tokens divide (or multiply, below 0) by the repetition
  // penalty; generated tokens lose presence_penalty once and frequency_penalty per occurrence; logit_bias is added.
  float repetition_penalty = 1;                        // (0, 2]
  float presence_penalty = 0;                          // [-2, 2]
  float frequency_penalty = 0;                         // [-2, 2]
  std::vector<std::pair<int, float>> logit_bias = {};  // token id, [-100, 100]
};

struct Request {
  std::vector<int> prompt;  // token ids, at least one
  int max_tokens = 128;     // 0 is allowed with prompt_logprobs: the prompt is scored and nothing generated
  int min_tokens = 0;       // until so many are there, neither an end token nor a stop id can be chosen
  SamplingParams sampling;
  std::vector<int> stop_ids;              // besides the model's own end tokens
  std::vector<std::string> stop_strings;  // the text ends before the first of them
  bool include_stop = false;              // the text ends after it instead
  bool skip_special = true;               // special tokens stand for no text
  std::vector<int> show_special = {};     // but for these, ascending: tags that a parser of the output reads
  bool ignore_eos = false;                // go on past the model's end tokens
  // The text stays within this grammar and ends when it is whole; null: any text. Stop strings may cut it short.
  std::shared_ptr<Constraint> constraint = nullptr;

  int logprobs = -1;             // -1 none; n >= 0: of each token, and of the n best alternatives beside it
  bool prompt_logprobs = false;  // of the prompt's tokens, too; such a request computes its whole prompt

  bool isolated = false;     // plain routing; neither lends experts nor borrows
  int group = 0;             // scope of batch-aware routing
  int policy = 0;            // which of the engine's policies; 0 is the one that can be switched
  int tenant = 0;            // whose it is: fair share of steps, and who may reuse its prefix
  bool cache_prefix = true;  // may take computed blocks from the prefix cache and leave its own there
};

using RequestId = int64_t;

// kConstraintError: the constraint could not be kept within its limits of work, or no token of the vocabulary goes on.
enum class FinishReason { kNone, kStop, kLength, kCancelled, kNumericalError, kConstraintError };
const char* name(FinishReason reason);  // "", "stop", "length", "cancelled", "numerical_error", "constraint_error"

// Log-probabilities are of the model's own distribution: before temperature, penalties, bias and cuts.
struct TokenScore {
  int token = -1;
  float logprob = 0;
};
struct TokenLogprobs {
  TokenScore chosen;
  std::vector<TokenScore> top;  // the n best, best first, ties to the lower id; may contain `chosen`
};

// Why no (more) computed blocks were taken from the prefix cache.
enum class PrefixReason { kWhole, kOff, kNoMatch, kDiverged, kOtherTenant, kLogprobs, kEvicted };
inline constexpr int kPrefixReasons = 7;
const char* name(
    PrefixReason reason);  // "whole", "off", "no_match", "diverged", "other_tenant", "prompt_logprobs", "evicted"

// What became of a request, known at its end.
struct RequestStats {
  int prompt_tokens = 0;
  int completion_tokens = 0;
  int cached_tokens = 0;  // prompt tokens whose keys and values came from the prefix cache, at first admission
  PrefixReason prefix = PrefixReason::kOff;
  int preemptions = 0;
  // Of its decode rows: what routing really did. (row, MoE layer) pairs.
  int64_t rerouted = 0, underfilled = 0;
  std::array<int64_t, kPlainReasons> rows{};  // by reason; [kApplied] = decided by the policy
};

// One token of one request, or its end (token = -1 when the end brings no token).
struct Event {
  RequestId id = 0;
  int token = -1;
  std::string text;  // complete UTF-8, may be empty while a character or a stop string is pending
  FinishReason finish = FinishReason::kNone;
  std::string matched = {};                                 // the stop string that ended it
  int matched_token = -1;                                   // the end token or stop id that ended it
  std::shared_ptr<const TokenLogprobs> logprobs = nullptr;  // of `token`, when asked for
  std::shared_ptr<const std::vector<TokenLogprobs>> prompt_logprobs =
      nullptr;                                          // with the first event; entry 0 has no score (token only)
  std::shared_ptr<const RequestStats> stats = nullptr;  // with the last event
};

// A value of a request that is out of range: `field` as the HTTP API spells it ("max_tokens"), `code` one of the
// stable codes ("invalid_value", "too_many_items", "context_length_exceeded").
class RequestError : public Error {
 public:
  RequestError(std::string field, std::string code, const std::string& sentence)
      : Error(ErrorKind::kUsage, sentence), field_(std::move(field)), code_(std::move(code)) {}
  const std::string& field() const { return field_; }
  const std::string& code() const { return code_; }

 private:
  std::string field_, code_;
};

// What a request must fit into.
struct RequestLimits {
  int vocab = 0;               // rows of the model's output
  int context = 0;             // positions
  int64_t pool_positions = 0;  // positions of the whole KV pool
};

// Throws RequestError for the first value outside its range; written so that NaN fails. Thread-safe.
void check(const Request& request, const RequestLimits& limits);
void check(const SamplingParams& params, int vocab);

}  // namespace carpool
