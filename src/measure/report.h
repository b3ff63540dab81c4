// Reports of measurements for people: text tables for the terminal, and the sentence that says what was found.
//
// Owns Table (made once, rendered as text here and as HTML in html.h), the spelling of numbers in reports. JSON is made
// in result.h. Prints nothing.
#pragma once

#include <string>
#include <vector>

#include "measure/result.h"

namespace carpool {

// Cells are finished text. The first `left_columns` columns and the last one, when `left_last`, are words (left
// aligned), the others numbers.
struct Table {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
  size_t left_columns = 1;
  bool left_last = false;
};

// Fixed-point text; "-" for what is not finite.
std::string number_text(double value, int decimals);
// "12.34 [12.01, 12.60]". `sign` puts a plus before positive numbers.
std::string estimate_text(const Estimate& e, int decimals, bool sign = false);
// True when the row's repeats are enough for an interval.
bool has_interval(const ResultRow& row);
// A quantity measured once per repeat of `row`: with its interval where there is one.
std::string repeated_text(const ResultRow& row, const Estimate& e, int decimals);
// 0.876 -> "87.6 %".
std::string percent_text(double share, int decimals = 1);
// Decimals that leave about four digits of a positive number: 3 below 10, 2 below 100, 1 below 1000, else 0.
int decimals_for(double value);
// `text` with control characters made visible as '?', so that a terminal does not obey them.
std::string printable(std::string text);

// Command, commit, machine, model and settings, in order.
std::vector<std::pair<std::string, std::string>> fact_lines(const RunFacts& facts);

// Decode-only steps at full batch, one row per (policy, batch).
Table speed_table(const Report& report);
Table quality_table(const Report& report);
Table routing_table(const Report& report);
// Steps that also held prompt rows; without rows when there were none.
Table mixed_table(const Report& report);

// What the numbers say, one sentence (and line) per batch and policy other than the first when that ran plain: experts,
// step time, quality, and whether the intervals leave room for "no change".
std::string findings(const Report& report);

// What the shares of the floor cannot tell: the part of the bytes that fits into the last-level cache, and why a share
// is above 100 %. Empty where neither holds.
std::string floor_note(const Report& report);

std::string to_text(const Table& table);
// Facts, tables and findings.
std::string text_table(const Report& report);

}  // namespace carpool
