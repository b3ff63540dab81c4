#include "measure/load_metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace carpool {
namespace {

constexpr size_t kMostSeconds = 1 << 22;  // of buckets; a load that runs longer has no peaks beyond

// Adds one to the bucket of each token event and of each second in which the request was under way.
void add_seconds(const LoadOutcome& o, double first, std::vector<double>& tokens, std::vector<int>& open) {
  const auto bucket = [&](double time) {
    return std::min(static_cast<size_t>(std::max(time - first, 0.0)), tokens.size() - 1);
  };
  if (o.ttft >= 0) {
    double time = o.start + o.ttft;
    tokens[bucket(time)] += 1;
    for (const double gap : o.itl) {
      time += gap;
      tokens[bucket(time)] += 1;
    }
  }
  for (size_t s = bucket(o.start); s <= bucket(o.start + o.latency); ++s) ++open[s];
}

void find_peaks(const std::vector<LoadOutcome>& outcomes, LoadMetrics& m) {
  double first = 0, last = 0;
  bool any = false;
  for (const LoadOutcome& o : outcomes) {
    if (!o.success) continue;
    first = any ? std::min(first, o.start) : o.start;
    last = std::max(last, o.start + o.latency);
    any = true;
  }
  if (!any) return;
  const double seconds = std::ceil(last - first) + 1;
  const size_t buckets = seconds < static_cast<double>(kMostSeconds) ? static_cast<size_t>(seconds) : kMostSeconds;
  std::vector<double> tokens(buckets);
  std::vector<int> open(buckets);
  for (const LoadOutcome& o : outcomes) {
    if (o.success) add_seconds(o, first, tokens, open);
  }
  m.peak_output = *std::max_element(tokens.begin(), tokens.end());
  m.peak_concurrent = *std::max_element(open.begin(), open.end());
}

}  // namespace

double percentile(const std::vector<double>& sorted, double percent) {
  if (sorted.empty()) return 0;
  const double at = std::clamp(percent, 0.0, 100.0) / 100 * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - static_cast<double>(low));
}

Distribution distribution(std::vector<double> values, const std::vector<double>& percents) {
  Distribution d;
  std::sort(values.begin(), values.end());
  d.count = values.size();
  if (!values.empty()) {
    const auto n = static_cast<double>(values.size());
    d.mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
    double squares = 0;
    for (const double v : values) squares += (v - d.mean) * (v - d.mean);
    d.std = std::sqrt(squares / n);  // as numpy's default, of the population
    d.median = percentile(values, 50);
    d.max = values.back();
  }
  for (const double p : percents) d.percentiles.emplace_back(p, percentile(values, p));
  return d;
}

LoadMetrics summarise(const std::vector<LoadOutcome>& outcomes, double duration, const std::vector<double>& percents) {
  LoadMetrics m;
  m.duration = duration;
  std::vector<double> e2e, ttft, tpot, itl;
  double busy = 0;
  for (const LoadOutcome& o : outcomes) {
    if (!o.success) {
      ++m.failed;
      continue;
    }
    ++m.completed;
    m.total_input += o.prompt_tokens;
    m.total_output += o.output_tokens;
    m.total_cached += o.cached_tokens;
    m.uncounted += o.counted ? 0 : 1;
    busy += o.latency;
    e2e.push_back(o.latency * 1e3);
    if (o.ttft < 0) {
      m.without_text += o.text.empty() ? 1 : 0;
      continue;
    }
    ttft.push_back(o.ttft * 1e3);
    if (o.output_tokens > 1) tpot.push_back((o.latency - o.ttft) / (o.output_tokens - 1) * 1e3);
    for (const double gap : o.itl) itl.push_back(gap * 1e3);
  }
  if (duration > 0) {
    m.request_throughput = m.completed / duration;
    m.input_throughput = static_cast<double>(m.total_input) / duration;
    m.output_throughput = static_cast<double>(m.total_output) / duration;
    m.total_throughput = static_cast<double>(m.total_input + m.total_output) / duration;
    m.concurrency = busy / duration;
  }
  m.e2e_ms = distribution(std::move(e2e), percents);
  m.ttft_ms = distribution(std::move(ttft), percents);
  m.tpot_ms = distribution(std::move(tpot), percents);
  m.itl_ms = distribution(std::move(itl), percents);
  find_peaks(outcomes, m);
  return m;
}

std::map<std::string, FailureCount> failures(const std::vector<LoadOutcome>& outcomes) {
  std::map<std::string, FailureCount> out;
  for (const LoadOutcome& o : outcomes) {
    if (o.success) continue;
    FailureCount& f = out[o.failure];
    if (f.count++ == 0) f.message = o.message;
  }
  return out;
}

std::map<std::string, int> applied_routing(const std::vector<LoadOutcome>& outcomes) {
  std::map<std::string, int> out;
  for (const LoadOutcome& o : outcomes) {
    if (o.success && !o.routing.empty()) ++out[o.routing];
  }
  return out;
}

}  // namespace carpool
