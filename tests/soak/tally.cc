// Read first: tally.h.
#include "soak/tally.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/utf8.h"

namespace carpool::soak {
namespace {

constexpr int64_t kExamplesPerKind = 5;

json::object to_json(const std::map<std::string, int64_t>& counts) {
  json::object out;
  for (const auto& [name, n] : counts) out[name] = n;
  return out;
}

json::object summary(const Samples& samples, double unit) {
  const auto rounded = [&](double p) { return std::round(samples.percentile(p) * unit * 100) / 100; };
  return {{"count", samples.count()}, {"p50", rounded(50)}, {"p99", rounded(99)}, {"max", rounded(100)}};
}

}  // namespace

double Samples::percentile(double p) const {
  if (values_.empty()) return 0;
  std::vector<double> sorted = values_;
  std::sort(sorted.begin(), sorted.end());
  const double rank = std::ceil(p / 100 * static_cast<double>(sorted.size()));
  return sorted[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

json::object Samples::milliseconds() const { return summary(*this, 1e3); }
json::object Samples::seconds() const { return summary(*this, 1); }

void Tally::status(int status) {
  ++statuses_[status];
  if (status == 500) violation("status 500", "");
}

void Tally::violation(const std::string& kind, const std::string& details) {
  ++n_violations_;
  if (++violation_counts_[kind] <= kExamplesPerKind) {
    examples_.push_back(sanitize_utf8(fmt::format("{}: {}", kind, details)));
  }
}

int64_t Tally::outcomes(const std::string& name) const {
  const auto found = outcomes_.find(name);
  return found == outcomes_.end() ? 0 : found->second;
}

json::object Tally::report() const {
  json::object statuses;
  for (const auto& [status, n] : statuses_) statuses[std::to_string(status)] = n;
  json::array examples;
  for (const std::string& example : examples_) examples.emplace_back(example);
  const auto wrong = violation_counts_.find("wrong text");
  return {{"outcomes", to_json(outcomes_)},
          {"statuses", statuses},
          {"answer_tokens", tokens},
          {"right_texts", right_texts},
          {"wrong_texts", wrong == violation_counts_.end() ? int64_t{0} : wrong->second},
          {"first_piece_ms", first_piece.milliseconds()},
          {"violations", n_violations_},
          {"violations_by_kind", to_json(violation_counts_)},
          {"examples", examples}};
}

}  // namespace carpool::soak
