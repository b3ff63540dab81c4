// Changing logits as a request asks, drawing from them, and scoring tokens. See sampler.h.
#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

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

bool finite(float logit) { return std::abs(logit) <= std::numeric_limits<float>::max(); }

// Logits stay finite whatever the penalties are: a value beyond the range of float32 would look like a broken model.
float to_logit(double value) {
  constexpr double kMost = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(value, -kMost, kMost));
}

}  // namespace

double uniform_of(uint64_t seed, uint64_t index) {
  return static_cast<double>(mix(mix(seed) + index) >> 11) * 0x1.0p-53;
}

// Only finite logits change: -Inf is the model's own ban, and NaN or +Inf must be seen.
void Sampler::change(std::span<float> logits, int id, float value) {
  float& logit = logits[static_cast<size_t>(id)];
  if (!finite(logit)) return;
  changed_.emplace_back(id, logit);
  logit = value;
}

// One visit per token of the sequence, one change per distinct token.
void Sampler::penalise(std::span<float> logits, const Request& request, std::span<const int> tokens) {
  const SamplingParams& p = request.sampling;
  const bool repetition = p.repetition_penalty != 1;
  if (!repetition && p.presence_penalty == 0 && p.frequency_penalty == 0) return;
  if (counts_.size() < logits.size()) counts_.resize(logits.size());
  const size_t n_prompt = request.prompt.size();
  for (size_t i = repetition ? 0 : n_prompt; i < tokens.size(); ++i) {
    int& count = counts_[static_cast<size_t>(tokens[i])];
    if (count == 0) {
      count = 1;
      touched_.push_back(tokens[i]);
    }
    count += i >= n_prompt;
  }
  for (const int id : touched_) {
    double logit = logits[static_cast<size_t>(id)];
    if (repetition) logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
    const int generated = std::exchange(counts_[static_cast<size_t>(id)], 0) - 1;
    if (generated > 0) logit -= double{p.presence_penalty} + double{p.frequency_penalty} * generated;
    change(logits, id, to_logit(logit));
  }
  touched_.clear();
}

Draw Sampler::sample(std::span<float> logits, const Request& request, std::span<const int> tokens,
                     std::span<const int> end_ids) {
  const auto index = static_cast<int64_t>(tokens.size() - request.prompt.size());
  changed_.clear();
  penalise(logits, request, tokens);
  for (const auto& [id, bias] : request.sampling.logit_bias) {
    change(logits, id, to_logit(double{logits[static_cast<size_t>(id)]} + bias));
  }
  const size_t before_mask = changed_.size();
  if (index < request.min_tokens) {
    for (const std::span<const int> ids : {end_ids, std::span<const int>(request.stop_ids)}) {
      for (const int id : ids) change(logits, id, -INFINITY);
    }
  }
  const auto undo_to = [&](size_t n) {
    for (; changed_.size() > n; changed_.pop_back()) {
      logits[static_cast<size_t>(changed_.back().first)] = changed_.back().second;
    }
  };
  Draw draw{pick(logits, request.sampling, index), nullptr};
  if (draw.token < 0 && changed_.size() > before_mask) {
    undo_to(before_mask);
    draw.token = pick(logits, request.sampling, index);
  }
  undo_to(0);
  if (draw.token >= 0 && request.logprobs >= 0) {
    draw.logprobs = std::make_shared<TokenLogprobs>(score(logits, draw.token, request.logprobs));
  }
  return draw;
}

TokenLogprobs score(std::span<const float> logits, int token, int n) {
  TokenLogprobs out;
  out.top.reserve(static_cast<size_t>(n));
  float best = -INFINITY;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float v = logits[i];
    if (std::isnan(v) || v == INFINITY) return {};
    best = std::max(best, v);
    // Ids come in ascending order, so an equal logit never displaces: ties go to the lower id.
    if (v == -INFINITY || n == 0) continue;
    const bool full = out.top.size() == static_cast<size_t>(n);
    if (full && !(v > out.top.back().logprob)) continue;
    if (full) out.top.pop_back();
    const auto at = std::find_if(out.top.begin(), out.top.end(), [v](const TokenScore& s) { return v > s.logprob; });
    out.top.insert(at, {static_cast<int>(i), v});
  }
  if (best == -INFINITY) return {};
  double sum = 0;
  for (const float v : logits) sum += std::exp(double{v} - best);
  const double log_sum = std::log(sum);  // of the differences from `best`, so that huge logits lose nothing
  const auto logprob = [&](float logit) { return static_cast<float>(double{logit} - best - log_sum); };
  for (TokenScore& s : out.top) s.logprob = logprob(s.logprob);
  out.chosen = {token, logprob(logits[static_cast<size_t>(token)])};
  return out;
}

int Sampler::pick(std::span<const float> logits, const SamplingParams& params, int64_t index) {
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
