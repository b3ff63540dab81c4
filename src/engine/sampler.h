// From logits to a token.
//
// Owns Sampler, which keeps the memory for counting and sorting. The draw for token n of a request is a function of
// (seed, n) alone, so neither batch mates nor scheduling can change it. On the logits first: penalties, bias, and what
// must not be chosen yet (request.h); then the mask of a constraint; then the cuts, in the order of transformers:
// temperature, top-k, top-p, min-p.
// What a request does not ask for costs nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "grammar/constraint.h"

namespace carpool {

struct Draw {
  int token = -1;                                 // -1 when no logit is finite or one is NaN or +Inf
  std::shared_ptr<const TokenLogprobs> logprobs;  // of `token`, when the request asks and there is one
};

class Sampler {
 public:
  // Chooses the next token of `request` from the logits [V] that follow `tokens`: its prompt and what it generated so
  // far, ids below V. `end_ids` are the model's end tokens. Logits are changed on the way and given back as they were.
  // When min_tokens would leave no token to choose, it is ignored.
  // `mask`, when not null: only its tokens are chosen, and where it can end the end tokens and those stop ids that take
  // no part in a constraint. Token -1 also when none of these has a finite logit.
  Draw sample(std::span<float> logits, const Request& request, std::span<const int> tokens,
              std::span<const int> end_ids, const TokenMask* mask = nullptr);
  // True when no logit is finite or one is NaN or +Inf.
  static bool broken(std::span<const float> logits);
  // The same without penalties, bias and min_tokens. `index` counts the request's own tokens.
  int pick(std::span<const float> logits, const SamplingParams& params, int64_t index);

 private:
  void change(std::span<float> logits, int id, float value);
  int pick_masked(std::span<const float> logits, const Request& request, int64_t index, std::span<const int> end_ids,
                  const TokenMask& mask);
  double keep_best(std::span<const float> logits, const SamplingParams& params, float top, float scale);
  void penalise(std::span<float> logits, const Request& request, std::span<const int> tokens);

  struct Candidate {
    float logit;
    int id;
  };
  std::vector<float> masked_;           // [V] logits of a constrained request
  std::vector<float> masses_;           // [V] share of the best token's probability
  std::vector<int64_t> counts_of_bin_;  // of the histogram of keep_best
  std::vector<double> mass_of_bin_;
  std::vector<Candidate> candidates_, edge_;
  std::vector<int> counts_;                     // [V] zeros between calls: 1 + how often the request generated the id
  std::vector<int> touched_;                    // ids whose count is not zero
  std::vector<std::pair<int, float>> changed_;  // id and its logit before, in order
};

// The log-probability of `token` and of the `n` >= 0 best tokens (fewer where fewer have a finite logit); sums are
// taken in float64. Token -1 when no logit is finite or one is NaN or +Inf. Thread-safe.
TokenLogprobs score(std::span<const float> logits, int token, int n);

// A number in [0, 1) that depends on (seed, index) only.
double uniform_of(uint64_t seed, uint64_t index);

}  // namespace carpool
