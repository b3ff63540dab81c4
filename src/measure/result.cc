#include "measure/result.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "base/cpu_info.h"
#include "base/error.h"
#include "build_info.h"

namespace carpool {
namespace {

void put(json::object& out, const std::string& key, const Estimate& e) {
  out[key] = e.value;
  out[key + "_lo"] = e.lo;
  out[key + "_hi"] = e.hi;
}

json::object to_json(const ResultRow& row) {
  json::object out;
  out["policy"] = row.policy;
  out["batch"] = row.batch;
  out["steps"] = row.steps;
  out["steps_measured"] = row.steps_measured;
  out["repeats"] = row.repeats;
  put(out, "tokens_per_second", row.tokens_per_second);
  put(out, "step_ms", row.step_ms);
  if (row.speedup) put(out, "speedup", *row.speedup);
  out["distinct_experts"] = row.distinct_experts;
  out["distinct_experts_plain"] = row.distinct_experts_plain;
  out["bytes_per_step"] = row.bytes_per_step;
  out["read_gbps"] = row.read_gbps;
  out["floor_share"] = row.floor_share;
  if (row.quality) {
    const Quality& q = *row.quality;
    out["quality_tokens"] = q.tokens;
    out["quality_documents"] = q.documents;
    out["cross_entropy"] = q.cross_entropy;
    put(out, "cross_entropy_delta", q.cross_entropy_delta);
    out["kl_mean"] = q.kl_mean;
    out["top1_agreement"] = q.top1_agreement;
  }
  out["rerouted_tokens"] = row.routing.rerouted_tokens;
  out["underfilled_tokens"] = row.routing.underfilled_tokens;
  json::object plain;
  for (int r = 1; r < kPlainReasons; ++r)
    plain[name(static_cast<PlainReason>(r))] = row.routing.plain_steps[static_cast<size_t>(r)];
  out["plain_steps"] = std::move(plain);
  return out;
}

}  // namespace

bool ran_plain(const ResultRow& row) {
  return row.policy == "topk" || (row.routing.layers > 0 && row.routing.rerouted_tokens == 0);
}

void require_quality(const Report& report) {
  for (const ResultRow& row : report.rows) {
    if (row.steps != "decode" || ran_plain(row) || row.quality) continue;
    throw Error(ErrorKind::kInternal, fmt::format("no report: the speed of {} at batch {} has no quality beside it",
                                                  escape(row.policy), row.batch));
  }
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

Estimate median_with_interval(std::vector<double> values) {
  if (values.empty()) return {};
  std::mt19937_64 random(7);
  std::uniform_int_distribution<size_t> pick(0, values.size() - 1);
  std::vector<double> medians, sample(values.size());
  for (int r = 0; r < 1000; ++r) {
    for (double& v : sample) v = values[pick(random)];
    medians.push_back(median(sample));
  }
  std::sort(medians.begin(), medians.end());
  return {median(values), medians[25], medians[974]};
}

}  // namespace carpool
