#include "measure/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/memory.h"
#include "measure/ab.h"

namespace carpool {
namespace {

constexpr size_t kProbeBytes = size_t{1} << 30;

// Between all rows alike (0) and independent uniform choices (1). Random tokens reach about 0.8, real text about 0.5;
// equal tokens in all rows give 0.
constexpr double kLeastSpread = 0.4;

}  // namespace

std::string bench_text(const BenchReport& report) {
  const auto facts = fact_lines(report.facts);
  size_t width = 0;
  for (const auto& [key, value] : facts) width = std::max(width, key.size());
  std::string out;
  for (const auto& [key, value] : facts) out += fmt::format("{:<{}}  {}\n", printable(key), width, printable(value));
  for (const Table& table : report.tables) {
    if (!table.rows.empty()) out += "\n" + to_text(table);
  }
  for (const std::string& note : report.notes) out += fmt::format("\n{}\n", printable(note));
  return out;
}

json::value bench_json(const BenchReport& report) {
  json::object out;
  out["command"] = report.facts.command;
  out["commit"] = report.facts.commit;
  out["machine"] = report.facts.machine;
  out["model"] = report.facts.model;
  json::object settings;
  for (const auto& [key, value] : report.facts.settings) settings[key] = value;
  out["settings"] = std::move(settings);
  out["results"] = report.results;
  for (const auto& entry : report.summary) out[entry.key()] = entry.value();
  json::array notes;
  for (const std::string& note : report.notes) notes.emplace_back(note);
  out["notes"] = std::move(notes);
  return out;
}

void put_number(json::object& out, const std::string& key, double value) {
  if (!std::isfinite(value)) throw Error(ErrorKind::kInternal, fmt::format("no report: {} is not finite", key));
  out[key] = value;
}

void put_estimate(json::object& out, const std::string& key, const Estimate& e) {
  put_number(out, key, e.value);
  put_number(out, key + "_lo", e.lo);
  put_number(out, key + "_hi", e.hi);
}

std::string spread_text(int repeats) {
  return repeats >= kIntervalRepeats ? "median [95 % bootstrap interval over repeats]"
                                     : "median [least, most over repeats]";
}

void RowTimes::end_repeat() {
  CARPOOL_CHECK(!current_ms_.empty());
  repeat_ms_.push_back(median(current_ms_));
  current_ms_.clear();
}

Estimate paired_ratio(const std::vector<double>& first, const std::vector<double>& other) {
  CARPOOL_CHECK(first.size() == other.size());
  std::vector<double> ratios;
  for (size_t r = 0; r < first.size(); ++r) ratios.push_back(first[r] / other[r]);
  return median_with_interval(ratios);
}

Estimate paired_floor_share(double bytes, const std::vector<double>& read_gbps, const std::vector<double>& repeat_ms) {
  CARPOOL_CHECK(read_gbps.size() == repeat_ms.size());
  std::vector<double> shares;
  for (size_t r = 0; r < repeat_ms.size(); ++r) shares.push_back(bytes / (read_gbps[r] * 1e6) / repeat_ms[r]);
  return median_with_interval(shares);
}

Estimate median_with_extremes(const std::vector<double>& values) {
  if (values.empty()) return {};
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return {median(values), *least, *most};
}

BenchProbe::BenchProbe(size_t bytes) {
  if (bytes == 0) bytes = std::max(kProbeBytes, 4 * last_level_cache());
  require_memory(bytes, "the probe of the read bandwidth");
  buffer_ = LargeBuffer(bytes, HugePages::kAuto, "the probe of the read bandwidth");
  std::memset(buffer_.bytes().data(), 1, bytes);  // so that every page is really there, and not one page of zeros
}

double BenchProbe::pass(Ops& ops) {
  const std::span<const std::byte> bytes = buffer_.bytes();
  return static_cast<double>(bytes.size()) / ops.read_seconds(bytes) / 1e9;
}

double uniform_experts(int n_experts, int top_k, int rows) {
  return n_experts * (1 - std::pow(1 - static_cast<double>(top_k) / n_experts, rows));
}

bool routing_collapsed(double plain_experts, int n_experts, int top_k, int rows) {
  const double room = uniform_experts(n_experts, top_k, rows) - top_k;
  return room > 0 && (plain_experts - top_k) / room < kLeastSpread;
}

}  // namespace carpool
