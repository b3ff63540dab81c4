// Tables and sentences from rows; see report.h.
#include "measure/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace carpool {
namespace {

constexpr double kMega = 1e6;

bool is_decode(const ResultRow& row) { return row.steps == "decode"; }

// (row, layer) pairs counted, whatever the policy did with them.
int64_t counted_tokens(const RoutingCounters& routing) {
  return std::accumulate(routing.plain_rows.begin(), routing.plain_rows.end(), int64_t{0});
}

std::string share_text(int64_t part, int64_t whole) {
  return whole > 0 ? percent_text(static_cast<double>(part) / static_cast<double>(whole)) : "-";
}

// The row that the speedups of `batch` refer to.
const ResultRow* first_row(const Report& report, int batch) {
  for (const ResultRow& row : report.rows) {
    if (is_decode(row) && row.batch == batch) return &row;
  }
  return nullptr;
}

std::vector<int> batches(const Report& report) {
  std::vector<int> out;
  for (const ResultRow& row : report.rows) {
    if (is_decode(row) && std::find(out.begin(), out.end(), row.batch) == out.end()) out.push_back(row.batch);
  }
  return out;
}

std::string experts_phrase(const ResultRow& row) {
  if (!(row.distinct_experts_plain > 0)) return "loads no experts that were counted";
  const double less = 1 - row.distinct_experts / row.distinct_experts_plain;
  const std::string numbers = fmt::format("({} instead of {} per layer)", number_text(row.distinct_experts, 1),
                                          number_text(row.distinct_experts_plain, 1));
  if (std::abs(less) < 0.0005) return "loads as many experts as plain routing " + numbers;
  return fmt::format("loads {} {} experts than plain routing {}", percent_text(std::abs(less)),
                     less > 0 ? "fewer" : "more", numbers);
}

std::string time_phrase(const ResultRow& row, const ResultRow& first) {
  if (!row.speedup || !(row.speedup->lo > 0)) return "";
  const Estimate ratio{1 / row.speedup->value, 1 / row.speedup->hi, 1 / row.speedup->lo};
  std::string out = fmt::format(", a step takes {}x {}'s time", number_text(ratio.value, 2), printable(first.policy));
  if (!has_interval(row))
    return out + fmt::format(" (no interval from {} {})", row.repeats, row.repeats == 1 ? "repeat" : "repeats");
  out += fmt::format(" [{}, {}]", number_text(ratio.lo, 2), number_text(ratio.hi, 2));
  if (ratio.lo <= 1 && ratio.hi >= 1) out += ", which includes no change";
  return out;
}

std::string quality_phrase(const ResultRow& row) {
  if (!row.quality) return "";
  const Estimate& delta = row.quality->cross_entropy_delta;
  std::string out =
      fmt::format(" and it {} {} nats per token", delta.value >= 0 ? "costs" : "gains", estimate_text(delta, 4, true));
  if (delta.lo <= 0 && delta.hi >= 0) out += ", which includes no cost";
  return out;
}

std::string row_finding(const ResultRow& row, const ResultRow& first) {
  std::string out = printable(row.policy) + " ";
  if (ran_plain(row)) {
    out += "changed nothing, all rows ran plain routing";
    const std::string reasons = plain_reasons_text(row.routing);
    if (reasons != "none") out += fmt::format(" ({})", reasons);
  } else {
    out += experts_phrase(row);
  }
  if (&row != &first) out += time_phrase(row, first);
  return ran_plain(row) ? out : out + quality_phrase(row);
}

}  // namespace

bool has_interval(const ResultRow& row) { return row.repeats >= kIntervalRepeats; }

std::string repeated_text(const ResultRow& row, const Estimate& e, int decimals) {
  return has_interval(row) ? estimate_text(e, decimals) : number_text(e.value, decimals);
}

std::string number_text(double value, int decimals) {
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, decimals) : "-";
}

std::string estimate_text(const Estimate& e, int decimals, bool sign) {
  if (!std::isfinite(e.value)) return "-";
  return sign ? fmt::format("{:+.{}f} [{:+.{}f}, {:+.{}f}]", e.value, decimals, e.lo, decimals, e.hi, decimals)
              : fmt::format("{:.{}f} [{:.{}f}, {:.{}f}]", e.value, decimals, e.lo, decimals, e.hi, decimals);
}

std::string percent_text(double share, int decimals) {
  return std::isfinite(share) ? fmt::format("{:.{}f} %", 100 * share, decimals) : "-";
}

int decimals_for(double value) {
  const double size = std::abs(value);
  return size < 10 ? 3 : size < 100 ? 2 : size < 1000 ? 1 : 0;
}

std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> fact_lines(const RunFacts& facts) {
  std::vector<std::pair<std::string, std::string>> lines = {
      {"command", facts.command}, {"commit", facts.commit}, {"machine", facts.machine}, {"model", facts.model}};
  lines.insert(lines.end(), facts.settings.begin(), facts.settings.end());
  return lines;
}

Table speed_table(const Report& report) {
  Table table{
      std::string("Speed, decode steps at full batch: median ") +
          (std::any_of(report.rows.begin(), report.rows.end(), has_interval) ? "[95 % bootstrap interval over repeats]"
                                                                             : "over repeats"),
      {"policy", "batch", "tok/s", "step ms", "speedup", "experts", "plain", "MB/step", "read GB/s", "of floor"},
      {}};
  for (const ResultRow& row : report.rows) {
    if (!is_decode(row)) continue;
    table.rows.push_back({row.policy, std::to_string(row.batch),
                          repeated_text(row, row.tokens_per_second, decimals_for(row.tokens_per_second.value)),
                          repeated_text(row, row.step_ms, decimals_for(row.step_ms.value)),
                          row.speedup ? repeated_text(row, *row.speedup, 3) : "-", number_text(row.distinct_experts, 2),
                          number_text(row.distinct_experts_plain, 2), number_text(row.bytes_per_step / kMega, 2),
                          number_text(row.read_gbps, 1), percent_text(row.floor_share)});
  }
  return table;
}

Table quality_table(const Report& report) {
  Table table{
      "Quality, teacher-forced on fixed text, against topk: mean [95 % interval over documents]",
      {"policy", "batch", "cross-entropy", "delta (nats/token)", "KL", "top-1 agreement", "tokens", "documents"},
      {}};
  for (const ResultRow& row : report.rows) {
    if (!is_decode(row) || !row.quality) continue;
    const Quality& q = *row.quality;
    table.rows.push_back({row.policy, std::to_string(row.batch), number_text(q.cross_entropy, 4),
                          estimate_text(q.cross_entropy_delta, 4, true), number_text(q.kl_mean, 5),
                          percent_text(q.top1_agreement, 2), std::to_string(q.tokens), std::to_string(q.documents)});
  }
  return table;
}

Table routing_table(const Report& report) {
  Table table{"Routing that ran: shares of (token, layer) pairs; steps left plain are (step, layer, group) by reason",
              {"policy", "batch", "repeats", "steps", "rerouted", "underfilled", "left plain"},
              {},
              1,
              true};
  for (const ResultRow& row : report.rows) {
    if (!is_decode(row)) continue;
    const int64_t tokens = counted_tokens(row.routing);
    table.rows.push_back({row.policy, std::to_string(row.batch), std::to_string(row.repeats),
                          std::to_string(row.steps_measured), share_text(row.routing.rerouted_tokens, tokens),
                          share_text(row.routing.underfilled_tokens, tokens), plain_reasons_text(row.routing)});
  }
  return table;
}

Table mixed_table(const Report& report) {
  Table table{"Steps that also held prompt rows (no speed claim: their sizes differ)",
              {"policy", "batch", "steps", "step ms", "experts", "plain", "rerouted", "left plain"},
              {},
              1,
              true};
  for (const ResultRow& row : report.rows) {
    if (is_decode(row) || row.steps_measured == 0) continue;
    table.rows.push_back({row.policy, std::to_string(row.batch), std::to_string(row.steps_measured),
                          repeated_text(row, row.step_ms, decimals_for(row.step_ms.value)),
                          number_text(row.distinct_experts, 2), number_text(row.distinct_experts_plain, 2),
                          share_text(row.routing.rerouted_tokens, counted_tokens(row.routing)),
                          plain_reasons_text(row.routing)});
  }
  return table;
}

std::string findings(const Report& report) {
  std::string out;
  for (const int batch : batches(report)) {
    const ResultRow* first = first_row(report, batch);
    for (const ResultRow& row : report.rows) {
      if (!is_decode(row) || row.batch != batch || (&row == first && ran_plain(row))) continue;
      out += fmt::format("{}At batch {}, {}.", out.empty() ? "" : "\n", batch, row_finding(row, *first));
    }
  }
  return out;
}

std::string floor_note(const Report& report) {
  std::string out;
  const auto decode = std::find_if(report.rows.begin(), report.rows.end(), is_decode);
  if (decode != report.rows.end() && decode->dense_bytes_per_step > 0 &&
      decode->dense_bytes_per_step < static_cast<double>(report.cache_bytes)) {
    out = fmt::format(
        "The floor counts bytes that memory need not deliver: {} of {} MB per step ({} at batch {}) are dense weights, "
        "keys and values that stay in the last-level cache of {} MB.",
        number_text(decode->dense_bytes_per_step / kMega, 2), number_text(decode->bytes_per_step / kMega, 2),
        printable(decode->policy), decode->batch, number_text(static_cast<double>(report.cache_bytes) / kMega, 1));
  }
  const auto above = [](const ResultRow& row) { return is_decode(row) && row.floor_share > 1; };
  if (std::any_of(report.rows.begin(), report.rows.end(), above)) {
    out += out.empty() ? "" : " ";
    out += "Above 100 % of the floor, a part of the step's bytes came from cache: memory was not the limit there.";
  }
  return out;
}

std::string to_text(const Table& table) {
  const size_t n = table.columns.size();
  std::vector<size_t> width(n);
  for (size_t c = 0; c < n; ++c) {
    width[c] = table.columns[c].size();
    for (const auto& row : table.rows) width[c] = std::max(width[c], row[c].size());
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string out;
    for (size_t c = 0; c < n; ++c) {
      const bool left = c < table.left_columns || (table.left_last && c + 1 == n);
      const std::string cell = printable(cells[c]);
      out += c == 0 ? "" : "  ";
      out += left ? fmt::format("{:<{}}", cell, width[c]) : fmt::format("{:>{}}", cell, width[c]);
    }
    return out.substr(0, out.find_last_not_of(' ') + 1) + "\n";
  };
  std::string out = table.title + "\n" + line(table.columns);
  for (const auto& row : table.rows) out += line(row);
  return out;
}

std::string text_table(const Report& report) {
  require_quality(report);
  const auto facts = fact_lines(report.facts);
  size_t width = 0;
  for (const auto& [key, value] : facts) width = std::max(width, key.size());
  std::string out;
  for (const auto& [key, value] : facts) out += fmt::format("{:<{}}  {}\n", printable(key), width, printable(value));
  for (const Table& table : {speed_table(report), quality_table(report), routing_table(report), mixed_table(report)}) {
    if (table.rows.empty()) continue;
    out += "\n";
    out += to_text(table);
  }
  for (const std::string& text : {floor_note(report), findings(report)}) {
    if (!text.empty()) out += fmt::format("\n{}\n", text);
  }
  return out;
}

}  // namespace carpool
