// The grid of compare.h for people: tables for the terminal and one self-contained HTML page.
//
// Owns the tables (all cells, methods at equal expert counts), the Pareto charts and their page. Numbers are made in
// compare.h; the page's frame and style are in html.h.
#pragma once

#include <string>
#include <vector>

#include "measure/bench_report.h"
#include "measure/compare.h"

namespace carpool {

// Shares of what plain routing loads at which methods are set side by side, and how far a cell may be from them.
inline constexpr double kEqualShares[] = {0.25, 0.5, 0.75};
inline constexpr double kShareSlack = 0.08;

Table cells_table(const std::vector<CompareCell>& cells, int batch);
// Of each method the cell nearest to `share` of plain routing's experts; without rows when there is none.
Table equal_table(const std::vector<CompareCell>& cells, int batch, double share);
// The cells that no other cell of the batch beats both in KL and in experts, or in KL and in time: "experts", "time".
std::vector<std::string> fronts_of(const std::vector<CompareCell>& cells, const CompareCell& cell);

// Facts, tables and JSON rows.
BenchReport compare_report(const RunFacts& facts, const std::vector<CompareCell>& cells);
// No script, no external resource; all text escaped.
std::string compare_html(const RunFacts& facts, const std::vector<CompareCell>& cells);

}  // namespace carpool
