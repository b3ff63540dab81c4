// The timing loop of `carpool bench layer`; its tables are in bench_layer_report.cc. See bench_layer.h.
#include "measure/bench_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/error.h"
#include "base/time.h"
#include "measure/ab.h"
#include "measure/ab_tally.h"
#include "measure/bench_weights.h"
#include "routing/policy.h"
#include "routing/scoring.h"
#include "tensor/random_bits.h"

namespace carpool {
namespace {

constexpr int kMostTokens = 4096;  // rows of a step

[[noreturn]] void refuse(const std::string& sentence) { throw Error(ErrorKind::kUsage, sentence); }
[[noreturn]] void refuse_config(const std::string& sentence) { throw Error(ErrorKind::kConfig, sentence); }

void check_range(const char* what, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) refuse(fmt::format("{} must be {} to {}, got {}", what, low, high, value));
}

PanelView gate_up_shape(const LayerOptions& o) {
  const int64_t padded = (o.shape.expert_width + kPanelRows - 1) / kPanelRows * kPanelRows;
  return {o.format, nullptr, 2 * padded, o.shape.width, {1, 1}};
}

PanelView down_shape(const LayerOptions& o) { return {o.format, nullptr, o.shape.width, o.shape.expert_width, {1, 1}}; }

size_t expert_bytes(const LayerOptions& o) { return gate_up_shape(o).bytes() + down_shape(o).bytes(); }

// The layer's rule with one selection bias for all experts: adding it costs what it costs, and the routing stays as
// drawn.
Scoring level_scoring(const ModelShape& shape) {
  Scoring scoring = shape_scoring(shape, 1);
  std::fill(scoring.selection_bias.begin(), scoring.selection_bias.end(), 7.0f);
  return scoring;
}

struct RowState {
  std::unique_ptr<Policy> policy;  // null for forced routing
  ForcedRouting forced;
  int batch = 0;
  RowTimes step, router, policy_time, experts;
  RoutingCounters routing;
  std::vector<double> read_gbps;  // by repeat
};

// The layer's weights and the buffers of a step.
class Layer {
 public:
  Layer(Ops& ops, const LayerOptions& o, int most_tokens)
      : ops_(ops),
        options_(o),
        scoring_(level_scoring(o.shape)),
        copies_(layer_copies(o)),
        gate_up_(ops, gate_up_shape(o), copies_ * o.shape.n_experts, o.seed, "the gate and up matrices of the layer"),
        down_(ops, down_shape(o), copies_ * o.shape.n_experts, ~o.seed, "the down matrices of the layer"),
        router_(ops, {Format::kF32, nullptr, o.shape.n_experts, o.shape.width, {1, 1}}, 1, o.seed + 1, "the router"),
        source_(o.shape.n_experts, o.routing.skew, o.seed) {
    const size_t T = static_cast<size_t>(most_tokens), E = static_cast<size_t>(o.shape.n_experts);
    x_.resize(T * static_cast<size_t>(o.shape.width));
    out_.resize(x_.size());
    for (auto* v : {&logits_, &rank_, &mix_}) v->resize(T * E);
    info_.resize(T);
    RandomBits bits(o.seed);
    for (float& v : x_) v = (static_cast<float>(bits.next() >> 40) * 0x1p-24f - 0.5f) * 3.46f;  // variance 1
  }

  // One step of `row`; the same `step_seed` gives the same logits or the same forced experts.
  void step(RowState& row, uint64_t step_seed) {
    const auto [router_s, policy_s] = row.policy ? route(row, step_seed) : force(row, step_seed);
    weights_.resize(static_cast<size_t>(chosen_.size()));
    double finish_s = 0;
    if (row.policy) {
      const double start = now_seconds();
      finish_weights(scoring_, options_.shape.n_experts, mix(row.batch), chosen_, weights_);
      finish_s = now_seconds() - start;
      count(input(row.batch), plain_, chosen_, scratch_, row.routing);
    } else {
      std::fill(weights_.begin(), weights_.end(), 1.0f / static_cast<float>(options_.shape.top_k));
    }
    const double start = now_seconds();
    ops_.experts(rows(x_, row.batch), next_copy(), chosen_, weights_, rows(out_, row.batch));
    const double experts_s = now_seconds() - start;
    row.router.add_step(router_s);
    row.policy_time.add_step(policy_s + finish_s);
    row.experts.add_step(experts_s);
    row.step.add_step(router_s + policy_s + finish_s + experts_s);
  }

 private:
  struct Seconds {
    double router = 0, policy = 0;
  };

  Seconds route(RowState& row, uint64_t step_seed) {
    const int E = options_.shape.n_experts, T = row.batch;
    const std::span<float> logits(logits_.data(), static_cast<size_t>(T) * static_cast<size_t>(E));
    Seconds s;
    double start = now_seconds();
    ops_.router_logits(rows(x_, T), router_.views()[0], logits);
    s.router = now_seconds() - start;
    source_.draw(step_seed, logits);
    start = now_seconds();
    score(scoring_, E, logits, {rank_.data(), logits.size()}, {mix_.data(), logits.size()});
    row.policy->select(input(T), scratch_, chosen_);
    s.policy = now_seconds() - start;
    select_plain(input(T), scratch_, plain_);
    return s;
  }

  Seconds force(RowState& row, uint64_t step_seed) {
    force_selection(row.forced, options_.shape.n_experts, options_.shape.top_k, step_seed, chosen_);
    return {};
  }

  ExpertWeights next_copy() {
    const auto E = static_cast<size_t>(options_.shape.n_experts);
    const size_t first = turn_++ % static_cast<size_t>(copies_) * E;
    return {gate_up_.views().subspan(first, E), down_.views().subspan(first, E)};
  }

  std::span<const float> mix(int T) const {
    return {mix_.data(), static_cast<size_t>(T) * static_cast<size_t>(options_.shape.n_experts)};
  }
  RouterInput input(int T) const {
    const size_t n = static_cast<size_t>(T) * static_cast<size_t>(options_.shape.n_experts);
    return {{rank_.data(), n},        {mix_.data(), n},     {info_.data(), static_cast<size_t>(T)},
            options_.shape.n_experts, options_.shape.top_k, 0};
  }
  Matrix rows(std::vector<float>& data, int T) const {
    return {data.data(), T, options_.shape.width, options_.shape.width};
  }

  Ops& ops_;
  const LayerOptions& options_;
  Scoring scoring_;
  int copies_;
  RandomPanels gate_up_, down_, router_;
  LogitSource source_;
  size_t turn_ = 0;
  std::vector<float> x_, out_, logits_, rank_, mix_, weights_;
  std::vector<TokenInfo> info_;
  Selection chosen_, plain_;
  Scratch scratch_;
};

std::vector<RowState> make_states(const LayerOptions& options) {
  std::vector<RowState> states;
  for (const ForcedRouting& forced : options.routing.forced) {
    RowState& state = states.emplace_back();
    state.forced = forced;
    state.batch = forced_tokens(forced, options.shape.top_k);
  }
  if (!states.empty()) return states;
  for (const int batch : options.batches) {
    for (const std::string& spec : options.policies) {
      RowState& state = states.emplace_back();
      state.policy = make_policy(spec);
      state.batch = batch;
    }
  }
  return states;
}

LayerRow finish_row(const LayerOptions& options, const RowState& state, const RowState& first) {
  const ModelShape& shape = options.shape;
  LayerRow row;
  row.policy = state.policy ? state.policy->spec() : "forced";
  row.batch = state.batch;
  row.step_ms = state.step.ms();
  row.router_ms = state.router.ms();
  row.policy_ms = state.policy_time.ms();
  row.experts_ms = state.experts.ms();
  row.ratio = paired_ratio(state.step.repeat_ms(), first.step.repeat_ms());
  row.routing = state.routing;
  row.read_gbps = median_with_extremes(state.read_gbps);
  if (state.policy) {
    const auto layers = static_cast<double>(state.routing.layers);
    row.distinct = static_cast<double>(state.routing.distinct_experts) / layers;
    row.plain = static_cast<double>(state.routing.distinct_plain) / layers;
    row.rows_per_expert =
        static_cast<double>(state.routing.slots) / static_cast<double>(state.routing.distinct_experts);
    if (options.routing.skew == 0 && shape.n_group == 1)
      row.uniform = uniform_experts(shape.n_experts, shape.top_k, row.batch);
    row.router_bytes = 4.0 * shape.n_experts * shape.width;
  } else {
    row.distinct = row.plain = state.forced.experts;
    row.rows_per_expert = state.forced.rows;
  }
  row.expert_bytes = row.distinct * static_cast<double>(expert_bytes(options));
  row.floor_share = paired_floor_share(row.expert_bytes + row.router_bytes, state.read_gbps, state.step.repeat_ms());
  return row;
}

}  // namespace

size_t layer_bytes(const LayerOptions& options) {
  return expert_bytes(options) * static_cast<size_t>(options.shape.n_experts);
}

int layer_copies(const LayerOptions& options) {
  if (options.cold_copies > 0) return options.cold_copies;
  return std::max(1, cold_copies_for(layer_bytes(options), last_level_cache()));
}

void check_layer(const LayerOptions& o) {
  check_range("steps", o.steps, 1, 1 << 20);
  check_range("repeats", o.repeats, 1, 1000);
  check_range("cold copies", o.cold_copies, 0, 4096);
  check_columns(o.format, o.shape.width, "the gate matrix of the shape");
  check_columns(o.format, o.shape.expert_width, "the down matrix of the shape");
  for (const ForcedRouting& f : o.routing.forced) {
    if (f.experts > o.shape.n_experts) {
      refuse_config(
          fmt::format("forced routing of {} experts does not fit a layer of {}", f.experts, o.shape.n_experts));
    }
    check_range("the tokens that forced routing needs", forced_tokens(f, o.shape.top_k), 1, kMostTokens);
  }
  if (!o.routing.forced.empty()) return;
  if (o.batches.empty()) refuse("no batch to measure");
  if (o.policies.empty()) refuse("no policy to measure");
  for (const int b : o.batches) check_range("a batch", b, 1, kMostTokens);
  for (const std::string& spec : o.policies) {
    const std::unique_ptr<Policy> policy = make_policy(spec);
    if (policy->layers() > 0) refuse(fmt::format("policy {}: one layer is measured here: give its own value", spec));
    policy->check(o.shape.n_experts, o.shape.top_k);
  }
}

std::vector<LayerRow> run_layer(Ops& ops, const LayerOptions& options) {
  check_layer(options);
  std::vector<RowState> states = make_states(options);
  int most = 1;
  for (const RowState& state : states) most = std::max(most, state.batch);
  BenchProbe probe(options.probe_bytes);
  Layer layer(ops, options, most);
  {  // buffers grow and threads wake; the times go nowhere
    std::vector<RowState> warm_up = make_states(options);
    for (RowState& state : warm_up) layer.step(state, ~options.seed);
  }
  for (int r = 0; r < options.repeats; ++r) {
    for (size_t s = 0; s < states.size(); ++s) {
      if (options.progress) {
        options.progress("layer", (r + static_cast<double>(s) / static_cast<double>(states.size())) / options.repeats);
      }
      RowState& state = states[s];
      state.read_gbps.push_back(probe.pass(ops));
      for (int t = 0; t < options.steps; ++t) {
        layer.step(state, options.seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(r * options.steps + t));
      }
      for (RowTimes* times : {&state.step, &state.router, &state.policy_time, &state.experts}) times->end_repeat();
    }
  }
  const size_t group = options.routing.forced.empty() ? options.policies.size() : states.size();
  std::vector<LayerRow> rows;
  for (size_t s = 0; s < states.size(); ++s) {
    rows.push_back(finish_row(options, states[s], states[s - s % group]));
  }
  return rows;
}

// Normal equations of the relative errors: each point's row and right side are divided by its time, so every right side
// is 1.
std::optional<RowCost> fit_row_cost(const std::vector<CostPoint>& points) {
  double m[3][4] = {};
  for (const CostPoint& p : points) {
    const double row[3] = {1 / p.ms, p.experts / p.ms, static_cast<double>(p.experts) * (p.rows - 1) / p.ms};
    for (int i = 0; i < 3; ++i) {
      for (int j = 0; j < 3; ++j) m[i][j] += row[i] * row[j];
      m[i][3] += row[i];
    }
  }
  double scale[3];  // the columns differ by orders of magnitude: singular is meant relative to them
  for (int i = 0; i < 3; ++i) {
    scale[i] = std::sqrt(m[i][i]);
    if (!(scale[i] > 0)) return std::nullopt;
  }
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) m[i][j] /= scale[i] * scale[j];
    m[i][3] /= scale[i];
  }
  for (int i = 0; i < 3; ++i) {  // symmetric positive definite: elimination needs no pivoting
    if (m[i][i] < 1e-9) return std::nullopt;
    for (int k = i + 1; k < 3; ++k) {
      const double f = m[k][i] / m[i][i];
      for (int j = i; j < 4; ++j) m[k][j] -= f * m[i][j];
    }
  }
  double v[3];
  for (int i = 2; i >= 0; --i) {
    v[i] = m[i][3];
    for (int j = i + 1; j < 3; ++j) v[i] -= m[i][j] * v[j];
    v[i] /= m[i][i];
  }
  RowCost cost{v[0] / scale[0], v[1] / scale[1], v[2] / scale[2], 0, static_cast<int>(points.size())};
  double squares = 0;
  for (const CostPoint& p : points) {
    const double fitted = cost.fixed + cost.expert * p.experts + cost.row * p.experts * (p.rows - 1);
    squares += (fitted / p.ms - 1) * (fitted / p.ms - 1);
  }
  cost.relative_error = std::sqrt(squares / static_cast<double>(points.size()));
  return cost;
}

}  // namespace carpool
