// What is asked of the engine, and what it answers.
//
// Owns Request, SamplingParams, Event and the validation of the values a user can set. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace carpool {

struct SamplingParams {
  float temperature = 0;  // 0 (or below 1e-5) = greedy: the highest logit, ties to the lowest id
  int top_k = 0;          // 0 = all
  float top_p = 1;        // (0, 1]
  float min_p = 0;        // [0, 1): share of the best token's probability
  uint64_t seed = 0;      // with the token's index decides every draw; batch mates play no part
};

struct Request {
  std::vector<int> prompt;  // token ids, at least one
  int max_tokens = 128;
  SamplingParams sampling;
  std::vector<int> stop_ids;              // besides the model's own end tokens
  std::vector<std::string> stop_strings;  // the text ends before the first of them
  bool ignore_eos = false;                // go on past the model's end tokens
  bool isolated = false;                  // plain routing; neither lends experts nor borrows
  int group = 0;                          // scope of batch-aware routing
};

using RequestId = int64_t;

enum class FinishReason { kNone, kStop, kLength, kCancelled, kNumericalError };
const char* name(FinishReason reason);  // "", "stop", "length", "cancelled", "numerical_error"

// One token of one request, or its end (token = -1 when the end brings no token).
struct Event {
  RequestId id = 0;
  int token = -1;
  std::string text;  // complete UTF-8, may be empty while a character or a stop string is pending
  FinishReason finish = FinishReason::kNone;
};

// Throws Error{kUsage} for a value outside its range; written so that NaN fails.
void check(const SamplingParams& params);

}  // namespace carpool
