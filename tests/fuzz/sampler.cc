// The sampler against the definitions: logits come back as they were, the choice is one that the cuts leave, greedy is
// the best token, and log-probabilities are finite, sorted and those of the model.
#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "fuzz.h"

namespace carpool {
namespace {

constexpr double kSlack = 1e-4;  // relative, of sums in float32 and of the histogram's edges

float number_of(fuzz::Bytes& bytes) {
  const unsigned b = bytes.byte();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  static constexpr float kSpecial[] = {std::numeric_limits<float>::quiet_NaN(), kInf, -kInf, 3e38f, -3e38f, 1e-45f};
  return b >= 250 ? kSpecial[b - 250] : (static_cast<float>(b) - 125) / 8;
}

Request request_of(fuzz::Bytes& bytes, int vocab) {
  Request r;
  SamplingParams& s = r.sampling;
  static constexpr float kTemperatures[] = {0, 1e-9f, 1e-5f, 0.1f, 0.7f, 1, 2, 100};
  static constexpr float kShares[] = {1, 1, 0.95f, 0.5f, 0.1f, 1e-6f};
  s.temperature = kTemperatures[bytes.below(8)];
  s.top_k = bytes.below(2) == 0 ? 0 : bytes.below(vocab + 2);
  s.top_p = kShares[bytes.below(6)];
  s.min_p = 1 - kShares[bytes.below(6)];
  s.seed = bytes.word();
  if (bytes.below(3) == 0) s.repetition_penalty = static_cast<float>(1 + bytes.below(20)) / 10;
  if (bytes.below(3) == 0) s.presence_penalty = static_cast<float>(bytes.below(41) - 20) / 10;
  if (bytes.below(3) == 0) s.frequency_penalty = static_cast<float>(bytes.below(41) - 20) / 10;
  for (int n = bytes.below(6); n > 0; --n) {
    s.logit_bias.emplace_back(bytes.below(vocab), static_cast<float>(bytes.below(201) - 100));
  }
  r.logprobs = bytes.below(3) - 1;
  r.min_tokens = bytes.below(4);
  for (int n = bytes.below(3); n > 0; --n) r.stop_ids.push_back(bytes.below(vocab));
  for (int n = 1 + bytes.below(4); n > 0; --n) r.prompt.push_back(bytes.below(vocab));
  return r;
}

// The logits that the cuts see, by the words of request.h. `banned`: what min_tokens forbids.
std::vector<float> changed(std::vector<float> logits, const Request& r, const std::vector<int>& tokens,
                           const std::vector<int>& ends) {
  const SamplingParams& s = r.sampling;
  const size_t prompt = r.prompt.size();
  std::map<int, int> counts, seen;
  for (size_t i = 0; i < tokens.size(); ++i) ++seen[tokens[i]], counts[tokens[i]] += i >= prompt;
  const auto set = [&](int id, double value) {  // what is not finite stays as it is, what is stays finite
    constexpr double kMost = std::numeric_limits<float>::max();
    float& x = logits[static_cast<size_t>(id)];
    if (std::isfinite(x)) x = static_cast<float>(std::clamp(value, -kMost, kMost));
  };
  for (const auto& [id, n] : seen) {
    double x = logits[static_cast<size_t>(id)];
    if (s.repetition_penalty != 1) x = x > 0 ? x / s.repetition_penalty : x * s.repetition_penalty;
    if (counts[id] > 0) x -= double{s.presence_penalty} + double{s.frequency_penalty} * counts[id];
    set(id, x);
  }
  for (const auto& [id, bias] : s.logit_bias) set(id, double{logits[static_cast<size_t>(id)]} + bias);
  if (tokens.size() - prompt < static_cast<size_t>(r.min_tokens)) {
    std::vector<float> masked = logits;
    for (const int id : ends) masked[static_cast<size_t>(id)] = -std::numeric_limits<float>::infinity();
    for (const int id : r.stop_ids) masked[static_cast<size_t>(id)] = -std::numeric_limits<float>::infinity();
    if (std::any_of(masked.begin(), masked.end(), [](float x) { return std::isfinite(x); })) return masked;
  }
  return logits;
}

// Whether the cuts leave `token`, by sorting, with some slack at their edges.
bool left(const std::vector<float>& logits, const SamplingParams& s, int token) {
  const double own = logits[static_cast<size_t>(token)], scale = 1 / static_cast<double>(s.temperature);
  const double best = *std::max_element(logits.begin(), logits.end());
  const auto above = std::count_if(logits.begin(), logits.end(), [&](float x) { return x > own; });
  if (s.top_k > 0 && above >= s.top_k) return false;
  double before = 0, all = 0;
  for (const float x : logits) {
    const double mass = std::exp((x - best) * scale);
    // top-p looks at what top-k left.
    const auto rank = std::count_if(logits.begin(), logits.end(), [&](float y) { return y > x; });
    if (s.top_k > 0 && rank >= s.top_k) continue;
    all += mass;
    if (x > own) before += mass;
  }
  if (before > s.top_p * all * (1 + kSlack) + kSlack * all) return false;
  return std::exp((own - best) * scale) >= s.min_p * (1 - kSlack) - kSlack;
}

void check_scores(const std::vector<float>& logits, const TokenLogprobs& scores, int wanted) {
  const auto finite = std::count_if(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); });
  FUZZ_CHECK(static_cast<int64_t>(scores.top.size()) == std::min<int64_t>(wanted, finite), "alternatives");
  double best = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const float x : logits) best = std::max<double>(best, x);
  for (const float x : logits) sum += std::exp(x - best);
  const auto fits = [&](const TokenScore& s) {
    const double right = logits[static_cast<size_t>(s.token)] - best - std::log(sum);
    return std::fabs(s.logprob - right) <= 1e-5 * (1 + std::fabs(right)) ||
           (!std::isfinite(right) && s.logprob < -1e30) || (right < -3e38 && s.logprob < -1e30);
  };
  FUZZ_CHECK(fits(scores.chosen), std::to_string(scores.chosen.logprob));
  for (size_t i = 0; i < scores.top.size(); ++i) {
    FUZZ_CHECK(fits(scores.top[i]), std::to_string(scores.top[i].logprob));
    if (i == 0) continue;
    const TokenScore &a = scores.top[i - 1], &b = scores.top[i];
    FUZZ_CHECK(a.logprob > b.logprob || (a.logprob == b.logprob && a.token != b.token), "alternatives in order");
  }
}

}  // namespace
}  // namespace carpool

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace carpool;
  fuzz::Bytes bytes(data, size);
  const int vocab = 1 + bytes.below(40);
  const Request request = request_of(bytes, vocab);
  std::vector<int> tokens = request.prompt, ends = {bytes.below(vocab)};
  for (int n = bytes.below(6); n > 0; --n) tokens.push_back(bytes.below(vocab));
  std::vector<float> logits;
  for (int i = 0; i < vocab; ++i) logits.push_back(number_of(bytes));
  check(request.sampling, vocab);
  Sampler sampler;
  std::vector<float> given = logits;
  const Draw draw = sampler.sample(given, request, tokens, ends);
  for (size_t i = 0; i < logits.size(); ++i) {
    FUZZ_CHECK(std::bit_cast<uint32_t>(given[i]) == std::bit_cast<uint32_t>(logits[i]), "logits came back changed");
  }
  FUZZ_CHECK(sampler.sample(given, request, tokens, ends).token == draw.token, "a second draw differs");
  bool broken = true;
  for (const float x : logits) broken &= !std::isfinite(x);
  for (const float x : logits) broken |= std::isnan(x) || x > std::numeric_limits<float>::max();
  FUZZ_CHECK((draw.token < 0) == broken, std::to_string(draw.token));
  FUZZ_CHECK((draw.logprobs != nullptr) == (request.logprobs >= 0 && draw.token >= 0), "log-probabilities");
  if (draw.token < 0) return 0;
  FUZZ_CHECK(draw.token < vocab, std::to_string(draw.token));
  if (draw.logprobs) check_scores(logits, *draw.logprobs, request.logprobs);
  const std::vector<float> seen = changed(logits, request, tokens, ends);
  const float own = seen[static_cast<size_t>(draw.token)], best = *std::max_element(seen.begin(), seen.end());
  if (request.sampling.temperature < 1e-5f) {
    FUZZ_CHECK(own >= best - 1e-5f * std::fabs(best) - 1e-5f, "greedy is not the best");
  } else {
    FUZZ_CHECK(left(seen, request.sampling, draw.token), "a token that the cuts leave out");
  }
  return 0;
}
