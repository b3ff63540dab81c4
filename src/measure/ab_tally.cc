// Sums and rows of the A/B; see ab_tally.h.
#include "measure/ab_tally.h"

#include <algorithm>

#include "base/error.h"

namespace carpool {

void Tally::add(const StepReport& report, double attended) {
  current_ms.push_back(report.seconds * 1e3);
  routing.add(report.routing);
  positions += attended;
  ++steps;
}

void Tally::end_repeat() {
  if (!current_ms.empty()) repeat_ms.push_back(median(current_ms));
  current_ms.clear();
}

double Positions::attend(const std::vector<Event>& events) {
  double attended = 0;
  for (const Event& event : events) {
    if (event.token >= 0) attended += static_cast<double>(length_.at(static_cast<size_t>(event.id) - 1)++);
  }
  return attended;
}

ResultRow make_row(const StepSizes& sizes, const Tally& tally, bool decode, int concurrency) {
  CARPOOL_CHECK(tally.steps > 0);
  ResultRow row;
  row.batch = concurrency;
  row.steps = decode ? "decode" : "mixed";
  row.steps_measured = tally.steps;
  row.repeats = static_cast<int>(tally.repeat_ms.size());
  row.step_ms = median_with_interval(tally.repeat_ms);
  row.routing = tally.routing;
  const auto layers = static_cast<double>(std::max<int64_t>(tally.routing.layers, 1));
  row.distinct_experts = static_cast<double>(tally.routing.distinct_experts) / layers;
  row.distinct_experts_plain = static_cast<double>(tally.routing.distinct_plain) / layers;
  if (!decode) return row;
  const double tokens = 1e3 * concurrency;
  row.tokens_per_second = {tokens / row.step_ms.value, tokens / row.step_ms.hi, tokens / row.step_ms.lo};
  row.dense_bytes_per_step =
      sizes.dense_bytes + tally.positions / static_cast<double>(tally.steps) * sizes.kv_position_bytes;
  row.bytes_per_step = row.distinct_experts * sizes.moe_layers * sizes.expert_bytes + row.dense_bytes_per_step;
  return row;
}

void set_floor(ResultRow& row, double read_gbps) {
  row.read_gbps = read_gbps;
  if (row.steps == "decode") row.floor_share = row.bytes_per_step / (read_gbps * 1e9) / (row.step_ms.value / 1e3);
}

Estimate paired_speedup(const Tally& first, const Tally& other) {
  CARPOOL_CHECK(first.repeat_ms.size() == other.repeat_ms.size());
  std::vector<double> ratios;
  for (size_t r = 0; r < first.repeat_ms.size(); ++r) ratios.push_back(first.repeat_ms[r] / other.repeat_ms[r]);
  return median_with_interval(ratios);
}

int cold_copies_for(size_t expert_bytes, size_t cache_bytes) {
  if (expert_bytes == 0 || expert_bytes >= 4 * cache_bytes) return 0;
  return static_cast<int>((4 * cache_bytes + expert_bytes - 1) / expert_bytes);
}

}  // namespace carpool
