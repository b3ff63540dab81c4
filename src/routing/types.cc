// The few functions of the routing vocabulary: names of reasons and the start of a Selection. See types.h.
#include "routing/types.h"

#include <algorithm>

namespace carpool {

const char* name(PlainReason reason) {
  switch (reason) {
    case PlainReason::kApplied:
      return "applied";
    case PlainReason::kPolicy:
      return "policy";
    case PlainReason::kIsolated:
      return "isolated";
    case PlainReason::kPhase:
      return "phase";
    case PlainReason::kMinBatch:
      return "min_batch";
    case PlainReason::kMaxRows:
      return "max_rows";
    case PlainReason::kUnion:
      return "union";
    case PlainReason::kBudget:
      return "budget";
  }
  return "unknown";
}

void Selection::start(int rows, int max_per_row) {
  experts_.clear();
  mixes_.clear();
  offsets_.clear();
  reasons_.clear();
  divisors_.clear();
  sums_.clear();
  experts_.reserve(static_cast<size_t>(rows) * static_cast<size_t>(std::max(0, max_per_row)));
  mixes_.reserve(static_cast<size_t>(rows) * static_cast<size_t>(std::max(0, max_per_row)));
  offsets_.reserve(static_cast<size_t>(rows) + 1);
  reasons_.reserve(static_cast<size_t>(rows));
  divisors_.reserve(static_cast<size_t>(rows));
  sums_.reserve(static_cast<size_t>(rows));
  offsets_.push_back(0);
}

}  // namespace carpool
