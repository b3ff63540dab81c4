#include "measure/bench_prefill.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/time.h"
#include "measure/bench_decode.h"
#include "model/kv_cache.h"
#include "routing/policy.h"

namespace carpool {
namespace {

[[noreturn]] void refuse(const std::string& sentence) { throw Error(ErrorKind::kUsage, sentence); }

struct RowState {
  int tokens = 0;
  std::vector<double> read_gbps;  // by repeat
  RowTimes times;
  RoutingCounters routing;
};

// Seconds of the steps that take a fresh sequence of `tokens` random tokens through the model.
double prefill(Model& model, KvCache& kv, const PrefillOptions& options, int repeat, RowState& row) {
  const std::unique_ptr<Policy> policy = make_policy("topk");
  TokenStream stream(options.seed, repeat, 0, model.config().vocab);
  std::vector<int> blocks;
  CARPOOL_CHECK(kv.take(KvCache::blocks_for(row.tokens), blocks));
  Rows rows;
  double seconds = 0;
  for (int p = 0; p < row.tokens; ++p) {
    const bool last = p + 1 == row.tokens;
    rows.push(stream.next(), p, blocks.data(), {Phase::kPrefill, false, 0}, last);
    if (rows.size() < options.chunk && !last) continue;
    const double start = now_seconds();
    model.forward(rows, kv, *policy, {.routing = &row.routing});
    seconds += now_seconds() - start;
    rows.clear();
  }
  kv.give_back(blocks);
  return seconds;
}

}  // namespace

void check_prefill(const ModelConfig& config, const PrefillOptions& options) {
  if (options.tokens.empty()) refuse("no prompt to measure");
  for (const int n : options.tokens) {
    if (n < 1) refuse(fmt::format("a prompt must have at least 1 token, got {}", n));
    if (n > config.context) {
      refuse(fmt::format("a prompt of {} tokens does not fit the model's context of {}", n, config.context));
    }
  }
  if (options.chunk < 1 || options.chunk > 65536)
    refuse(fmt::format("the chunk must be 1 to 65536, got {}", options.chunk));
  if (options.repeats < 1 || options.repeats > 1000)
    refuse(fmt::format("repeats must be 1 to 1000, got {}", options.repeats));
}

std::vector<PrefillRow> run_prefill(Model& model, const PrefillOptions& options) {
  check_prefill(model.config(), options);
  KvCache kv(model.config(), *std::max_element(options.tokens.begin(), options.tokens.end()), model.kv_format());
  BenchProbe probe(options.probe_bytes);
  std::vector<RowState> states;
  for (const int n : options.tokens) states.emplace_back().tokens = n;
  RowState warm_up{std::min(options.chunk, options.tokens[0]), {}, {}, {}};
  prefill(model, kv, options, options.repeats, warm_up);
  for (int r = 0; r < options.repeats; ++r) {
    for (size_t s = 0; s < states.size(); ++s) {
      if (options.progress) {
        options.progress("prefill",
                         (r + static_cast<double>(s) / static_cast<double>(states.size())) / options.repeats);
      }
      states[s].read_gbps.push_back(probe.pass(model.ops()));
      states[s].times.add_step(prefill(model, kv, options, r, states[s]));
      states[s].times.end_repeat();
    }
  }
  std::vector<PrefillRow> rows;
  for (const RowState& state : states) {
    PrefillRow row{state.tokens, options.chunk, state.times.ms(), 0, 0, median_with_extremes(state.read_gbps)};
    if (state.routing.layers > 0) {
      const auto distinct = static_cast<double>(state.routing.distinct_experts);
      row.distinct = distinct / static_cast<double>(state.routing.layers);
      row.rows_per_expert = static_cast<double>(state.routing.slots) / distinct;
    }
    rows.push_back(row);
  }
  return rows;
}

void report_prefill(const std::vector<PrefillRow>& rows, int repeats, BenchReport& report) {
  Table table{"Prefill of one sequence: " + spread_text(repeats),
              {"test", "chunk", "tok/s", "ms", "experts", "rows/expert", "probe GB/s"},
              {}};
  for (const PrefillRow& row : rows) {
    const double t = 1e3 * row.tokens;
    const Estimate speed{t / row.prefill_ms.value, t / row.prefill_ms.hi, t / row.prefill_ms.lo};
    table.rows.push_back(
        {fmt::format("pp{}", row.tokens), std::to_string(row.chunk), estimate_text(speed, decimals_for(speed.value)),
         estimate_text(row.prefill_ms, decimals_for(row.prefill_ms.value)), number_text(row.distinct, 2),
         number_text(row.rows_per_expert, 2), number_text(row.read_gbps.value, 1)});
    json::object out;
    out["tokens"] = row.tokens;
    out["chunk"] = row.chunk;
    put_estimate(out, "tokens_per_second", speed);
    put_estimate(out, "prefill_ms", row.prefill_ms);
    put_number(out, "distinct_experts", row.distinct);
    put_number(out, "rows_per_expert", row.rows_per_expert);
    put_estimate(out, "read_gbps", row.read_gbps);
    report.results.push_back(std::move(out));
  }
  report.tables = {std::move(table)};
}

}  // namespace carpool
