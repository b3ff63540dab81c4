#include "measure/load_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace carpool {
namespace {

constexpr size_t kWidth = 50;

std::string row(const std::string& name, const std::string& value) {
  return fmt::format("{:<40} {:<10}\n", name, value);
}
std::string row(const std::string& name, double value) { return fmt::format("{:<40} {:<10.2f}\n", name, value); }
std::string row(const std::string& name, int64_t value) { return fmt::format("{:<40} {:<10}\n", name, value); }

std::string headline(const std::string& title, char fill) {
  const size_t room = kWidth > title.size() ? kWidth - title.size() : 0;
  return std::string(room / 2, fill) + title + std::string(room - room / 2, fill) + "\n";
}

std::string rate_text(double rate) { return std::isfinite(rate) ? fmt::format("{}", rate) : "inf"; }

// "99", "99.9".
std::string percent_name(double p) { return fmt::format("{:g}", p); }

std::string section(const std::string& title, const std::string& unit, const Distribution& d, bool with_max) {
  std::string out = headline(title, '-');
  out += row("Mean " + unit + " (ms):", d.mean);
  out += row("Median " + unit + " (ms):", d.median);
  for (const auto& [p, value] : d.percentiles) out += row(fmt::format("P{} {} (ms):", percent_name(p), unit), value);
  if (with_max) out += row("Max " + unit + " (ms):", d.max);
  return out;
}

// avg_spec_accept_length of internal_states[0], null when the server does not speculate.
json::value accept_length(const json::value& info) {
  boost::system::error_code ec;
  const json::value* found = info.find_pointer("/internal_states/0/avg_spec_accept_length", ec);
  return found && found->is_number() ? *found : json::value();
}

template <class F>
json::array each(const std::vector<LoadOutcome>& outcomes, const F& value) {
  json::array out;
  for (const LoadOutcome& o : outcomes) out.push_back(value(o));
  return out;
}

void put_details(json::object& out, const std::vector<LoadOutcome>& outcomes) {
  out["input_lens"] = each(outcomes, [](const LoadOutcome& o) { return json::value(o.prompt_tokens); });
  out["output_lens"] = each(outcomes, [](const LoadOutcome& o) { return json::value(o.output_tokens); });
  out["ttfts"] = each(outcomes, [](const LoadOutcome& o) { return json::value(std::max(o.ttft, 0.0)); });
  out["itls"] =
      each(outcomes, [](const LoadOutcome& o) { return json::value(json::array(o.itl.begin(), o.itl.end())); });
  out["generated_texts"] = each(outcomes, [](const LoadOutcome& o) { return json::value(json::string(o.text)); });
  out["errors"] = each(outcomes, [](const LoadOutcome& o) {
    return json::value(json::string(o.message.empty() ? o.failure : o.failure + ": " + o.message));
  });
  out["latencies"] = each(outcomes, [](const LoadOutcome& o) { return json::value(o.latency); });
  out["start_times"] = each(outcomes, [](const LoadOutcome& o) { return json::value(o.start); });
}

void put_failures(json::object& out, const LoadReport& r) {
  json::object by_kind, messages;
  for (const auto& [kind, f] : r.failures) {
    by_kind[kind] = f.count;
    messages[kind] = f.message;
  }
  out["failed"] = r.metrics.failed;
  out["failed_by_kind"] = std::move(by_kind);
  out["failure_messages"] = std::move(messages);
}

void put_routing(json::object& out, const LoadReport& r) {
  json::object applied;
  for (const auto& [text, n] : r.routing) applied[text] = n;
  out["routing_applied"] = std::move(applied);
  if (!r.counters) return;
  const ServerCounters& c = *r.counters;
  const ExpertCount experts = experts_per_layer(c);
  for (const auto& entry : routing_json(c.decode)) out[entry.key()] = entry.value();
  put_number(out, "distinct_experts", experts.loaded);
  put_number(out, "distinct_experts_plain", experts.plain);
  out["rerouted_tokens"] = c.rerouted();
  out["underfilled_tokens"] = c.decode.underfilled_tokens + c.mixed.underfilled_tokens;
  out["server_generation_tokens"] = c.generation_tokens;
}

}  // namespace

ExpertCount experts_per_layer(const ServerCounters& counters) {
  const RoutingCounters& c = counters.decode.layers > 0 ? counters.decode : counters.mixed;
  const auto layers = static_cast<double>(std::max<int64_t>(c.layers, 1));
  return {static_cast<double>(c.distinct_experts) / layers, static_cast<double>(c.distinct_plain) / layers};
}

bool plain_spec(const std::string& policy) { return policy == "topk" || policy == "isolated"; }

std::string quality_sentence(const std::string& policy) {
  if (plain_spec(policy)) return "";
  return fmt::format(
      "Quality: a load test measures speed alone. What {} costs in quality on your model and text comes from "
      "`carpool ab MODEL --a topk --b {}` (cross-entropy, KL, top-1 agreement, teacher-forced); read no speed-up of it "
      "without that.",
      policy, policy);
}

std::string load_block(const LoadReport& r) {
  const LoadMetrics& m = r.metrics;
  std::string out = "\n" + headline(" Serving Benchmark Result ", '=');
  out += row("Backend:", r.backend);
  out += row("Traffic request rate:", rate_text(r.request_rate));
  out += row("Max request concurrency:", r.max_concurrency > 0 ? std::to_string(r.max_concurrency) : "not set");
  out += row("Successful requests:", int64_t{m.completed});
  out += row("Failed requests:", int64_t{m.failed});
  out += row("Benchmark duration (s):", m.duration);
  out += row("Total input tokens:", m.total_input);
  out += row("Total input text tokens:", m.total_input);
  out += row("Total generated tokens:", m.total_output);
  out += row("Total generated tokens (retokenized):", r.retokenized ? std::to_string(*r.retokenized) : "unknown");
  out += row("Request throughput (req/s):", m.request_throughput);
  out += row("Input token throughput (tok/s):", m.input_throughput);
  out += row("Output token throughput (tok/s):", m.output_throughput);
  out += row("Peak output token throughput (tok/s):", m.peak_output);
  out += row("Peak concurrent requests:", int64_t{m.peak_concurrent});
  out += row("Total token throughput (tok/s):", m.total_throughput);
  out += row("Concurrency:", m.concurrency);
  if (const json::value accepted = accept_length(r.server_info); accepted.is_number()) {
    out += row("Accept length:", accepted.to_number<double>());
  }
  out += section("End-to-End Latency", "E2E Latency", m.e2e_ms, false);
  out += section("Time to First Token", "TTFT", m.ttft_ms, false);
  out += section("Time per Output Token (excl. 1st token)", "TPOT", m.tpot_ms, false);
  out += section("Inter-Token Latency", "ITL", m.itl_ms, true);
  return out + std::string(kWidth, '=') + "\n";
}

void put_distribution(json::object& out, const std::string& name, const Distribution& d) {
  put_number(out, "mean_" + name, d.mean);
  put_number(out, "median_" + name, d.median);
  put_number(out, "std_" + name, d.std);
  for (const auto& [p, value] : d.percentiles) put_number(out, fmt::format("p{}_{}", percent_name(p), name), value);
}

json::object load_line(const LoadReport& r, const std::vector<LoadOutcome>* details) {
  const LoadMetrics& m = r.metrics;
  json::object out;
  out["tag"] = r.tag.empty() ? json::value() : json::value(r.tag);
  out["backend"] = r.backend;
  out["dataset_name"] = r.dataset;
  // JSON has no infinity; a word says it.
  out["request_rate"] = std::isfinite(r.request_rate) ? json::value(r.request_rate) : json::value("inf");
  out["max_concurrency"] = r.max_concurrency > 0 ? json::value(r.max_concurrency) : json::value();
  out["sharegpt_output_len"] = r.sharegpt_output_len ? json::value(*r.sharegpt_output_len) : json::value();
  out["random_input_len"] = r.random_input_len;
  out["random_output_len"] = r.random_output_len;
  out["random_range_ratio"] = r.random_range_ratio;
  out["server_info"] = r.server_info;
  put_number(out, "duration", m.duration);
  out["completed"] = m.completed;
  out["total_input_tokens"] = m.total_input;
  out["total_input_text_tokens"] = m.total_input;
  out["total_input_vision_tokens"] = 0;
  out["total_output_tokens"] = m.total_output;
  out["total_output_tokens_retokenized"] = r.retokenized ? json::value(*r.retokenized) : json::value();
  put_number(out, "request_throughput", m.request_throughput);
  put_number(out, "input_throughput", m.input_throughput);
  put_number(out, "output_throughput", m.output_throughput);
  put_number(out, "total_throughput", m.total_throughput);
  put_distribution(out, "e2e_latency_ms", m.e2e_ms);
  put_distribution(out, "ttft_ms", m.ttft_ms);
  put_distribution(out, "tpot_ms", m.tpot_ms);
  put_distribution(out, "itl_ms", m.itl_ms);
  put_number(out, "max_itl_ms", m.itl_ms.max);
  put_number(out, "concurrency", m.concurrency);
  out["accept_length"] = accept_length(r.server_info);
  put_number(out, "max_output_tokens_per_s", m.peak_output);
  out["max_concurrent_requests"] = m.peak_concurrent;
  if (details) put_details(out, *details);
  out["total_cached_tokens"] = m.total_cached;
  put_failures(out, r);
  put_routing(out, r);
  return out;
}

std::vector<std::string> load_notes(const LoadReport& r) {
  std::vector<std::string> out;
  for (const auto& [kind, f] : r.failures) {
    out.push_back(fmt::format("{} {} failed: {}; the first said: {}", f.count, f.count == 1 ? "request" : "requests",
                              kind, f.message.empty() ? "nothing" : f.message));
  }
  if (r.metrics.without_text > 0) {
    out.push_back(fmt::format("{} replies held no visible text; they have no TTFT, TPOT or ITL (and none of 0).",
                              r.metrics.without_text));
  }
  if (r.metrics.uncounted > 0) {
    out.push_back(
        fmt::format("{} replies came without a token count; their chunks were counted instead, so tokens per "
                    "second and TPOT of these are guesses.",
                    r.metrics.uncounted));
  }
  for (const auto& [text, n] : r.routing) {
    out.push_back(fmt::format("Routing that applied to {} requests: {}", n, text));
    const std::string sentence = quality_sentence(text.substr(0, text.find(';')));
    if (!sentence.empty()) out.push_back(sentence);
  }
  if (r.counters) {
    const ExpertCount experts = experts_per_layer(*r.counters);
    out.push_back(
        fmt::format("The server counted {:.1f} distinct experts per layer and decode step (plain routing {:.1f}), {} "
                    "re-routed and {} "
                    "under-filled (token, layer) pairs; left plain: {}",
                    experts.loaded, experts.plain, r.counters->rerouted(),
                    r.counters->decode.underfilled_tokens + r.counters->mixed.underfilled_tokens,
                    plain_reasons_text(r.counters->decode)));
  }
  return out;
}

json::object load_row(const LoadReport& r) {
  const LoadMetrics& m = r.metrics;
  json::object out;
  std::string policy;
  for (const auto& [text, n] : r.routing) policy += (policy.empty() ? "" : ", ") + text.substr(0, text.find(';'));
  out["policy"] = policy;
  out["batch"] = r.max_concurrency;
  out["request_rate"] = std::isfinite(r.request_rate) ? json::value(r.request_rate) : json::value("inf");
  put_number(out, "tokens_per_second", m.output_throughput);
  put_number(out, "duration", m.duration);
  out["completed"] = m.completed;
  out["total_input_tokens"] = m.total_input;
  out["total_output_tokens"] = m.total_output;
  out["total_cached_tokens"] = m.total_cached;
  put_distribution(out, "e2e_latency_ms", m.e2e_ms);
  put_distribution(out, "ttft_ms", m.ttft_ms);
  put_distribution(out, "tpot_ms", m.tpot_ms);
  put_distribution(out, "itl_ms", m.itl_ms);
  put_number(out, "concurrency", m.concurrency);
  put_failures(out, r);
  put_routing(out, r);
  return out;
}

std::string to_markdown(const Table& table) {
  const auto line = [](const std::vector<std::string>& cells) {
    std::string out = "|";
    for (std::string cell : cells) {
      cell = printable(std::move(cell));
      for (size_t at = cell.find('|'); at != std::string::npos; at = cell.find('|', at + 2)) cell.insert(at, "\\");
      out += " " + cell + " |";
    }
    return out + "\n";
  };
  std::string out = line(table.columns) + "|";
  for (size_t c = 0; c < table.columns.size(); ++c) {
    const bool left = c < table.left_columns || (table.left_last && c + 1 == table.columns.size());
    out += left ? "---|" : "---:|";
  }
  out += "\n";
  for (const auto& cells : table.rows) out += line(cells);
  return out;
}

std::string markdown(const BenchReport& report) {
  std::string out;
  for (const auto& [key, value] : fact_lines(report.facts)) {
    out += fmt::format("- {}: `{}`\n", printable(key), printable(value));
  }
  for (const Table& table : report.tables) {
    if (!table.rows.empty()) out += fmt::format("\n{}\n\n{}", printable(table.title), to_markdown(table));
  }
  for (const std::string& note : report.notes) out += fmt::format("\n{}\n", printable(note));
  return out;
}

}  // namespace carpool
