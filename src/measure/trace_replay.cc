#include "measure/trace_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <random>

#include "base/error.h"
#include "measure/trace_placement.h"
#include "model/routing_tables.h"
#include "routing/policy.h"
#include "routing/rank.h"

namespace carpool {
namespace {

struct Draw {
  size_t sequence;
  int position;
};

// Batches of rows, a function of the seed. std::mt19937_64 and its reduction here are the same everywhere.
class Sampler {
 public:
  Sampler(const Trace& trace, const ReplayOptions& options) : trace_(trace), options_(options), random_(options.seed) {
    order_.resize(trace.sequences.size());
    std::iota(order_.begin(), order_.end(), size_t{0});
  }

  void draw(int batch, std::vector<Draw>& rows) {
    rows.clear();
    const size_t n = order_.size();
    if (options_.with_replacement) {
      for (int b = 0; b < batch; ++b) rows.push_back({below(n), 0});
    } else {
      for (size_t b = 0; b < static_cast<size_t>(batch); ++b) {
        std::swap(order_[b], order_[b + below(n - b)]);
        rows.push_back({order_[b], 0});
      }
    }
    int shortest = std::numeric_limits<int>::max();
    for (const Draw& row : rows) shortest = std::min(shortest, trace_.sequences[row.sequence].positions);
    const bool aligned = options_.sampling == ReplayOptions::Sampling::kAligned;
    const auto together = static_cast<int>(aligned ? below(static_cast<size_t>(shortest)) : 0);
    for (Draw& row : rows) {
      const auto positions = static_cast<size_t>(trace_.sequences[row.sequence].positions);
      row.position = aligned ? together : static_cast<int>(below(positions));
    }
  }

 private:
  // Uniform in [0, n): numbers past the last whole multiple of n are drawn again.
  size_t below(size_t n) {
    const uint64_t limit = std::numeric_limits<uint64_t>::max() / n * n;
    uint64_t x = random_();
    while (x >= limit) x = random_();
    return static_cast<size_t>(x % n);
  }

  const Trace& trace_;
  const ReplayOptions& options_;
  std::mt19937_64 random_;
  std::vector<size_t> order_;
};

// The router's input of one layer of a batch: all scores where the trace has them, else its experts in their order.
class Scores {
 public:
  Scores(const Trace& trace, int batch) : trace_(trace) {
    const size_t n = static_cast<size_t>(batch) * static_cast<size_t>(trace.n_experts);
    rank_.resize(n);
    mix_.resize(n);
    tokens_.resize(static_cast<size_t>(batch));
  }

  RouterInput of(const std::vector<Draw>& rows, size_t l) {
    const auto E = static_cast<size_t>(trace_.n_experts), L = trace_.layers.size();
    for (size_t t = 0; t < rows.size(); ++t) {
      const TraceSequence& s = trace_.sequences[rows[t].sequence];
      float *rank = rank_.data() + t * E, *mix = mix_.data() + t * E;
      const auto position = static_cast<size_t>(rows[t].position);
      if (!s.rank.empty()) {
        const size_t at = (position * L + l) * E;
        std::copy_n(s.rank.begin() + static_cast<std::ptrdiff_t>(at), E, rank);
        std::copy_n(s.mix.begin() + static_cast<std::ptrdiff_t>(at), E, mix);
        continue;
      }
      std::fill_n(rank, E, -std::numeric_limits<float>::infinity());
      std::fill_n(mix, E, 0.0f);
      const std::span<const int16_t> experts = trace_.experts(s, rows[t].position, l);
      for (size_t i = 0; i < experts.size() && experts[i] >= 0; ++i) {
        const auto e = static_cast<size_t>(experts[i]);
        rank[e] = static_cast<float>(experts.size() - i);
        mix[e] = s.weights.empty() ? 1.0f : s.weights[position * trace_.slots() + l * experts.size() + i];
      }
    }
    return {rank_, mix_, tokens_, trace_.n_experts, trace_.top_k, trace_.layers[l]};
  }

 private:
  const Trace& trace_;
  std::vector<float> rank_, mix_;
  std::vector<TokenInfo> tokens_;
};

// Distinct experts of a selection, ascending.
void distinct(const Selection& chosen, int n_experts, std::vector<char>& seen, std::vector<int>& out) {
  seen.assign(static_cast<size_t>(n_experts), 0);
  for (const int e : chosen.experts()) seen[static_cast<size_t>(e)] = 1;
  out.clear();
  for (int e = 0; e < n_experts; ++e) {
    if (seen[static_cast<size_t>(e)]) out.push_back(e);
  }
}

// How often each expert was chosen, by layer: what placements balance.
std::vector<std::vector<double>> loads(const Trace& trace) {
  std::vector<std::vector<double>> load(trace.layers.size(), std::vector<double>(static_cast<size_t>(trace.n_experts)));
  for (const TraceSequence& s : trace.sequences) {
    for (int p = 0; p < s.positions; ++p) {
      for (size_t l = 0; l < load.size(); ++l) {
        for (const int16_t e : trace.experts(s, p, l)) {
          if (e >= 0) ++load[l][static_cast<size_t>(e)];
        }
      }
    }
  }
  return load;
}

struct Plan {
  int ranks;
  std::string kind;
  std::vector<ExpertPlacement> layers;
};

struct Sums {
  std::vector<double> distinct, plain;  // per batch, mean over layers
  double slots = 0, mass = 0, plain_mass = 0, layers = 0, rows = 0;
  std::vector<double> busiest, mean_rank;  // per plan, sums over layers
};

void require_fit(const Trace& trace, Policy& policy) {
  if (!policy.tables_file().empty() && trace.routers.empty()) {
    throw Error(
        ErrorKind::kConfig,
        fmt::format("policy {} cannot be replayed on {}: the trace does not say of which model its routers are, so "
                    "nothing says that the tables are of it; traces that carpool records do",
                    policy.spec(), trace.source));
  }
  give_tables(policy, trace.routers, trace.layers);
  policy.check(trace.n_experts, trace.top_k);
  const int last = *std::max_element(trace.layers.begin(), trace.layers.end());
  if (policy.layers() != 0) check_layers(policy, std::max(policy.layers(), last + 1));
  const PolicyProperties& p = policy.properties();
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::kConfig,
                fmt::format("policy {} cannot be replayed on {}: {}", policy.spec(), trace.source, why));
  };
  if (trace.has_scores() || policy.is_plain(trace.top_k)) return;
  if (!trace.ranked) refuse("its experts are not in the order of their scores");
  // What the chosen experts weigh says nothing of the share of the whole that a row's best have, or of what others
  // would add to a pool.
  if (!p.by_rank)
    refuse(
        "it goes by weights, and the trace has not those of all experts (trace record --scores and --trace-scores "
        "write them)");
}

std::vector<Plan> make_plans(const Trace& trace, const ReplayOptions& options) {
  std::vector<Plan> plans;
  if (options.ranks.empty()) return plans;
  const auto load = loads(trace);
  for (const int ranks : options.ranks) {
    for (const std::string& kind : options.placements) {
      Plan plan{ranks, kind, {}};
      for (const auto& layer : load) plan.layers.push_back(ExpertPlacement::make(kind, ranks, layer));
      plans.push_back(std::move(plan));
    }
  }
  return plans;
}

double mass_of(const RouterInput& in, const Selection& s) {
  double sum = 0;
  for (int t = 0; t < s.rows(); ++t) {
    for (const int e : s.row(t)) sum += static_cast<double>(in.weight_row(t)[static_cast<size_t>(e)]);
  }
  return sum;
}

Estimate with_interval(const std::vector<double>& values) {
  const double m = mean(values);
  double squares = 0;
  for (const double v : values) squares += (v - m) * (v - m);
  const auto n = static_cast<double>(values.size());
  const double half = n > 1 ? 1.96 * std::sqrt(squares / (n - 1) / n) : 0;
  return {m, m - half, m + half};
}

class Replay {
 public:
  Replay(const Trace& trace, const ReplayOptions& options) : trace_(trace), options_(options) {
    for (const std::string& spec : options.policies) {
      policies_.push_back(make_policy(spec));
      require_fit(trace, *policies_.back());
    }
    plans_ = make_plans(trace, options);
  }

  std::vector<Sums> run(int batch, const std::function<void(double)>& progress) {
    std::vector<Sums> sums(policies_.size());
    for (Sums& s : sums) s.busiest.resize(plans_.size()), s.mean_rank.resize(plans_.size());
    Sampler sampler(trace_, options_);
    Scores scores(trace_, batch);
    std::vector<Draw> rows;
    for (int d = 0; d < options_.draws; ++d) {
      sampler.draw(batch, rows);
      for (Sums& s : sums) s.distinct.push_back(0), s.plain.push_back(0);
      for (size_t l = 0; l < trace_.layers.size(); ++l) add_layer(scores.of(rows, l), l, sums);
      if (progress && d % 64 == 0) progress(static_cast<double>(d) / options_.draws);
    }
    return sums;
  }

  const std::vector<std::unique_ptr<Policy>>& policies() const { return policies_; }
  const std::vector<Plan>& plans() const { return plans_; }

 private:
  void add_layer(const RouterInput& in, size_t l, std::vector<Sums>& sums) {
    const auto share = 1.0 / static_cast<double>(trace_.layers.size());
    select_plain(in, scratch_, plain_);
    distinct(plain_, in.n_experts, seen_, plain_experts_);
    const double plain_mass = mass_of(in, plain_);
    for (size_t p = 0; p < policies_.size(); ++p) {
      Sums& s = sums[p];
      policies_[p]->select(in, scratch_, chosen_);
      distinct(chosen_, in.n_experts, seen_, experts_);
      s.distinct.back() += share * static_cast<double>(experts_.size());
      s.plain.back() += share * static_cast<double>(plain_experts_.size());
      s.slots += chosen_.size();
      s.mass += mass_of(in, chosen_);
      s.plain_mass += plain_mass;
      s.rows += in.rows();
      ++s.layers;
      for (size_t i = 0; i < plans_.size(); ++i) {
        plans_[i].layers[l].count(experts_, counts_);
        s.busiest[i] += *std::max_element(counts_.begin(), counts_.end());
        s.mean_rank[i] += static_cast<double>(experts_.size()) / plans_[i].ranks;
      }
    }
  }

  const Trace& trace_;
  const ReplayOptions& options_;
  std::vector<std::unique_ptr<Policy>> policies_;
  std::vector<Plan> plans_;
  Scratch scratch_;
  Selection plain_, chosen_;
  std::vector<char> seen_;
  std::vector<int> experts_, plain_experts_, counts_;
};

}  // namespace

std::vector<ReplayRow> replay(const Trace& trace, const ReplayOptions& options, const BenchProgress& progress) {
  Replay run(trace, options);
  for (const int batch : options.batches) {
    if (batch <= static_cast<int>(trace.sequences.size()) || options.with_replacement) continue;
    throw Error(ErrorKind::kConfig,
                fmt::format("a batch of {} needs {} sequences, {} has {}; --with-replacement draws some of them twice",
                            batch, batch, trace.source, trace.sequences.size()));
  }
  std::vector<ReplayRow> rows;
  for (const int batch : options.batches) {
    const auto say = [&](double share) { progress(fmt::format("batch {}", batch), share); };
    const std::vector<Sums> sums = run.run(batch, progress ? std::function<void(double)>(say) : nullptr);
    for (size_t p = 0; p < sums.size(); ++p) {
      const Sums& s = sums[p];
      ReplayRow row;
      row.policy = run.policies()[p]->spec();
      row.batch = batch;
      row.distinct = with_interval(s.distinct);
      row.distinct_plain = with_interval(s.plain);
      row.ratio = row.distinct.value / row.distinct_plain.value;
      row.slots = s.slots / s.rows;
      if ((trace.has_weights() || trace.has_scores()) && s.plain_mass > 0) row.kept_mass = s.mass / s.plain_mass;
      row.busiest = row.distinct.value;
      row.imbalance = 1;
      const auto timed = [&](ReplayRow r) {
        if (options.base_us && options.expert_us) r.layer_us = *options.base_us + *options.expert_us * r.busiest;
        rows.push_back(std::move(r));
      };
      timed(row);
      for (size_t i = 0; i < run.plans().size(); ++i) {
        ReplayRow planned = row;
        planned.ranks = run.plans()[i].ranks;
        planned.placement = run.plans()[i].kind;
        planned.busiest = s.busiest[i] / s.layers;
        planned.imbalance = s.busiest[i] / s.mean_rank[i];
        timed(std::move(planned));
      }
    }
  }
  return rows;
}

TraceStats trace_stats(const Trace& trace) {
  TraceStats out;
  double pairs = 0, kept = 0, ties = 0, rows = 0;
  std::vector<double> profile(static_cast<size_t>(trace.top_k));
  for (const TraceSequence& s : trace.sequences) {
    for (int p = 0; p < s.positions; ++p) {
      for (size_t l = 0; l < trace.layers.size(); ++l) {
        const auto now = trace.experts(s, p, l);
        if (!s.weights.empty()) {
          const float* w = s.weights.data() + static_cast<size_t>(p) * trace.slots() + l * now.size();
          const double sum = std::accumulate(w, w + now.size(), 0.0);
          bool tie = false;
          for (size_t i = 0; i < now.size(); ++i) {
            if (sum > 0) profile[i] += static_cast<double>(w[i]) / sum;
            tie = tie || (i > 0 && w[i] == w[i - 1] && now[i] >= 0);
          }
          ties += tie ? 1 : 0;
          ++rows;
        }
        if (p == 0) continue;
        const auto before = trace.experts(s, p - 1, l);
        for (const int16_t e : now) {
          if (e < 0) continue;
          ++pairs;
          kept += std::find(before.begin(), before.end(), e) != before.end() ? 1 : 0;
        }
      }
    }
  }
  out.reuse = pairs > 0 ? kept / pairs : 0;
  if (rows > 0) {
    out.ties = ties / rows;
    for (double& share : profile) share /= rows;
    out.profile = profile;
  }
  for (const std::vector<double>& layer : loads(trace)) {
    const double total = std::accumulate(layer.begin(), layer.end(), 0.0);
    if (total == 0) continue;  // no token has an expert there
    double entropy = 0, used = 0;
    for (const double n : layer) {
      if (n > 0) entropy -= n / total * std::log(n / total), ++used;
    }
    out.busiest_share += *std::max_element(layer.begin(), layer.end()) / total;
    out.even_experts += std::exp(entropy);
    out.used_experts += used;
  }
  const auto L = static_cast<double>(trace.layers.size());
  out.busiest_share /= L, out.even_experts /= L, out.used_experts /= L;
  return out;
}

}  // namespace carpool
