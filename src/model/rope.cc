// Frequencies of rotary embedding and what long-context models do to them; see Rope in config.h. The formulas are those
// of transformers' modeling_rope_utils, which published checkpoints were made for, in double and rounded once.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/config.h"

namespace carpool {
namespace {

// YaRN (arXiv 2309.00071): which share of dimension pair i keeps its frequency, 0 to 1.
double yarn_kept(const Rope& rope, int i) {
  const auto dimension = [&](double rotations) {
    return rope.dims * std::log(rope.original_context / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = dimension(rope.beta_fast), high = dimension(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, rope.dims - 1.0);
  if (low == high) high += 0.001;
  return 1 - std::clamp((i - low) / (high - low), 0.0, 1.0);
}

// Llama 3: long wavelengths are stretched by the factor, short ones kept, those between blended.
double llama3(const Rope& rope, double frequency) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < rope.original_context / rope.high_frequency) return frequency;
  if (wavelength > rope.original_context / rope.low_frequency) return frequency / rope.factor;
  const double smooth =
      (rope.original_context / wavelength - rope.low_frequency) / (rope.high_frequency - rope.low_frequency);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

}  // namespace

std::vector<float> Rope::frequencies() const {
  std::vector<float> out(static_cast<size_t>(dims / 2));
  for (int i = 0; i < dims / 2; ++i) {
    double f = 1.0 / std::pow(theta, 2.0 * i / dims);
    switch (scaling) {
      case Scaling::kNone:
        break;
      case Scaling::kLinear:
        f /= factor;
        break;
      case Scaling::kYarn: {
        const double kept = yarn_kept(*this, i);
        f = f / factor * (1 - kept) + f * kept;
        break;
      }
      case Scaling::kLlama3:
        f = llama3(*this, f);
        break;
    }
    if (!divisors.empty()) f /= static_cast<double>(divisors[static_cast<size_t>(i)]);
    out[static_cast<size_t>(i)] = static_cast<float>(f);
  }
  return out;
}

}  // namespace carpool
