// The timing loop of `carpool bench decode`; its tables are in bench_decode_report.cc. See bench_decode.h.
#include "measure/bench_decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/time.h"
#include "engine/engine.h"
#include "model/kv_cache.h"
#include "model/routing_tables.h"
#include "routing/policy.h"

namespace carpool {
namespace {

[[noreturn]] void refuse(const std::string& sentence) { throw Error(ErrorKind::kUsage, sentence); }

void check_range(const char* what, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) refuse(fmt::format("{} must be {} to {}, got {}", what, low, high, value));
}

constexpr int kEngineSteps = 4;

struct RowState {
  std::unique_ptr<Policy> policy;
  int batch = 0;
  std::vector<double> prefill_s, decode_s;
  RowTimes times;
  RoutingCounters routing;
  StepTimes phases;
  double engine_s = 0;
  int64_t steps = 0;
  std::vector<double> read_gbps;  // by repeat
};

// The sequences of one row and repeat.
class Sequences {
 public:
  Sequences(Model& model, KvCache& kv, const DecodeOptions& options, int repeat, int batch)
      : model_(model), kv_(kv), options_(options), blocks_(static_cast<size_t>(batch)) {
    for (int b = 0; b < batch; ++b) {
      streams_.emplace_back(options.seed, repeat, b, model.config().vocab);
      CARPOOL_CHECK(kv.take(KvCache::blocks_for(options.prompt + options.steps), blocks_[static_cast<size_t>(b)]));
    }
  }
  ~Sequences() {
    for (auto& table : blocks_) kv_.give_back(table);
  }
  Sequences(const Sequences&) = delete;

  // All prompts, sequence after sequence, in chunks; seconds of the steps.
  double prefill(const Policy& policy) {
    double seconds = 0;
    RoutingCounters unused;
    rows_.clear();
    for (size_t b = 0; b < blocks_.size(); ++b) {
      for (int p = 0; p < options_.prompt; ++p) {
        const bool last = p + 1 == options_.prompt;
        rows_.push(streams_[b].next(), p, blocks_[b].data(), {Phase::kPrefill, false, 0}, last);
        if (rows_.size() == options_.chunk || (last && b + 1 == blocks_.size())) seconds += forward(policy, unused);
      }
    }
    return seconds;
  }

  // Decode step `t`: one fresh token of every sequence.
  double decode(int t, const Policy& policy, RoutingCounters& routing) {
    for (size_t b = 0; b < blocks_.size(); ++b) {
      rows_.push(streams_[b].next(), options_.prompt + t, blocks_[b].data(), {Phase::kDecode, false, 0}, true);
    }
    return forward(policy, routing);
  }

 private:
  double forward(const Policy& policy, RoutingCounters& routing) {
    const double start = now_seconds();
    model_.forward(rows_, kv_, policy, {.routing = &routing});
    const double seconds = now_seconds() - start;
    rows_.clear();
    return seconds;
  }

  Model& model_;
  KvCache& kv_;
  const DecodeOptions& options_;
  std::vector<std::vector<int>> blocks_;
  std::vector<TokenStream> streams_;
  Rows rows_;
};

void run_row(Model& model, KvCache& kv, const DecodeOptions& options, int repeat, RowState& row) {
  Sequences sequences(model, kv, options, repeat, row.batch);
  row.prefill_s.push_back(sequences.prefill(*row.policy));
  double total = 0;
  model.time_steps(&row.phases);
  for (int t = 0; t < options.steps; ++t) {
    const double seconds = sequences.decode(t, *row.policy, row.routing);
    row.times.add_step(seconds);
    total += seconds;
    ++row.steps;
  }
  model.time_steps(nullptr);
  row.decode_s.push_back(total);
  row.times.end_repeat();
}

// Mean seconds per decode step of what an engine does around the forward pass of such a batch: scheduling, accounts,
// a greedy token of every row, events. 0 where the context has no room for it.
double time_engine(Model& model, const DecodeOptions& options, const std::string& policy, int batch) {
  // A prompt of one token, and two tokens that are not timed: the prompt's, and one to come, so that nobody ends.
  const int steps = std::min({options.steps, kEngineSteps, model.config().context - 3});
  if (steps < 1) return 0;
  EngineOptions engine_options;
  engine_options.max_batch = batch;
  engine_options.chunk = batch;
  engine_options.kv_tokens = batch * KvCache::blocks_for(steps + 3) * KvCache::kBlockTokens;
  Engine engine(model, nullptr, make_policy(policy, model), engine_options);
  for (int b = 0; b < batch; ++b) {
    Request request;
    request.prompt = {TokenStream(options.seed, options.repeats, b, model.config().vocab).next()};
    request.max_tokens = steps + 2;
    request.ignore_eos = true;
    engine.submit(std::move(request));
  }
  engine.step();
  double outside = 0;
  for (int t = 0; t < steps; ++t) {
    const double start = now_seconds();
    engine.step();
    outside += now_seconds() - start - engine.last_step().seconds;
    CARPOOL_CHECK(engine.last_step().decode_rows == batch);
  }
  return outside / steps;
}

// Mean over a row's steps of the positions that all its sequences attended to.
double attended_positions(const DecodeOptions& options, int batch) {
  return batch * (options.prompt + (options.steps + 1) / 2.0);
}

StepTimes per_step(const StepTimes& t, double steps) {
  return {t.attention / steps, t.projections / steps, t.routing / steps, t.experts / steps,
          t.head / steps,      t.other / steps,       t.waiting / steps};
}

DecodeRow finish_row(const Model& model, const DecodeOptions& options, const RowState& state, const RowState& first) {
  const ModelConfig& c = model.config();
  DecodeRow row;
  row.policy = state.policy->spec();
  row.batch = state.batch;
  row.prompt = options.prompt;
  row.steps = options.steps;
  row.prefill_s = median_with_interval(state.prefill_s);
  row.decode_s = median_with_interval(state.decode_s);
  row.step_ms = state.times.ms();
  row.ratio = paired_ratio(state.times.repeat_ms(), first.times.repeat_ms());
  row.routing = state.routing;
  if (state.routing.layers > 0) {
    const auto layers = static_cast<double>(state.routing.layers);
    row.distinct = static_cast<double>(state.routing.distinct_experts) / layers;
    row.plain = static_cast<double>(state.routing.distinct_plain) / layers;
    row.rows_per_expert =
        static_cast<double>(state.routing.slots) / static_cast<double>(state.routing.distinct_experts);
    row.uniform = uniform_experts(c.n_experts, c.top_k, state.batch);
  }
  const double position_bytes =
      static_cast<double>(KvCache::bytes_for(c, KvCache::kBlockTokens, model.kv_format())) / KvCache::kBlockTokens;
  row.expert_bytes = row.distinct * c.moe_layers() * static_cast<double>(model.weights().bytes_per_expert());
  row.dense_bytes = static_cast<double>(model.weights().dense_bytes_per_step()) +
                    attended_positions(options, state.batch) * position_bytes;
  row.read_gbps = median_with_extremes(state.read_gbps);
  row.floor_share = paired_floor_share(row.bytes(), state.read_gbps, state.times.repeat_ms());
  row.times = per_step(state.phases, static_cast<double>(state.steps));
  row.engine_s = state.engine_s;
  return row;
}

}  // namespace

TokenStream::TokenStream(uint64_t seed, int repeat, int sequence, int vocab)
    : bits_(seed * 0x9e3779b97f4a7c15u + (static_cast<uint64_t>(repeat) << 32) + static_cast<uint64_t>(sequence)),
      vocab_(vocab) {}

int TokenStream::next() { return static_cast<int>((bits_.next() >> 32) * static_cast<uint64_t>(vocab_) >> 32); }

void check_decode(const ModelConfig& config, const DecodeOptions& options) {
  if (options.batches.empty()) refuse("no batch to measure");
  if (options.policies.empty()) refuse("no policy to measure");
  for (const int b : options.batches) check_range("a batch", b, 1, 1024);
  check_range("prompt tokens", options.prompt, 1, 1 << 20);
  check_range("steps", options.steps, 1, 1 << 20);
  check_range("repeats", options.repeats, 1, 1000);
  check_range("the chunk", options.chunk, 1, 65536);
  if (options.prompt + options.steps > config.context) {
    refuse(fmt::format("{} prompt tokens and {} steps do not fit the model's context of {}", options.prompt,
                       options.steps, config.context));
  }
  for (const std::string& spec : options.policies) {
    const std::unique_ptr<Policy> policy = make_policy(spec);
    if (config.moe_layers() > 0) {
      check_spec(spec, config);
    } else if (!policy->is_plain(1)) {
      throw Error(ErrorKind::kConfig,
                  fmt::format("the model has no routed experts: {} has nothing to decide", escape(spec)));
    }
  }
}

std::vector<DecodeRow> run_decode(Model& model, const DecodeOptions& options) {
  check_decode(model.config(), options);
  std::vector<RowState> states;
  for (const int batch : options.batches) {
    for (const std::string& spec : options.policies) {
      RowState& state = states.emplace_back();
      state.policy = make_policy(spec, model);
      if (model.config().moe_layers() > 0) state.policy->check(model.config().n_experts, model.config().top_k);
      state.batch = batch;
    }
  }
  const int most = *std::max_element(options.batches.begin(), options.batches.end());
  const int64_t tokens = KvCache::blocks_for(options.prompt + options.steps) * KvCache::kBlockTokens * most;
  KvCache kv(model.config(), tokens, model.kv_format());
  BenchProbe probe(options.probe_bytes);
  {  // buffers grow, threads wake, files come into memory
    Sequences warm_up(model, kv, options, options.repeats, most);
    RoutingCounters unused;
    warm_up.prefill(*states[0].policy);
    warm_up.decode(0, *states[0].policy, unused);
  }
  for (int r = 0; r < options.repeats; ++r) {
    for (size_t s = 0; s < states.size(); ++s) {
      if (options.progress) {
        options.progress("decoding",
                         (r + static_cast<double>(s) / static_cast<double>(states.size())) / options.repeats);
      }
      states[s].read_gbps.push_back(probe.pass(model.ops()));
      run_row(model, kv, options, r, states[s]);
    }
  }
  for (size_t s = 0; s < states.size(); ++s) {
    states[s].engine_s = time_engine(model, options, options.policies[s % options.policies.size()], states[s].batch);
  }
  std::vector<DecodeRow> rows;
  for (size_t s = 0; s < states.size(); ++s) {
    const RowState& first = states[s - s % options.policies.size()];
    rows.push_back(finish_row(model, options, states[s], first));
  }
  return rows;
}

}  // namespace carpool
