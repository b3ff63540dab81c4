// One self-contained HTML file from a report: facts, findings, charts and every number.
//
// Owns the page and its style. No script, no external resource; light and dark follow the reader's system; the charts
// (charts.h) have titles, descriptions and their numbers as tables. All text is escaped. Read next: report.h.
#pragma once

#include <string>

#include "measure/report.h"

namespace carpool {

// The parts that pages share: a table, the section of facts, and the page around `body`, which is HTML; all else is
// text.
std::string html_table(const Table& table);
std::string html_facts(const RunFacts& facts);
std::string html_page(const RunFacts& facts, const std::string& heading, const std::string& body);

// Refuses a report as text_table does (report.h).
std::string html_report(const Report& report);

}  // namespace carpool
