#include "engine/sampler.h"

#include <algorithm>
#include <cmath>

namespace carpool {
namespace {

// SplitMix64's finaliser (Steele, Lea, Flood 2014): every input bit reaches every output bit.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr float kGreedyBelow = 1e-5f;

}  // namespace

double uniform_of(uint64_t seed, uint64_t index) {
  return static_cast<double>(mix(mix(seed) + index) >> 11) * 0x1.0p-53;
}

int Sampler::sample(std::span<const float> logits, const SamplingParams& params, int64_t index) {
  int best = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float v = logits[i];
    if (std::isnan(v) || v == INFINITY) return -1;
    if (v != -INFINITY && (best < 0 || v > logits[static_cast<size_t>(best)])) best = static_cast<int>(i);
  }
  if (best < 0 || params.temperature < kGreedyBelow || params.top_k == 1) return best;

  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] != -INFINITY) candidates_.push_back({logits[i], static_cast<int>(i)});
  }
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < candidates_.size()) {
    std::partial_sort(candidates_.begin(), candidates_.begin() + params.top_k, candidates_.end(), better);
    candidates_.resize(static_cast<size_t>(params.top_k));
  } else {
    std::sort(candidates_.begin(), candidates_.end(), better);
  }
  mass_.clear();
  double total = 0;
  for (const Candidate& c : candidates_) {
    mass_.push_back(std::exp((static_cast<double>(c.logit) - candidates_[0].logit) / params.temperature));
    total += mass_.back();
  }
  // top-p keeps the shortest prefix that reaches the mass; min-p cuts what is far below the best token.
  size_t keep = 0;
  double kept = 0;
  while (keep < mass_.size() && (keep == 0 || kept < params.top_p * total) && mass_[keep] >= params.min_p * mass_[0]) {
    kept += mass_[keep++];
  }
  double draw = uniform_of(params.seed, static_cast<uint64_t>(index)) * kept;
  for (size_t i = 0; i < keep; ++i) {
    draw -= mass_[i];
    if (draw < 0) return candidates_[i].id;
  }
  return candidates_[keep - 1].id;
}

}  // namespace carpool
