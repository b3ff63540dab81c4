// Prompt rows within a time. See pacer.h.
#include "engine/pacer.h"

#include <algorithm>

namespace carpool {
namespace {

constexpr double kWeight = 0.2;  // of the newest observation

void blend(double& estimate, double seen) { estimate = estimate > 0 ? estimate + kWeight * (seen - estimate) : seen; }

}  // namespace

int Pacer::prompt_rows(int decode_rows, int chunk) const {
  if (target_ <= 0 || decode_rows == 0 || row_seconds_ <= 0) return chunk;
  const double rows = std::max((target_ - decode_seconds_) / row_seconds_, 0.0);
  return std::clamp(static_cast<int>(std::min(rows, static_cast<double>(chunk))), std::min(kLeastRows, chunk), chunk);
}

void Pacer::observe(int decode_rows, int prompt_rows, double seconds) {
  if (prompt_rows == 0) return blend(decode_seconds_, seconds);
  // Without decode rows there is nothing to subtract: a step of prompt rows alone pays for reading the weights, too.
  const double rest = seconds - (decode_rows > 0 ? decode_seconds_ : 0);
  // Never zero, however short the step seems beside what decode is expected to take.
  blend(row_seconds_, std::max(rest, 0.05 * seconds) / prompt_rows);
}

}  // namespace carpool
