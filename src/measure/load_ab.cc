#include "measure/load_ab.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <numeric>
#include <set>

#include "base/error.h"
#include "measure/load_report.h"
#include "routing/policy.h"

namespace carpool {
namespace {

using Statistic = double (*)(const LoadMetrics&);

struct Measure {
  const char* column;  // of tables
  const char* key;     // of JSON
  Statistic value;     // of one run
};

constexpr Measure kMeasures[] = {
    {"tok/s", "tokens_per_second", [](const LoadMetrics& m) { return m.output_throughput; }},
    {"TTFT ms", "ttft_ms", [](const LoadMetrics& m) { return m.ttft_ms.median; }},
    {"TPOT ms", "tpot_ms", [](const LoadMetrics& m) { return m.tpot_ms.median; }},
    {"ITL ms", "itl_ms", [](const LoadMetrics& m) { return m.itl_ms.median; }},
    {"E2E ms", "e2e_latency_ms", [](const LoadMetrics& m) { return m.e2e_ms.median; }},
};

constexpr double kOtherWork =
    0.05;  // share of generated tokens by which arms may differ (end tokens, when not ignored)

[[noreturn]] void refuse(const std::string& sentence) { throw Error(ErrorKind::kUsage, sentence); }

template <class F>
std::vector<double> each(const std::vector<ArmRun>& runs, const F& value) {
  std::vector<double> out;
  for (const ArmRun& run : runs) out.push_back(value(run));
  return out;
}

std::vector<double> values(const std::vector<ArmRun>& runs, Statistic statistic) {
  return each(runs, [&](const ArmRun& run) { return statistic(run.metrics); });
}

// other / first, paired by repeat; nothing when a repeat has nothing to divide by.
std::optional<Estimate> ratio(const std::vector<double>& first, const std::vector<double>& other) {
  for (const double v : first) {
    if (!(v > 0)) return std::nullopt;
  }
  return first.empty() ? std::nullopt : std::optional(paired_ratio(other, first));
}

std::string estimate_of(const std::optional<Estimate>& e, int decimals) {
  return e ? estimate_text(*e, decimals) : "-";
}

// The server's counters of all repeats of an arm; nothing when one is missing.
std::optional<ServerCounters> total(const std::vector<ArmRun>& runs) {
  ServerCounters sum;
  for (const ArmRun& run : runs) {
    if (!run.counters) return std::nullopt;
    sum.decode.add(run.counters->decode);
    sum.mixed.add(run.counters->mixed);
    sum.decode_steps += run.counters->decode_steps;
    sum.mixed_steps += run.counters->mixed_steps;
    sum.decode_seconds += run.counters->decode_seconds;
    sum.generation_tokens += run.counters->generation_tokens;
  }
  return runs.empty() ? std::nullopt : std::optional(sum);
}

double step_ms(const ServerCounters& c) {
  return c.decode_steps > 0 ? c.decode_seconds / static_cast<double>(c.decode_steps) * 1e3 : 0;
}

// Of the server's own decode-only steps, one per repeat; empty without counters.
std::vector<double> step_times(const std::vector<ArmRun>& runs) {
  if (!total(runs)) return {};
  return each(runs, [](const ArmRun& run) { return step_ms(*run.counters); });
}

std::optional<Estimate> experts_ratio(const std::vector<ArmRun>& first, const std::vector<ArmRun>& other) {
  if (!total(first) || !total(other)) return std::nullopt;
  const auto loaded = [](const ArmRun& run) { return experts_per_layer(*run.counters).loaded; };
  return ratio(each(first, loaded), each(other, loaded));
}

int failed(const std::vector<ArmRun>& runs) {
  return std::accumulate(runs.begin(), runs.end(), 0, [](int n, const ArmRun& r) { return n + r.metrics.failed; });
}

int64_t output_tokens(const std::vector<ArmRun>& runs) {
  return std::accumulate(runs.begin(), runs.end(), int64_t{0},
                         [](int64_t n, const ArmRun& r) { return n + r.metrics.total_output; });
}

// The spec as the server would spell it, where this program knows the policy.
std::string canonical(const std::string& spec) {
  try {
    return make_policy(spec)->spec();
  } catch (const Error&) {
    return spec;
  }
}

std::optional<int> whole_number(std::string_view text) {
  int n = 0;
  const auto [stop, ec] = std::from_chars(text.data(), text.data() + text.size(), n);
  return ec == std::errc() ? std::optional(n) : std::nullopt;
}

// An argument of a policy: from the spec, else its default where that is a number.
std::optional<int> argument_of(const std::string& spec, const std::string& argument) {
  for (const char before : {':', ','}) {
    const std::string key = before + argument + "=";
    const size_t at = spec.find(key);
    if (at != std::string::npos) return whole_number(std::string_view(spec).substr(at + key.size()));
  }
  for (const PolicyInfo& policy : policy_list()) {
    if (policy.name != spec.substr(0, spec.find(':'))) continue;
    for (const ArgumentInfo& info : policy.arguments) {
      if (info.name == argument) return whole_number(info.fallback);
    }
  }
  return std::nullopt;
}

// "oea:k0=5; scope=tenant" -> "oea:k0=5".
std::string applied_spec(const std::string& header) { return header.substr(0, header.find(';')); }

// What else than `spec` a response said had applied; "" when nothing did.
std::string applied_otherwise(const std::string& spec, const std::vector<ArmRun>& runs) {
  for (const ArmRun& run : runs) {
    for (const auto& [header, n] : run.applied) {
      if (canonical(applied_spec(header)) != canonical(spec)) return header;
    }
  }
  return "";
}

void object_to_arm(const std::string& spec, const std::vector<ArmRun>& runs, std::vector<std::string>& out) {
  if (const int n = failed(runs); n > 0) out.push_back(fmt::format("{} requests of {} failed", n, spec));
  if (const std::string other = applied_otherwise(spec, runs); !other.empty()) {
    out.push_back(fmt::format("{} was asked for and {} applied, by the response headers", spec, printable(other)));
  }
  const std::optional<ServerCounters> counters = total(runs);
  if (!counters) {
    out.push_back(fmt::format("the server has no routing counters, so nothing proves that {} ran", spec));
  } else if (!plain_spec(spec) && counters->rerouted() == 0) {
    out.push_back(fmt::format("{} never re-routed a token, by the server's counters (left plain: {})", spec,
                              plain_reasons_text(counters->decode)));
  } else if (plain_spec(spec) && counters->rerouted() > 0) {
    out.push_back(fmt::format("{} tokens were re-routed while {} ran: other requests share the server",
                              counters->rerouted(), spec));
  }
}

Table speed_table(const ServeAbOptions& options, const std::vector<ServeAbLevel>& levels) {
  Table table{"Speed: per run the output throughput and the medians over requests; " + spread_text(options.repeats),
              {"policy", "concurrency", "requests"},
              {}};
  for (const Measure& m : kMeasures) table.columns.emplace_back(m.column);
  for (const ServeAbLevel& level : levels) {
    for (size_t a = 0; a < options.arms.size(); ++a) {
      const LoadMetrics& first = level.runs[a].front().metrics;
      std::vector<std::string> row = {options.arms[a], std::to_string(level.concurrency),
                                      std::to_string(first.completed + first.failed)};
      for (const Measure& m : kMeasures) {
        const Estimate e = median_with_interval(values(level.runs[a], m.value));
        row.push_back(estimate_text(e, std::min(decimals_for(e.value), 2)));
      }
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

Table ratio_table(const ServeAbOptions& options, const std::vector<ServeAbLevel>& levels, const MoeSizes& sizes) {
  Table table{fmt::format("Ratios to {}, paired by repeat; {}", options.arms[0], spread_text(options.repeats)),
              {"policy", "concurrency", "tok/s", "TTFT", "TPOT", "ITL", "E2E", "server step", "experts", "predicted"},
              {}};
  for (const ServeAbLevel& level : levels) {
    for (size_t a = 1; a < options.arms.size(); ++a) {
      std::vector<std::string> row = {options.arms[a], std::to_string(level.concurrency)};
      for (const Measure& m : kMeasures) {
        row.push_back(estimate_of(ratio(values(level.runs[0], m.value), values(level.runs[a], m.value)), 3));
      }
      row.push_back(estimate_of(ratio(step_times(level.runs[0]), step_times(level.runs[a])), 3));
      row.push_back(estimate_of(experts_ratio(level.runs[0], level.runs[a]), 3));
      const auto predicted = predicted_experts_ratio(options.arms[a], sizes, level.concurrency);
      row.push_back(predicted ? number_text(*predicted, 3) : "-");
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

Table proof_table(const ServeAbOptions& options, const std::vector<ServeAbLevel>& levels) {
  Table table{"What ran, by the server's own counters over all repeats",
              {"policy", "concurrency", "experts", "plain", "step ms", "re-routed", "under-filled", "tokens", "cached",
               "failed", "left plain"},
              {}};
  table.left_last = true;
  for (const ServeAbLevel& level : levels) {
    for (size_t a = 0; a < options.arms.size(); ++a) {
      const auto& runs = level.runs[a];
      int64_t cached = 0;
      for (const ArmRun& run : runs) cached += run.metrics.total_cached;
      std::vector<std::string> row = {options.arms[a], std::to_string(level.concurrency)};
      if (const auto c = total(runs)) {
        const ExpertCount experts = experts_per_layer(*c);
        row.insert(row.end(), {number_text(experts.loaded, 1), number_text(experts.plain, 1),
                               number_text(step_ms(*c), 2), std::to_string(c->rerouted()),
                               std::to_string(c->decode.underfilled_tokens + c->mixed.underfilled_tokens)});
      } else {
        row.insert(row.end(), 5, "-");
      }
      row.insert(row.end(),
                 {std::to_string(output_tokens(runs)), std::to_string(cached), std::to_string(failed(runs))});
      const auto c = total(runs);
      row.push_back(c ? plain_reasons_text(c->decode) : "-");
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

json::object run_json(const ArmRun& run, int repeat) {
  json::object out = {{"repeat", repeat}};
  for (const Measure& m : kMeasures) put_number(out, m.key, m.value(run.metrics));
  put_number(out, "duration", run.metrics.duration);
  out["completed"] = run.metrics.completed;
  out["failed"] = run.metrics.failed;
  out["total_input_tokens"] = run.metrics.total_input;
  out["total_output_tokens"] = run.metrics.total_output;
  out["total_cached_tokens"] = run.metrics.total_cached;
  if (run.counters) {
    const ExpertCount experts = experts_per_layer(*run.counters);
    put_number(out, "distinct_experts", experts.loaded);
    put_number(out, "distinct_experts_plain", experts.plain);
    put_number(out, "step_ms", step_ms(*run.counters));
    out["decode_steps"] = run.counters->decode_steps;
    out["rerouted_tokens"] = run.counters->rerouted();
  }
  json::object applied, kinds;
  for (const auto& [text, n] : run.applied) applied[text] = n;
  for (const auto& [kind, f] : run.failures) kinds[kind] = f.count;
  out["routing_applied"] = std::move(applied);
  out["failed_by_kind"] = std::move(kinds);
  return out;
}

json::object row_json(const ServeAbOptions& options, const ServeAbLevel& level, size_t arm, const MoeSizes& sizes) {
  const auto& runs = level.runs[arm];
  json::object out = {{"policy", options.arms[arm]},
                      {"batch", level.concurrency},
                      {"repeats", options.repeats},
                      {"requests", runs.front().metrics.completed + runs.front().metrics.failed}};
  for (const Measure& m : kMeasures) put_estimate(out, m.key, median_with_interval(values(runs, m.value)));
  if (const auto steps = step_times(runs); !steps.empty()) put_estimate(out, "step_ms", median_with_interval(steps));
  if (const auto c = total(runs)) {
    for (const auto& entry : routing_json(c->decode)) out[entry.key()] = entry.value();
    const ExpertCount experts = experts_per_layer(*c);
    put_number(out, "distinct_experts", experts.loaded);
    put_number(out, "distinct_experts_plain", experts.plain);
    out["rerouted_tokens"] = c->rerouted();
    out["underfilled_tokens"] = c->decode.underfilled_tokens + c->mixed.underfilled_tokens;
  }
  out["failed"] = failed(runs);
  if (arm > 0) {
    const auto put = [&](const std::string& key, const std::optional<Estimate>& e) {
      if (e) put_estimate(out, key, *e);
    };
    for (const Measure& m : kMeasures) {
      put(std::string(m.key) + "_ratio", ratio(values(level.runs[0], m.value), values(runs, m.value)));
    }
    put("step_ms_ratio", ratio(step_times(level.runs[0]), step_times(runs)));
    put("distinct_experts_ratio", experts_ratio(level.runs[0], runs));
    if (const auto p = predicted_experts_ratio(options.arms[arm], sizes, level.concurrency)) {
      put_number(out, "predicted_experts_ratio", *p);
    }
    json::array why;
    for (const std::string& sentence : objections(options, level, arm)) why.emplace_back(sentence);
    out["objections"] = std::move(why);
  }
  json::array list;
  for (size_t r = 0; r < runs.size(); ++r) list.push_back(run_json(runs[r], static_cast<int>(r)));
  out["runs"] = std::move(list);
  return out;
}

void add_failures(const ServeAbOptions& options, const std::vector<ServeAbLevel>& levels,
                  std::vector<std::string>& notes) {
  for (const ServeAbLevel& level : levels) {
    for (size_t a = 0; a < options.arms.size(); ++a) {
      std::map<std::string, FailureCount> kinds;
      for (const ArmRun& run : level.runs[a]) {
        for (const auto& [kind, f] : run.failures) {
          FailureCount& sum = kinds[kind];
          if (sum.count == 0) sum.message = f.message;
          sum.count += f.count;
        }
      }
      for (const auto& [kind, f] : kinds) {
        notes.push_back(fmt::format("{} at concurrency {}: {} requests failed: {}; the first said: {}", options.arms[a],
                                    level.concurrency, f.count, kind, f.message.empty() ? "nothing" : f.message));
      }
    }
  }
}

}  // namespace

std::vector<size_t> arm_order(size_t arms, int repeat) {
  std::vector<size_t> order(arms);
  std::iota(order.begin(), order.end(), size_t{0});
  if (repeat % 2) std::reverse(order.begin(), order.end());
  return order;
}

void check_serve_ab(const ServeAbOptions& options) {
  if (options.arms.size() < 2) refuse("an A/B needs at least two policies: --ab topk --ab oea:k0=5");
  if (std::set<std::string>(options.arms.begin(), options.arms.end()).size() < options.arms.size()) {
    refuse("two --ab are the same policy");
  }
  if (options.concurrency.empty()) refuse("no concurrency to measure");
  for (const int c : options.concurrency) {
    if (c < 1 || c > kMostConnections) refuse(fmt::format("concurrency must be 1 to {}, got {}", kMostConnections, c));
  }
  if (options.repeats < 1 || options.repeats > 1000)
    refuse(fmt::format("repeats must be 1 to 1000, got {}", options.repeats));
}

std::vector<ServeAbLevel> run_serve_ab(const ServeAbOptions& options, const RunArm& run_arm) {
  check_serve_ab(options);
  std::vector<ServeAbLevel> levels;
  for (const int concurrency : options.concurrency) {
    ServeAbLevel& level = levels.emplace_back();
    level.concurrency = concurrency;
    level.runs.resize(options.arms.size());
    for (int r = 0; r < options.repeats; ++r) {
      for (const size_t arm : arm_order(options.arms.size(), r)) {
        level.runs[arm].push_back(run_arm(concurrency, r, arm));
      }
    }
  }
  return levels;
}

std::optional<double> predicted_experts_ratio(const std::string& spec, const MoeSizes& sizes, int rows) {
  if (sizes.n_experts < 1 || sizes.top_k < 1 || sizes.top_k > sizes.n_experts) return std::nullopt;
  if (plain_spec(spec)) return 1;
  // Only where all that is loaded are base sets does k0 say how many experts that is.
  if (!make_policy(spec)->properties().union_exact) return std::nullopt;
  const std::optional<int> k0 = argument_of(spec, "k0");
  if (!k0 || *k0 <= 0 || *k0 > sizes.top_k) return std::nullopt;
  if (rows < argument_of(spec, "min_batch").value_or(1)) return 1;
  return uniform_experts(sizes.n_experts, *k0, rows) / uniform_experts(sizes.n_experts, sizes.top_k, rows);
}

std::vector<std::string> objections(const ServeAbOptions& options, const ServeAbLevel& level, size_t arm) {
  std::vector<std::string> out;
  for (const size_t a : {size_t{0}, arm}) object_to_arm(options.arms[a], level.runs[a], out);
  const int64_t first = output_tokens(level.runs[0]), other = output_tokens(level.runs[arm]);
  if (static_cast<double>(std::abs(first - other)) > kOtherWork * static_cast<double>(std::max(first, other))) {
    out.push_back(fmt::format("the arms generated {} and {} tokens, which is not the same work", first, other));
  }
  return out;
}

std::string verdict(const ServeAbOptions& options, const ServeAbLevel& level, size_t arm) {
  std::string out =
      fmt::format("{} against {} at concurrency {}: ", options.arms[arm], options.arms[0], level.concurrency);
  const std::vector<std::string> why = objections(options, level, arm);
  if (!why.empty()) {
    out += "no winner is named, because ";
    for (size_t i = 0; i < why.size(); ++i) out += (i ? "; and " : "") + why[i];
    return out + ".";
  }
  const auto speed = ratio(values(level.runs[0], kMeasures[0].value), values(level.runs[arm], kMeasures[0].value));
  if (!speed) return out + "nothing was generated.";
  out += fmt::format("output throughput {}x", number_text(speed->value, 3));
  if (options.repeats < kIntervalRepeats) {
    out += fmt::format(" (between {} and {}; {} repeats give no interval, so no winner is named)",
                       number_text(speed->lo, 3), number_text(speed->hi, 3), options.repeats);
  } else {
    out += fmt::format(" [{}, {}], ", number_text(speed->lo, 3), number_text(speed->hi, 3));
    out += speed->lo > 1   ? options.arms[arm] + " is faster"
           : speed->hi < 1 ? options.arms[0] + " is faster"
                           : "which includes no difference";
  }
  if (const auto experts = experts_ratio(level.runs[0], level.runs[arm])) {
    out += fmt::format("; distinct experts {}x", number_text(experts->value, 3));
  }
  return out + ".";
}

void report_serve_ab(const ServeAbOptions& options, const std::vector<ServeAbLevel>& levels, const MoeSizes& sizes,
                     BenchReport& report) {
  report.tables.push_back(speed_table(options, levels));
  report.tables.push_back(ratio_table(options, levels, sizes));
  report.tables.push_back(proof_table(options, levels));
  for (const ServeAbLevel& level : levels) {
    for (size_t a = 0; a < options.arms.size(); ++a) report.results.push_back(row_json(options, level, a, sizes));
  }
  for (const ServeAbLevel& level : levels) {
    for (size_t a = 1; a < options.arms.size(); ++a) report.notes.push_back(verdict(options, level, a));
  }
  report.notes.emplace_back(
      "server step: mean time of the server's decode-only steps. experts: distinct experts per layer that these steps "
      "loaded; a step cannot get cheaper than that ratio, and does less so the more of it is not reading experts. "
      "predicted: that ratio, had every row of a full batch chosen independently and uniformly.");
  add_failures(options, levels, report.notes);
  for (const std::string& arm : options.arms) {
    const std::string sentence = quality_sentence(arm);
    if (!sentence.empty()) report.notes.push_back(sentence);
  }
}

Table measured_quality(const json::value& ab, const std::string& where, const std::vector<std::string>& arms) {
  const JsonObject root(ab, where);
  Table table{fmt::format("Quality, teacher-forced on fixed text, of {}: `{}`", root.string_or("model", "a model"),
                          root.string_or("command", "carpool ab")),
              {"policy", "batch", "cross-entropy change", "KL to topk", "top-1 agreement"},
              {}};
  for (const std::string& arm : arms) {
    bool found = plain_spec(arm);
    for (const json::value& value : root.array("results")) {
      const JsonObject row(value, where);
      if (!row.has("cross_entropy_delta") || canonical(row.string("policy")) != canonical(arm)) continue;
      const auto number = [&](const char* key) { return row.number(key, -1e6, 1e6); };
      const Estimate delta{number("cross_entropy_delta"), number("cross_entropy_delta_lo"),
                           number("cross_entropy_delta_hi")};
      table.rows.push_back({arm, std::to_string(row.integer("batch", 1, 1 << 20)), estimate_text(delta, 4, true),
                            number_text(number("kl_mean"), 4), percent_text(number("top1_agreement"), 2)});
      found = true;
    }
    if (!found) refuse(fmt::format("{}: no quality of {} in it", where, arm));
  }
  return table;
}

}  // namespace carpool
