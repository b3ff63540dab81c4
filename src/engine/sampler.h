// From logits to a token.
//
// Owns Sampler, which keeps the memory for sorting candidates. The draw for token n of a request is a function of
// (seed, n) alone, so neither batch mates nor scheduling can change it. Order of the cuts: temperature, top-k,
// top-p, min-p, as in transformers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"

namespace carpool {

class Sampler {
 public:
  // Returns the token, or -1 when no logit is finite or one is NaN or +Inf. `index` counts the request's own tokens.
  int sample(std::span<const float> logits, const SamplingParams& params, int64_t index);

 private:
  struct Candidate {
    float logit;
    int id;
  };
  std::vector<Candidate> candidates_;
  std::vector<double> mass_;
};

// A number in [0, 1) that depends on (seed, index) only.
double uniform_of(uint64_t seed, uint64_t index);

}  // namespace carpool
