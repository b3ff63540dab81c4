// Tables, JSON rows and warnings of decode benches. See bench_decode.h.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "measure/bench_decode.h"
#include "model/dummy.h"

namespace carpool {
namespace {

constexpr double kMega = 1e6;

double tokens(const DecodeRow& row) { return static_cast<double>(row.batch) * row.steps; }
double prompt_tokens(const DecodeRow& row) { return static_cast<double>(row.batch) * row.prompt; }

std::string rate(double amount, double seconds) { return number_text(amount / seconds, 2); }

bool plain(const DecodeRow& row) { return row.policy == "topk" || row.routing.rerouted_tokens == 0; }

Table speed_table(const std::vector<DecodeRow>& rows) {
  Table table{"Decode as llama-batched-bench counts: PP prompt tokens and TG steps of each of B sequences, medians",
              {"policy", "PP", "TG", "B", "N_KV", "T_PP s", "S_PP t/s", "T_TG s", "S_TG t/s", "T s", "S t/s"},
              {}};
  for (const DecodeRow& row : rows) {
    const double total = row.prefill_s.value + row.decode_s.value;
    table.rows.push_back({row.policy, std::to_string(row.prompt), std::to_string(row.steps), std::to_string(row.batch),
                          number_text(prompt_tokens(row) + tokens(row), 0), number_text(row.prefill_s.value, 3),
                          rate(prompt_tokens(row), row.prefill_s.value), number_text(row.decode_s.value, 3),
                          rate(tokens(row), row.decode_s.value), number_text(total, 3),
                          rate(prompt_tokens(row) + tokens(row), total)});
  }
  return table;
}

Table step_table(const std::vector<DecodeRow>& rows, int repeats) {
  Table table{"Decode steps: " + spread_text(repeats) + "; experts per MoE layer; floor = MB at the probe's speed",
              {"policy", "B", "step ms", "of first", "experts", "plain", "uniform", "rows/expert", "MB/step", "GB/s",
               "probe GB/s", "of floor"},
              {}};
  for (const DecodeRow& row : rows) {
    table.rows.push_back(
        {row.policy, std::to_string(row.batch), estimate_text(row.step_ms, decimals_for(row.step_ms.value)),
         estimate_text(row.ratio, 3), number_text(row.distinct, 2), number_text(row.plain, 2),
         number_text(row.uniform, 2), number_text(row.rows_per_expert, 2), number_text(row.bytes() / kMega, 1),
         number_text(row.gbps(), 2), number_text(row.read_gbps.value, 1), percent_text(row.floor_share.value)});
  }
  return table;
}

// Empty unless the model timed its phases.
Table phase_table(const std::vector<DecodeRow>& rows) {
  Table table{
      "Where a decode step's time goes, mean ms; routing = router, scores, policy and counters; waiting = the part of "
      "the sum in which one thread waited for another; an engine adds scheduling and greedy sampling",
      {"policy", "B", "attention", "projections", "routing", "experts", "head", "other", "sum", "waiting", "engine"},
      {}};
  for (const DecodeRow& row : rows) {
    const StepTimes& t = row.times;
    if (!(t.sum() > 0)) continue;
    std::vector<std::string> cells = {row.policy, std::to_string(row.batch)};
    for (const double s :
         {t.attention, t.projections, t.routing, t.experts, t.head, t.other, t.sum(), t.waiting, row.engine_s}) {
      cells.push_back(number_text(s * 1e3, 3));
    }
    table.rows.push_back(std::move(cells));
  }
  return table;
}

// What would make the numbers say something else than they seem to.
void warn(const std::vector<DecodeRow>& rows, const ModelConfig& config, std::vector<std::string>& notes) {
  std::set<int> collapsed, cached;
  for (const DecodeRow& row : rows) {
    if (row.uniform > 0 && routing_collapsed(row.plain, config.n_experts, config.top_k, row.batch)) {
      collapsed.insert(row.batch);
    }
    if (row.floor_share.value > 1) cached.insert(row.batch);
  }
  const auto list = [](const std::set<int>& batches) {
    std::string out;
    for (const int b : batches) out += fmt::format("{}{}", out.empty() ? "" : ", ", b);
    return out;
  };
  if (!collapsed.empty()) {
    notes.push_back(fmt::format(
        "warning: the routing has collapsed at batch {}: plain routing loads far fewer experts than uniform routing "
        "would. Rows that see nearly equal hidden states pick the same experts, and these speeds are not those of "
        "different texts.",
        list(collapsed)));
  }
  if (!cached.empty()) {
    notes.push_back(fmt::format(
        "warning: at batch {} the step's bytes came faster than memory delivers, so a part of them came from cache: "
        "these speeds are not those of a model larger than the cache (see --cold-copies).",
        list(cached)));
  }
}

void quality_note(const std::vector<DecodeRow>& rows, bool dummy, const std::string& model_name,
                  std::vector<std::string>& notes) {
  std::vector<std::string> lossy;
  for (const DecodeRow& row : rows) {
    if (!plain(row) && std::find(lossy.begin(), lossy.end(), row.policy) == lossy.end()) lossy.push_back(row.policy);
  }
  if (lossy.empty()) return;
  std::string list, options;
  for (const std::string& spec : lossy) {
    list += (list.empty() ? "" : ", ") + spec;
    options += " --b " + spec;
  }
  notes.push_back(dummy ? fmt::format("quality: {} changed the model's own choice of experts. Random weights have no "
                                      "quality to lose: nothing here says what that costs a real model.",
                                      list)
                        : fmt::format("quality: {} changed the model's own choice of experts, which costs quality "
                                      "that this bench does not measure; carpool ab {} --a topk{} does.",
                                      list, model_name, options));
}

json::object row_json(const DecodeRow& row) {
  json::object out;
  out["policy"] = row.policy;
  out["batch"] = row.batch;
  out["prompt_tokens"] = row.prompt;
  out["steps"] = row.steps;
  out["n_kv"] = static_cast<int64_t>(prompt_tokens(row) + tokens(row));
  put_estimate(out, "prefill_seconds", row.prefill_s);
  put_number(out, "prefill_tokens_per_second", prompt_tokens(row) / row.prefill_s.value);
  put_estimate(out, "decode_seconds", row.decode_s);
  put_estimate(out, "tokens_per_second",
               {tokens(row) / row.decode_s.value, tokens(row) / row.decode_s.hi, tokens(row) / row.decode_s.lo});
  put_number(out, "total_seconds", row.prefill_s.value + row.decode_s.value);
  put_number(out, "total_tokens_per_second",
             (prompt_tokens(row) + tokens(row)) / (row.prefill_s.value + row.decode_s.value));
  put_estimate(out, "step_ms", row.step_ms);
  put_estimate(out, "step_ratio", row.ratio);
  for (const auto& entry : routing_json(row.routing)) out[entry.key()] = entry.value();
  put_number(out, "uniform_experts", row.uniform);
  put_number(out, "rows_per_expert", row.rows_per_expert);
  put_number(out, "bytes_per_step", row.bytes());
  put_number(out, "dense_bytes_per_step", row.dense_bytes);
  put_number(out, "gbps", row.gbps());
  put_estimate(out, "read_gbps", row.read_gbps);
  put_estimate(out, "floor_share", row.floor_share);
  if (row.times.sum() > 0) {
    const StepTimes& t = row.times;
    out["phase_ms"] = json::object{{"attention", t.attention * 1e3}, {"projections", t.projections * 1e3},
                                   {"routing", t.routing * 1e3},     {"experts", t.experts * 1e3},
                                   {"head", t.head * 1e3},           {"other", t.other * 1e3}};
    put_number(out, "waiting_ms", t.waiting * 1e3);
    put_number(out, "engine_ms", row.engine_s * 1e3);
  }
  return out;
}

}  // namespace

void report_decode(const std::vector<DecodeRow>& rows, const ModelConfig& config, const std::string& model_name,
                   int repeats, BenchReport& report) {
  report.tables = {speed_table(rows), step_table(rows, repeats), phase_table(rows)};
  for (const DecodeRow& row : rows) report.results.push_back(row_json(row));
  warn(rows, config, report.notes);
  quality_note(rows, is_dummy(model_name), model_name, report.notes);
}

}  // namespace carpool
