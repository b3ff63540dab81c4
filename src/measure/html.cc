// The page around the charts; see html.h.
#include "measure/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "measure/charts.h"

namespace carpool {
namespace {

constexpr const char* kStyle = R"css(
:root { color-scheme: light dark; --page: #fbfbfa; --card: #ffffff; --ink: #1d2329; --soft: #5b6570; --line: #dfe3e7;
  --grid: #e9ecef; --s0: #2f6db5; --s1: #d2691e; --s2: #2b8a5b; --s3: #8550b0; --s4: #a37b12; --s5: #bf3f75;
  --s6: #1f8f9e; --s7: #6d757d; --s8: #7a9a1c; --s9: #b0503a; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171a; --card: #1c2024; --ink: #e7eaed; --soft: #9da7b1; --line: #33393f; --grid: #2b3036;
    --s0: #6aa5ea; --s1: #f0955a; --s2: #5cc08f; --s3: #ba8fe0; --s4: #d4ad4a; --s5: #ea7dab; --s6: #5cc3d1;
    --s7: #a3abb3; --s8: #a8cb4a; --s9: #e88a72; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", Roboto,
  "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 0 0 4px; }
p { margin: 6px 0; max-width: 78ch; }
.soft, figcaption, footer { color: var(--soft); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 18px 20px;
  margin: 18px 0; }
.found { border-left: 4px solid var(--s0); }
.found p { font-size: 16px; max-width: none; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; margin: 10px 0 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
code { font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
figure { margin: 14px 0 0; overflow-x: auto; }
.pair { display: flex; flex-wrap: wrap; gap: 8px 24px; }
.chart { max-width: 100%; height: auto; display: block; }
.chart text { font: 12px system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: var(--ink); }
.chart .tick { fill: var(--soft); font-size: 11px; }
.chart .group { font-weight: 600; }
.chart path { fill: none; stroke-width: 1.5; }
.chart .grid { stroke: var(--grid); stroke-width: 1; }
.chart .axis { stroke: var(--soft); stroke-width: 1; }
.chart .whisker, .chart .reference { stroke: var(--ink); }
.chart .reference { stroke-width: 2.5; }
.chart .dot { stroke: var(--card); stroke-width: 1.5; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 12.5px; margin: 8px 0; }
caption { text-align: left; color: var(--soft); padding: 4px 0; }
th, td { padding: 4px 10px 4px 0; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
.left { text-align: left; }
details { margin-top: 10px; }
summary { cursor: pointer; color: var(--soft); }
@media print { body { background: none; } section { break-inside: avoid; } }
)css";

}  // namespace

std::string html_table(const Table& table) {
  std::string out =
      fmt::format("<div class=\"wide\"><table>\n<caption>{}</caption>\n<thead><tr>", escape_html(table.title));
  const size_t n = table.columns.size();
  const auto side = [&](size_t c) {
    return c < table.left_columns || (table.left_last && c + 1 == n) ? " class=\"left\"" : "";
  };
  for (size_t c = 0; c < n; ++c)
    out += fmt::format("<th scope=\"col\"{}>{}</th>", side(c), escape_html(table.columns[c]));
  out += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    out += "<tr>";
    for (size_t c = 0; c < n; ++c) {
      out += c == 0 ? fmt::format("<th scope=\"row\" class=\"left\">{}</th>", escape_html(row[c]))
                    : fmt::format("<td{}>{}</td>", side(c), escape_html(row[c]));
    }
    out += "</tr>\n";
  }
  return out + "</tbody>\n</table></div>\n";
}

std::string html_facts(const RunFacts& facts) {
  std::string out = "<section>\n<h2>The run</h2>\n<dl>\n";
  for (const auto& [key, value] : fact_lines(facts)) {
    const char* tag = key == "command" ? "code" : "span";
    out += fmt::format("<dt>{}</dt><dd><{}>{}</{}></dd>\n", escape_html(key), tag, escape_html(value), tag);
  }
  return out + "</dl>\n</section>\n";
}

std::string html_page(const RunFacts& facts, const std::string& heading, const std::string& body) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<title>carpool: {0}</title>\n<style>{1}</style>\n</head>\n<body>\n<main>\n<h1>{4}</h1>\n"
      "<p class=\"soft\">{0}</p>\n{2}<footer><p>Made by carpool {3}. MB and GB are powers of ten. Distinct experts "
      "are means per MoE layer and step over all rows that are not padding.</p></footer>\n</main>\n</body>\n</html>\n",
      escape_html(facts.model), kStyle, body, escape_html(facts.commit), escape_html(heading));
}

namespace {

// Decode rows are what charts show; a policy keeps its colour in all of them.
struct Series {
  std::vector<const ResultRow*> rows;
  std::vector<std::string> policies;
  std::vector<int> batches;

  explicit Series(const Report& report) {
    const auto once = [](auto& list, const auto& value) {
      if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
    };
    for (const ResultRow& row : report.rows) {
      if (row.steps != "decode") continue;
      once(policies, row.policy);
      once(batches, row.batch);
    }
    for (const int batch : batches) {
      for (const ResultRow& row : report.rows) {
        if (row.steps == "decode" && row.batch == batch) rows.push_back(&row);
      }
    }
  }
  int color(const std::string& policy) const {
    return static_cast<int>(std::find(policies.begin(), policies.end(), policy) - policies.begin());
  }
  Bar bar(const ResultRow& row, double value, std::string text) const {
    Bar bar;
    bar.group = fmt::format("batch {}", row.batch);
    bar.label = row.policy;
    bar.value = value;
    bar.value_text = std::move(text);
    bar.color = color(row.policy);
    return bar;
  }
};

// A section with one or more charts and their numbers.
std::string chart_section(const std::string& title, const std::string& text, const std::string& charts,
                          const Table& numbers) {
  return fmt::format(
      "<section>\n<h2>{}</h2>\n<p class=\"soft\">{}</p>\n<figure>{}</figure>\n<details><summary>Numbers of this "
      "chart</summary>{}</details>\n</section>\n",
      escape_html(title), escape_html(text), charts, html_table(numbers));
}

std::string experts_section(const Series& series) {
  BarChart chart{.id = "experts",
                 .title = "Distinct experts per MoE layer and step",
                 .description =
                     "One bar per policy and batch: experts loaded. The tick is what plain routing of the "
                     "same rows would have loaded.",
                 .axis = "distinct experts per layer",
                 .reference_name = "plain routing of the same rows",
                 .axis_max = 0,
                 .bars = {}};
  Table numbers{chart.title, {"policy", "batch", "experts", "plain", "change"}, {}};
  for (const ResultRow* row : series.rows) {
    const std::string experts = number_text(row->distinct_experts, 2),
                      plain = number_text(row->distinct_experts_plain, 2);
    Bar bar = series.bar(*row, row->distinct_experts, experts == plain ? experts : experts + ", plain " + plain);
    bar.reference = row->distinct_experts_plain;
    chart.bars.push_back(bar);
    numbers.rows.push_back({row->policy, std::to_string(row->batch), experts, plain,
                            percent_text(row->distinct_experts / row->distinct_experts_plain - 1)});
  }
  return chart_section("What the batch loads", chart.description, svg(chart), numbers);
}

std::string time_section(const Series& series) {
  BarChart chart{.id = "time",
                 .title = "Decode step time",
                 .description = std::string("Median over repeats of the median step") +
                                (std::any_of(series.rows.begin(), series.rows.end(),
                                             [](const ResultRow* row) { return has_interval(*row); })
                                     ? "; whiskers are the 95 % bootstrap interval over repeats."
                                     : "."),
                 .axis = "milliseconds per step",
                 .reference_name = "",
                 .axis_max = 0,
                 .bars = {}};
  Table numbers{chart.title, {"policy", "batch", "step ms", "tok/s", "speedup"}, {}};
  for (const ResultRow* row : series.rows) {
    const std::string text = repeated_text(*row, row->step_ms, decimals_for(row->step_ms.value));
    Bar bar = series.bar(*row, row->step_ms.value, number_text(row->step_ms.value, decimals_for(row->step_ms.value)));
    if (has_interval(*row)) bar.interval = row->step_ms;
    chart.bars.push_back(bar);
    numbers.rows.push_back({row->policy, std::to_string(row->batch), text,
                            repeated_text(*row, row->tokens_per_second, decimals_for(row->tokens_per_second.value)),
                            row->speedup ? repeated_text(*row, *row->speedup, 3) : "-"});
  }
  return chart_section("What a step takes", chart.description, svg(chart), numbers);
}

std::string quality_section(const Series& series) {
  const std::string text =
      "Cross-entropy against plain routing on the same fixed text, batched as decode; bars are the 95 % interval over "
      "documents. Lower left is better: fewer experts, no cost.";
  Table numbers{"Quality cost and experts", {"policy", "batch", "experts", "delta (nats/token)", "KL", "top-1"}, {}};
  std::string charts = "<div class=\"pair\">";
  for (const int batch : series.batches) {
    ScatterChart chart{.id = fmt::format("quality-{}", batch),
                       .title = fmt::format("Quality cost against experts, batch {}", batch),
                       .description = text,
                       .x_axis = "distinct experts per layer",
                       .y_axis = fmt::format("batch {}: cross-entropy change, nats per token", batch),
                       .points = {}};
    for (const ResultRow* row : series.rows) {
      if (row->batch != batch || !row->quality) continue;
      const Quality& q = *row->quality;
      chart.points.push_back({row->policy, row->distinct_experts, q.cross_entropy_delta, series.color(row->policy)});
      numbers.rows.push_back({row->policy, std::to_string(batch), number_text(row->distinct_experts, 2),
                              estimate_text(q.cross_entropy_delta, 4, true), number_text(q.kl_mean, 5),
                              percent_text(q.top1_agreement, 2)});
    }
    if (!chart.points.empty()) charts += svg(chart);
  }
  if (numbers.rows.empty()) return "";
  return chart_section("What it costs", text, charts + "</div>", numbers);
}

std::string floor_section(const Series& series, const std::string& note) {
  BarChart chart{.id = "floor",
                 .title = "Share of the memory floor",
                 .description =
                     "The time that reading the step's bytes once would take at the bandwidth measured in "
                     "this run, as a share of the step's time. 100 % is as fast as memory allows. " +
                     note,
                 .axis = "percent of the measured read bandwidth",
                 .reference_name = "",
                 .axis_max = 100,
                 .bars = {}};
  Table numbers{chart.title, {"policy", "batch", "MB/step", "read GB/s", "of floor"}, {}};
  for (const ResultRow* row : series.rows) {
    chart.axis_max = std::max(chart.axis_max, std::isfinite(row->floor_share) ? 100 * row->floor_share : 0);
    chart.bars.push_back(series.bar(*row, 100 * row->floor_share, percent_text(row->floor_share)));
    numbers.rows.push_back({row->policy, std::to_string(row->batch), number_text(row->bytes_per_step / 1e6, 2),
                            number_text(row->read_gbps, 1), percent_text(row->floor_share)});
  }
  return chart_section("How close to the memory it runs", chart.description, svg(chart), numbers);
}

std::string findings_section(const Report& report) {
  std::string rest = findings(report), out;
  if (rest.empty()) return "";
  for (size_t at = 0; at <= rest.size();) {
    const size_t end = std::min(rest.find('\n', at), rest.size());
    out += fmt::format("<p>{}</p>\n", escape_html(rest.substr(at, end - at)));
    at = end + 1;
  }
  return fmt::format("<section class=\"found\">\n<h2>What was found</h2>\n{}</section>\n", out);
}

}  // namespace

std::string html_report(const Report& report) {
  require_quality(report);
  const Series series(report);
  std::string body = findings_section(report) + html_facts(report.facts);
  if (!series.rows.empty()) {
    body += experts_section(series) + time_section(series) + quality_section(series) +
            floor_section(series, floor_note(report));
  }
  body += "<section>\n<h2>All numbers</h2>\n";
  for (const Table& table : {speed_table(report), quality_table(report), routing_table(report), mixed_table(report)}) {
    if (!table.rows.empty()) body += html_table(table);
  }
  body += "</section>\n";
  return html_page(report.facts, "Routing policies compared", body);
}

}  // namespace carpool
