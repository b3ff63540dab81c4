#include "measure/result.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/cpu_info.h"
#include "base/error.h"
#include "build_info.h"

namespace carpool {
namespace {

// JSON has no way to say NaN: a number that is none is our bug, and no result.
void put(json::object& out, const std::string& key, double value) {
  if (!std::isfinite(value)) throw Error(ErrorKind::kInternal, fmt::format("no report: {} is not finite", key));
  out[key] = value;
}

void put(json::object& out, const std::string& key, const Estimate& e) {
  put(out, key, e.value);
  put(out, key + "_lo", e.lo);
  put(out, key + "_hi", e.hi);
}

bool is_finite(const Quality& q) {
  const Estimate& delta = q.cross_entropy_delta;
  for (const double v : {q.cross_entropy, delta.value, delta.lo, delta.hi, q.kl_mean, q.top1_agreement}) {
    if (!std::isfinite(v)) return false;
  }
  return true;
}

json::object to_json(const ResultRow& row) {
  json::object out;
  out["policy"] = row.policy;
  out["batch"] = row.batch;
  out["steps"] = row.steps;
  out["steps_measured"] = row.steps_measured;
  out["repeats"] = row.repeats;
  const bool decode = row.steps == "decode";
  if (decode) put(out, "tokens_per_second", row.tokens_per_second);
  put(out, "step_ms", row.step_ms);
  if (decode && row.speedup) put(out, "speedup", *row.speedup);
  if (decode) {
    put(out, "bytes_per_step", row.bytes_per_step);
    put(out, "dense_bytes_per_step", row.dense_bytes_per_step);
    put(out, "floor_share", row.floor_share);
  }
  put(out, "read_gbps", row.read_gbps);
  if (decode && row.quality) {
    const Quality& q = *row.quality;
    out["quality_tokens"] = q.tokens;
    out["quality_documents"] = q.documents;
    put(out, "cross_entropy", q.cross_entropy);
    put(out, "cross_entropy_delta", q.cross_entropy_delta);
    put(out, "kl_mean", q.kl_mean);
    put(out, "top1_agreement", q.top1_agreement);
  }
  for (const auto& entry : routing_json(row.routing)) out[entry.key()] = entry.value();
  return out;
}

}  // namespace

bool ran_plain(const ResultRow& row) {
  return row.policy == "topk" || (row.routing.layers > 0 && row.routing.rerouted_tokens == 0);
}

void require_quality(const Report& report) {
  for (const ResultRow& row : report.rows) {
    if (row.steps != "decode") continue;
    if (row.quality && !is_finite(*row.quality)) {
      throw Error(ErrorKind::kInternal,
                  fmt::format("no report: the quality of {} at batch {} is not finite", escape(row.policy), row.batch));
    }
    if (ran_plain(row) || row.quality) continue;
    throw Error(ErrorKind::kInternal, fmt::format("no report: the speed of {} at batch {} has no quality beside it",
                                                  escape(row.policy), row.batch));
  }
}

json::object routing_json(const RoutingCounters& counters) {
  json::object out;
  const auto layers = static_cast<double>(std::max<int64_t>(counters.layers, 1));
  out["distinct_experts"] = static_cast<double>(counters.distinct_experts) / layers;
  out["distinct_experts_plain"] = static_cast<double>(counters.distinct_plain) / layers;
  out["rerouted_tokens"] = counters.rerouted_tokens;
  out["underfilled_tokens"] = counters.underfilled_tokens;
  json::object plain;
  for (int r = 1; r < kPlainReasons; ++r)
    plain[name(static_cast<PlainReason>(r))] = counters.plain_steps[static_cast<size_t>(r)];
  out["plain_steps"] = std::move(plain);
  return out;
}

std::string plain_reasons_text(const RoutingCounters& counters) {
  std::string out;
  for (int r = 1; r < kPlainReasons; ++r) {
    const int64_t n = counters.plain_steps[static_cast<size_t>(r)];
    if (n > 0) out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name(static_cast<PlainReason>(r)), n);
  }
  return out.empty() ? "none" : out;
}

json::value to_json(const Report& report) {
  require_quality(report);
  json::object out;
  out["command"] = report.facts.command;
  out["commit"] = report.facts.commit;
  out["machine"] = report.facts.machine;
  out["model"] = report.facts.model;
  json::object settings;
  for (const auto& [key, value] : report.facts.settings) settings[key] = value;
  out["settings"] = std::move(settings);
  json::array results;
  for (const ResultRow& row : report.rows) results.push_back(to_json(row));
  out["results"] = std::move(results);
  return out;
}

std::string build_commit() { return CARPOOL_COMMIT; }

std::string machine_facts(int threads, const std::string& isa) {
  const double gib =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE)) / (1 << 30);
  return fmt::format("{}, {} threads on {} CPUs, {}, {:.0f} GiB memory, {} MiB last-level cache", cpu_info().model,
                     threads, cpu_info().logical_cpus, isa, gib, cpu_info().l3_bytes >> 20);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const size_t half = values.size() / 2;
  std::sort(values.begin(), values.end());
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

Estimate bootstrap(const std::vector<double>& values,
                   const std::function<double(const std::vector<double>&)>& statistic) {
  if (values.empty()) return {};
  std::mt19937_64 random(7);
  std::uniform_int_distribution<size_t> pick(0, values.size() - 1);
  std::vector<double> statistics, sample(values.size());
  for (int r = 0; r < 1000; ++r) {
    for (double& v : sample) v = values[pick(random)];
    statistics.push_back(statistic(sample));
  }
  std::sort(statistics.begin(), statistics.end());
  return {statistic(values), statistics[25], statistics[974]};
}

Estimate median_with_interval(const std::vector<double>& values) {
  if (values.empty()) return {};
  if (values.size() >= static_cast<size_t>(kIntervalRepeats)) return bootstrap(values, median);
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return {median(values), *least, *most};
}

}  // namespace carpool
