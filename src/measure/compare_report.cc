#include "measure/compare_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "measure/charts.h"
#include "measure/html.h"

namespace carpool {
namespace {

std::vector<int> batches_of(const std::vector<CompareCell>& cells) {
  std::vector<int> out;
  for (const CompareCell& cell : cells) {
    if (std::find(out.begin(), out.end(), cell.batch) == out.end()) out.push_back(cell.batch);
  }
  return out;
}

std::vector<std::string> methods_of(const std::vector<CompareCell>& cells) {
  std::vector<std::string> out;
  for (const CompareCell& cell : cells) {
    if (std::find(out.begin(), out.end(), cell.method()) == out.end()) out.push_back(cell.method());
  }
  return out;
}

// The cells of one batch size in one plane: KL against experts, or against time.
struct Plane {
  std::vector<const CompareCell*> cells;
  std::vector<size_t> front;

  Plane(const std::vector<CompareCell>& all, int batch, bool time) {
    std::vector<std::pair<double, double>> points;
    for (const CompareCell& cell : all) {
      if (cell.batch != batch) continue;
      cells.push_back(&cell);
      points.emplace_back(time ? cell.time_ratio.value : cell.distinct, cell.kl_mean.value);
    }
    front = pareto_front(points);
  }
  bool has(const CompareCell& cell) const {
    return std::any_of(front.begin(), front.end(), [&](size_t i) { return cells[i]->policy == cell.policy; });
  }
};

std::vector<std::string> row_of(const CompareCell& cell) {
  return {cell.policy,
          number_text(cell.distinct, 2),
          percent_text(cell.share()),
          estimate_text(cell.step_ms, decimals_for(cell.step_ms.value)),
          estimate_text(cell.time_ratio, 3),
          estimate_text(cell.kl_mean, 5),
          number_text(cell.kl_median, 5),
          number_text(cell.kl_p99, 4),
          estimate_text(cell.cross_entropy_delta, 4, true),
          percent_text(cell.top1_agreement.value, 2)};
}

const std::vector<std::string> kColumns = {"policy", "experts", "of plain", "step ms",       "of topk's time",
                                           "KL",     "median",  "99 %",     "cross-entropy", "top-1"};

std::string legend(const std::vector<std::string>& methods) {
  std::string out = "<p class=\"soft\">";
  for (size_t m = 0; m < methods.size(); ++m) {
    out += fmt::format("<span style=\"color:{}\">&#9679;</span> {} &#160; ", series_color(static_cast<int>(m)),
                       escape_html(methods[m]));
  }
  return out + "</p>\n";
}

FrontChart chart_of(const std::vector<CompareCell>& cells, int batch, bool time,
                    const std::vector<std::string>& methods) {
  const Plane plane(cells, batch, time);
  FrontChart chart{.id = fmt::format("{}-{}", time ? "time" : "experts", batch),
                   .title = fmt::format("Batch {}: KL against {}", batch, time ? "measured step time" : "experts"),
                   .description =
                       "One point per policy and setting, with its 95 % interval of KL over documents; the "
                       "line joins those that no other beats in both.",
                   .x_axis = time ? "step time, as a share of topk's" : "distinct experts per MoE layer and step",
                   .y_axis = fmt::format("batch {}: KL to topk, nats per token", batch),
                   .points = {},
                   .front = plane.front};
  for (const CompareCell* cell : plane.cells) {
    const auto color = std::find(methods.begin(), methods.end(), cell->method()) - methods.begin();
    chart.points.push_back(
        {cell->policy, time ? cell->time_ratio.value : cell->distinct, cell->kl_mean, static_cast<int>(color)});
  }
  return chart;
}

std::string section(const std::string& title, const std::string& text, const std::string& body) {
  return fmt::format("<section>\n<h2>{}</h2>\n<p class=\"soft\">{}</p>\n{}</section>\n", escape_html(title),
                     escape_html(text), body);
}

}  // namespace

std::vector<std::string> fronts_of(const std::vector<CompareCell>& cells, const CompareCell& cell) {
  std::vector<std::string> out;
  if (Plane(cells, cell.batch, false).has(cell)) out.emplace_back("experts");
  if (Plane(cells, cell.batch, true).has(cell)) out.emplace_back("time");
  return out;
}

Table cells_table(const std::vector<CompareCell>& cells, int batch) {
  Table table{
      fmt::format("Batch {}: all cells; front = no other cell is better both in KL and in experts, or time", batch),
      kColumns,
      {},
      1,
      true};
  table.columns.emplace_back("front");
  for (const CompareCell& cell : cells) {
    if (cell.batch != batch) continue;
    table.rows.push_back(row_of(cell));
    table.rows.back().push_back(fmt::format("{}", fmt::join(fronts_of(cells, cell), ", ")));
  }
  return table;
}

Table equal_table(const std::vector<CompareCell>& cells, int batch, double share) {
  Table table{fmt::format("Batch {}: methods at about {:.0f} % of plain routing's experts; KL at exactly that, where a "
                          "method has cells on both sides",
                          batch, 100 * share),
              kColumns,
              {}};
  table.columns.insert(table.columns.begin() + 1, fmt::format("KL at {:.0f} %", 100 * share));
  struct Row {
    const CompareCell* cell;
    std::optional<double> kl;
  };
  std::vector<Row> rows;
  for (const CompareCell* cell : cells_near(cells, batch, share, kShareSlack))
    rows.push_back({cell, kl_at_share(cells, batch, cell->method(), share)});
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return a.kl.value_or(a.cell->kl_mean.value) < b.kl.value_or(b.cell->kl_mean.value);
  });
  for (const Row& row : rows) {
    table.rows.push_back(row_of(*row.cell));
    table.rows.back().insert(table.rows.back().begin() + 1, row.kl ? number_text(*row.kl, 5) : "-");
  }
  return table;
}

BenchReport compare_report(const RunFacts& facts, const std::vector<CompareCell>& cells) {
  BenchReport report;
  report.facts = facts;
  for (const int batch : batches_of(cells)) report.tables.push_back(cells_table(cells, batch));
  for (const int batch : batches_of(cells)) {
    for (const double share : kEqualShares) report.tables.push_back(equal_table(cells, batch, share));
  }
  for (const CompareCell& cell : cells) {
    json::object row = cell_json(cell, {});
    row.erase("key");
    for (const char* long_list : {"blocks", "document_kl", "document_delta"}) row.erase(long_list);
    json::array fronts;
    for (const std::string& front : fronts_of(cells, cell)) fronts.emplace_back(front);
    row["front"] = std::move(fronts);
    report.results.push_back(std::move(row));
  }
  report.notes.emplace_back(
      "Step times are of decode steps at full batch; a policy's steps alternate with topk's on the same tokens, and of "
      "topk's time is the median over blocks of 16 steps with its 95 % interval. Quality intervals are over "
      "documents.");
  return report;
}

std::string compare_html(const RunFacts& facts, const std::vector<CompareCell>& cells) {
  const std::vector<std::string> methods = methods_of(cells);
  std::string body = html_facts(facts), charts, equal, all;
  for (const int batch : batches_of(cells)) {
    charts += "<div class=\"pair\">" + svg(chart_of(cells, batch, false, methods)) +
              svg(chart_of(cells, batch, true, methods)) + "</div>\n";
    for (const double share : kEqualShares) {
      const Table table = equal_table(cells, batch, share);
      if (!table.rows.empty()) equal += html_table(table);
    }
    all += html_table(cells_table(cells, batch));
  }
  body += section("Fronts of quality against experts and against time",
                  "Lower left is better: fewer experts or less time, less divergence from plain routing. topk, whose "
                  "KL is 0, stands on the lower end of the axis.",
                  legend(methods) + "<figure>" + charts + "</figure>");
  if (!equal.empty()) {
    body += section("Methods at equal numbers of experts",
                    "Of each method the setting whose experts are nearest to the share, if within 8 points of it, and "
                    "its KL at exactly the share, by a straight line of log KL between its neighbours.",
                    equal);
  }
  body += section("All cells", "Intervals are 95 %: of quality over documents, of time over blocks of 16 steps.", all);
  return html_page(facts, "Routing policies side by side", body);
}

}  // namespace carpool
