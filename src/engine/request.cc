#include "engine/request.h"

#include <fmt/format.h>

#include "base/error.h"

namespace carpool {

const char* name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kNumericalError:
      return "numerical_error";
  }
  return "";
}

void check(const SamplingParams& p) {
  const auto refuse = [](const char* field, const char* range, auto value) {
    throw Error(ErrorKind::kUsage, fmt::format("{} must be {}, got {}", field, range, value));
  };
  if (!(p.temperature >= 0 && p.temperature <= 100)) refuse("temperature", "0 to 100", p.temperature);
  if (p.top_k < 0) refuse("top_k", "0 (all) or more", p.top_k);
  if (!(p.top_p > 0 && p.top_p <= 1)) refuse("top_p", "above 0 and at most 1", p.top_p);
  if (!(p.min_p >= 0 && p.min_p < 1)) refuse("min_p", "0 or more and below 1", p.min_p);
}

}  // namespace carpool
