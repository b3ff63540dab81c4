// Changing logits as a request asks, drawing from them, and scoring tokens. See sampler.h.
#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

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
constexpr float kBinsPerUnit = 8;  // of a logit divided by the temperature
constexpr int kBins = 1024;        // far enough down for masses that float32 cannot hold

bool finite(float logit) { return std::abs(logit) <= std::numeric_limits<float>::max(); }

// Logits stay finite whatever the penalties are: a value beyond the range of float32 would look like a broken model.
float to_logit(double value) {
  constexpr double kMost = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(value, -kMost, kMost));
}

// What is left of the best token's mass at `x` >= 0 below it: exp(-x), within 3e-7 of it, and 0 from about 87 on. Plain
// arithmetic, so that a loop over it is vectorised and every machine gets the same bits.
inline float decay(float x) {
  const float t = std::min(x, 127.0f) * 1.44269504f;  // in powers of two
  const int n = static_cast<int>(t + 0.5f);
  const float f = (static_cast<float>(n) - t) * 0.693147181f;  // |f| <= 0.35: six terms of the series
  const float power = 1 + f * (1 + f * (1 / 2.0f + f * (1 / 6.0f + f * (1 / 24.0f + f * (1 / 120.0f + f / 720)))));
  return std::bit_cast<float>(std::max(127 - n, 0) << 23) * power;
}

// A bin of the histogram of the distances `x` below the best token; the last one has all that are far.
int bin_of(float x) { return static_cast<int>(std::min(x, (kBins - 1) / kBinsPerUnit) * kBinsPerUnit); }

// The first index of the highest logit; -1 when no logit is finite or one is NaN or +Inf. In lanes, so that the
// compiler looks at many at once, and in blocks, so that only the best one is looked at twice.
int highest(std::span<const float> logits) {
  constexpr size_t kLanes = 16, kBlock = 1024;
  std::span<const float> best_block;
  float top = -INFINITY;
  bool bad = false;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const std::span<const float> block = logits.subspan(begin, std::min(kBlock, logits.size() - begin));
    float best[kLanes];
    int broken[kLanes] = {};
    std::fill_n(best, kLanes, -INFINITY);
    size_t i = 0;
    for (; i + kLanes <= block.size(); i += kLanes) {
      for (size_t j = 0; j < kLanes; ++j) {
        best[j] = block[i + j] > best[j] ? block[i + j] : best[j];
        broken[j] |= !(block[i + j] <= std::numeric_limits<float>::max());
      }
    }
    for (; i < block.size(); ++i) {
      best[0] = std::max(best[0], block[i]);
      broken[0] |= !(block[i] <= std::numeric_limits<float>::max());
    }
    bad |= std::any_of(broken, broken + kLanes, [](int b) { return b != 0; });
    if (const float most = *std::max_element(best, best + kLanes); most > top) {
      top = most;
      best_block = block;
    }
  }
  if (bad || best_block.empty()) return -1;
  return static_cast<int>(&*std::find(best_block.begin(), best_block.end(), top) - logits.data());
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

bool Sampler::broken(std::span<const float> logits) { return highest(logits) < 0; }

int Sampler::pick_masked(std::span<const float> logits, const Request& request, int64_t index,
                         std::span<const int> end_ids, const TokenMask& mask) {
  if (broken(logits)) return -1;  // a broken row is broken whatever is masked
  masked_.resize(logits.size());
  mask.apply(logits, masked_);
  if (mask.can_end) {
    for (const std::span<const int> ids : {end_ids, std::span<const int>(request.stop_ids)}) {
      for (const int id : ids) {
        if (request.constraint->ends(id)) masked_[static_cast<size_t>(id)] = logits[static_cast<size_t>(id)];
      }
    }
  }
  return pick(masked_, request.sampling, index);
}

Draw Sampler::sample(std::span<float> logits, const Request& request, std::span<const int> tokens,
                     std::span<const int> end_ids, const TokenMask* mask) {
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
  const auto choose = [&] {
    return mask ? pick_masked(logits, request, index, end_ids, *mask) : pick(logits, request.sampling, index);
  };
  Draw draw{choose(), nullptr};
  if (draw.token < 0 && changed_.size() > before_mask) {
    undo_to(before_mask);
    draw.token = choose();
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
  const int best = highest(logits);
  if (best < 0 || params.temperature < kGreedyBelow || params.top_k == 1) return best;
  const float top = logits[static_cast<size_t>(best)], scale = 1 / params.temperature;
  masses_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) masses_[i] = decay((top - logits[i]) * scale);
  const double u = uniform_of(params.seed, static_cast<uint64_t>(index));
  if (params.top_k == 0 && params.top_p >= 1 && params.min_p == 0) {
    double draw = u * std::accumulate(masses_.begin(), masses_.end(), 0.0);
    for (size_t i = 0; i < masses_.size(); ++i) {
      draw -= masses_[i];
      if (draw < 0) return static_cast<int>(i);
    }
    return best;  // rounding
  }
  const double kept = keep_best(logits, params, top, scale);
  double draw = u * kept;
  for (const Candidate& c : candidates_) {
    draw -= masses_[static_cast<size_t>(c.id)];
    if (draw < 0) return c.id;
  }
  return best;
}

// Fills candidates_ with the tokens that top-k, top-p and min-p leave, and returns their mass. A histogram says how far
// down the last of them can be, so only what lies at that edge is sorted, not the vocabulary.
double Sampler::keep_best(std::span<const float> logits, const SamplingParams& params, float top, float scale) {
  counts_of_bin_.assign(kBins, 0);
  mass_of_bin_.assign(kBins, 0);
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] == -INFINITY) continue;
    const auto bin = static_cast<size_t>(bin_of((top - logits[i]) * scale));
    ++counts_of_bin_[bin];
    mass_of_bin_[bin] += masses_[i];
  }
  const bool by_count = params.top_k > 0;
  const double wanted = params.top_p * std::accumulate(mass_of_bin_.begin(), mass_of_bin_.end(), 0.0);
  int edge = 0;  // the bin of the last token that is kept
  double mass = mass_of_bin_[0];
  for (int64_t count = counts_of_bin_[0]; edge + 1 < kBins && (by_count ? count < params.top_k : mass < wanted);) {
    ++edge;
    count += counts_of_bin_[static_cast<size_t>(edge)];
    mass += mass_of_bin_[static_cast<size_t>(edge)];
  }
  candidates_.clear();
  edge_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] == -INFINITY || masses_[i] < params.min_p) continue;
    const int bin = bin_of((top - logits[i]) * scale);
    if (bin <= edge) (bin < edge && !by_count ? candidates_ : edge_).push_back({logits[i], static_cast<int>(i)});
  }
  std::sort(edge_.begin(), edge_.end(), [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  });
  if (by_count && edge_.size() > static_cast<size_t>(params.top_k)) edge_.resize(static_cast<size_t>(params.top_k));
  const auto sum = [this](const std::vector<Candidate>& list) {
    double out = 0;
    for (const Candidate& c : list) out += masses_[static_cast<size_t>(c.id)];
    return out;
  };
  const double enough = by_count ? params.top_p * sum(edge_) : wanted;
  double kept = sum(candidates_);
  for (const Candidate& c : edge_) {
    if (!candidates_.empty() && kept >= enough) break;
    candidates_.push_back(c);
    kept += masses_[static_cast<size_t>(c.id)];
  }
  return kept;
}

}  // namespace carpool
