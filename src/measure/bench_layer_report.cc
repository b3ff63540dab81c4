// Tables, JSON rows and sentences of layer benches. See bench_layer.h.
#include <fmt/format.h>

#include <set>

#include "measure/bench_layer.h"

namespace carpool {
namespace {

constexpr double kMega = 1e6;

std::string ms_text(const Estimate& e) { return estimate_text(e, decimals_for(e.value)); }

Table policy_table(const std::vector<LayerRow>& rows, int repeats) {
  Table table{
      "One MoE layer: " + spread_text(repeats) + "; step = router + policy + experts; floor = MB at the probe's speed",
      {"policy", "B", "step ms", "of first", "router ms", "policy ms", "experts ms", "experts", "plain", "uniform",
       "rows/expert", "MB/step", "experts GB/s", "probe GB/s", "of floor"},
      {}};
  for (const LayerRow& row : rows) {
    table.rows.push_back(
        {row.policy, std::to_string(row.batch), ms_text(row.step_ms), estimate_text(row.ratio, 3),
         number_text(row.router_ms.value, 3), number_text(row.policy_ms.value, 3), ms_text(row.experts_ms),
         number_text(row.distinct, 2), number_text(row.plain, 2), row.uniform > 0 ? number_text(row.uniform, 2) : "-",
         number_text(row.rows_per_expert, 2), number_text((row.expert_bytes + row.router_bytes) / kMega, 1),
         number_text(row.experts_gbps(), 2), number_text(row.read_gbps.value, 1), percent_text(row.floor_share.value)});
  }
  return table;
}

// The row with as many experts and one row each.
const LayerRow* single(const std::vector<LayerRow>& rows, double experts) {
  for (const LayerRow& row : rows) {
    if (row.distinct == experts && row.rows_per_expert == 1) return &row;
  }
  return nullptr;
}

// Extra ms of a row beyond an expert's first, in new experts of `cost`; "-" where there is nothing to compare with.
std::string extra_row_text(const std::vector<LayerRow>& rows, const LayerRow& row, const std::optional<RowCost>& cost) {
  const LayerRow* one = single(rows, row.distinct);
  if (!one || row.rows_per_expert == 1 || !cost || !(cost->expert > 0)) return "-";
  const double extra = (row.experts_ms.value - one->experts_ms.value) / (row.distinct * (row.rows_per_expert - 1));
  return number_text(extra / cost->expert, 3);
}

Table forced_table(const std::vector<LayerRow>& rows, const std::optional<RowCost>& cost, int repeats) {
  Table table{
      "Experts of one layer, routing by hand: " + spread_text(repeats) + "; extra row = its time in new experts",
      {"experts", "rows each", "tokens", "experts ms", "ms/expert", "extra row", "MB/step", "GB/s", "probe GB/s",
       "of floor"},
      {},
      0};
  for (const LayerRow& row : rows) {
    table.rows.push_back({number_text(row.distinct, 0), number_text(row.rows_per_expert, 0), std::to_string(row.batch),
                          ms_text(row.experts_ms), number_text(row.experts_ms.value / row.distinct, 4),
                          extra_row_text(rows, row, cost), number_text(row.expert_bytes / kMega, 1),
                          number_text(row.experts_gbps(), 2), number_text(row.read_gbps.value, 1),
                          percent_text(row.floor_share.value)});
  }
  return table;
}

json::object row_json(const LayerRow& row) {
  const bool forced = row.policy == "forced";
  json::object out;
  out["policy"] = row.policy;
  out["batch"] = row.batch;
  put_estimate(out, "step_ms", row.step_ms);
  if (!forced) {
    put_estimate(out, "step_ratio", row.ratio);
    put_estimate(out, "router_ms", row.router_ms);
    put_estimate(out, "policy_ms", row.policy_ms);
  }
  put_estimate(out, "experts_ms", row.experts_ms);
  if (forced) {
    put_number(out, "distinct_experts", row.distinct);
  } else {
    for (const auto& entry : routing_json(row.routing)) out[entry.key()] = entry.value();
  }
  if (row.uniform > 0) put_number(out, "uniform_experts", row.uniform);
  put_number(out, "rows_per_expert", row.rows_per_expert);
  put_number(out, "bytes_per_step", row.expert_bytes + row.router_bytes);
  put_number(out, "gbps", row.experts_gbps());
  put_estimate(out, "read_gbps", row.read_gbps);
  put_estimate(out, "floor_share", row.floor_share);
  return out;
}

void report_cost(const std::optional<RowCost>& cost, BenchReport& report) {
  if (!cost) {
    report.notes.push_back(
        "No fit of ms = fixed + expert * U + row * U * (R - 1): it needs at least two numbers of experts U and two of "
        "rows R, for example forced:8x1,8x2,8x4,8x8,16x1.");
    return;
  }
  json::object fit;
  put_number(fit, "fixed_ms", cost->fixed);
  put_number(fit, "expert_ms", cost->expert);
  put_number(fit, "row_ms", cost->row);
  put_number(fit, "relative_error", cost->relative_error);
  fit["points"] = cost->points;
  report.summary["row_cost"] = std::move(fit);
  report.notes.push_back(fmt::format(
      "Fit over {} points (error {}): ms = {} + {} * U + {} * U * (R - 1). An extra row on a loaded expert costs {} of "
      "a "
      "new expert.",
      cost->points, percent_text(cost->relative_error), number_text(cost->fixed, 4), number_text(cost->expert, 4),
      number_text(cost->row, 4), cost->expert > 0 ? percent_text(cost->row / cost->expert) : "-"));
}

}  // namespace

void report_layer(const std::vector<LayerRow>& rows, const LayerOptions& options, BenchReport& report) {
  for (const LayerRow& row : rows) report.results.push_back(row_json(row));
  if (!options.routing.forced.empty()) {
    std::vector<CostPoint> points;
    for (const LayerRow& row : rows) {
      points.push_back({static_cast<int>(row.distinct), static_cast<int>(row.rows_per_expert), row.experts_ms.value});
    }
    const std::optional<RowCost> cost = fit_row_cost(points);
    report.tables = {forced_table(rows, cost, options.repeats)};
    report_cost(cost, report);
    return;
  }
  report.tables = {policy_table(rows, options.repeats)};
  std::string lossy;
  std::set<std::string> seen;
  for (const LayerRow& row : rows) {
    if (row.routing.rerouted_tokens > 0 && seen.insert(row.policy).second) {
      lossy += (lossy.empty() ? "" : ", ") + row.policy;
    }
  }
  if (!lossy.empty()) {
    report.notes.push_back(fmt::format(
        "quality: {} changed the layer's own choice of experts. Random weights have no quality to lose: nothing here "
        "says what that costs a real model.",
        lossy));
  }
}

}  // namespace carpool
