// The two passes of a calibration. See calibrate.h.
#include "measure/calibrate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/memory.h"
#include "base/time.h"
#include "measure/calibration_progress.h"

namespace carpool {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::kUsage, what); }

// A policy that decides for one layer; all others are plain.
class OneLayer final : public Policy {
 public:
  OneLayer(int layer, const std::string& spec) : layer_(layer), inner_(make_policy(spec)) {}

  void select(const RouterInput& in, Scratch& scratch, Selection& out) const override {
    if (in.layer != layer_) return select_plain(in, scratch, out);
    inner_->select(in, scratch, out);
  }
  const PolicyProperties& properties() const override { return inner_->properties(); }
  std::string spec() const override { return fmt::format("layer {}: {}", layer_, inner_->spec()); }
  bool is_plain(int top_k) const override { return inner_->is_plain(top_k); }
  void check(int n_experts, int top_k) const override { inner_->check(n_experts, top_k); }

 private:
  int layer_;
  std::unique_ptr<Policy> inner_;
};

std::vector<int> moe_layers_of(const ModelConfig& config) {
  std::vector<int> layers;
  for (size_t l = 0; l < config.moe_layer.size(); ++l) {
    if (config.moe_layer[l]) layers.push_back(static_cast<int>(l));
  }
  return layers;
}

std::string key_of(const Model& model, const Documents& documents, const CalibrateOptions& o) {
  return fmt::format("model {}\ninputs {}\n{} documents of {} tokens\nprobes: {} documents, batch {}, k0 {}\n",
                     router_hash(model), o.inputs, documents.size(), documents[0].size(), o.probe_documents, o.batch,
                     fmt::join(o.k0, " "));
}

class Calibrator {
 public:
  Calibrator(Model& model, const Documents& documents, const CalibrateOptions& options)
      : model_(model),
        documents_(documents),
        options_(options),
        layers_(moe_layers_of(model.config())),
        saved_(now_seconds()) {
    state_.key = key_of(model, documents, options);
    const auto E = static_cast<uint64_t>(model.config().n_experts);
    require_memory(layers_.size() * (3 * E * E + 4 * E + 2) * sizeof(double), "the sums over experts of all layers");
    for (size_t m = 0; m < layers_.size(); ++m) state_.sums.emplace_back(model.config().n_experts);
    if (options.progress_file.empty() || options.restart) return;
    load_progress(options.progress_file, options.k0.size(), state_);
    if (state_.documents > std::ssize(documents)) refuse("the progress file has more documents than the text");
  }

  Calibration run() {
    Calibration out;
    out.resumed_documents = state_.documents;
    out.resumed_layers = static_cast<int>(state_.probes.size());
    gather();
    if (options_.probe_documents > 0) probe();
    finish(out);
    return out;
  }

 private:
  void show(const std::string& stage, double share) const {
    if (options_.progress) options_.progress(stage, share);
  }

  void save(bool last) {
    if (options_.progress_file.empty()) return;
    if (!last && now_seconds() - saved_ < options_.save_every_s) return;
    save_progress(options_.progress_file, state_);
    saved_ = now_seconds();
  }

  void gather() {
    const auto n = static_cast<int>(documents_.size());
    if (state_.documents == n) return;
    const int tokens = static_cast<int>(documents_[0].size());
    KvCache kv(model_.config(), int64_t{KvCache::blocks_for(tokens)} * KvCache::kBlockTokens, model_.kv_format());
    std::vector<int> blocks;
    CARPOOL_CHECK(kv.take(KvCache::blocks_for(tokens), blocks));
    const std::unique_ptr<Policy> plain = make_policy("topk");
    ExpertGatherer gatherer(model_, state_.sums);
    Rows rows;
    while (state_.documents < n) {
      const std::vector<int>& document = documents_[static_cast<size_t>(state_.documents)];
      for (int begin = 0; begin < tokens; begin += ExpertGatherer::kRows) {
        rows.clear();
        for (int p = begin; p < std::min(begin + ExpertGatherer::kRows, tokens); ++p) {
          rows.push(document[static_cast<size_t>(p)], p, blocks.data(), {Phase::kPrefill, false, 0}, false);
        }
        model_.forward(rows, kv, *plain, {.observer = &gatherer});
        show("running every expert", (state_.documents + static_cast<double>(begin) / tokens) / n);
      }
      ++state_.documents;
      save(state_.documents == n);
    }
  }

  void probe() {
    const Documents some(documents_.begin(), documents_.begin() + options_.probe_documents);
    while (state_.probes.size() < layers_.size()) {
      const size_t m = state_.probes.size();
      std::vector<std::unique_ptr<OneLayer>> policies;
      std::vector<const Policy*> pointers;
      for (const int k0 : options_.k0) {
        policies.push_back(std::make_unique<OneLayer>(layers_[m], fmt::format("oea:k0={},guard=off", k0)));
        pointers.push_back(policies.back().get());
      }
      const QualityRun run = teacher_forced(model_, pointers, some, options_.batch, [&](double share) {
        show("re-routing one layer at a time", (static_cast<double>(m) + share) / static_cast<double>(layers_.size()));
      });
      std::vector<Probe>& probes = state_.probes.emplace_back();
      for (const Quality& q : run.quality) probes.push_back({q.kl_mean, q.cross_entropy_delta.value});
      save(m + 1 == layers_.size());
    }
  }

  void finish(Calibration& out) {
    const ModelConfig& c = model_.config();
    out.tables.n_experts = c.n_experts;
    out.tables.top_k = c.top_k;
    out.tables.layers.resize(c.moe_layer.size());
    std::vector<std::vector<double>> loss;
    for (const auto& layer : state_.probes) {
      std::vector<double>& row = loss.emplace_back();
      for (const Probe& p : layer) row.push_back(p.kl);
    }
    std::vector<int> k0;
    if (!loss.empty()) k0 = choose_k0(loss, options_.k0, c.top_k, options_.mean_k0);
    for (size_t m = 0; m < layers_.size(); ++m) {
      LayerTables& tables = out.tables.layers[static_cast<size_t>(layers_[m])];
      tables = tables_of_sums(state_.sums[m], options_.resident, fmt::format("layer {}", layers_[m]));
      if (!k0.empty()) tables.k0 = k0[m];
      LayerCalibration report = summary_of(tables);
      report.layer = layers_[m];
      const std::span<const double> slots = state_.sums[m].slots();
      report.unused = static_cast<int>(std::count(slots.begin(), slots.end(), 0.0));
      if (!k0.empty()) report.probes = state_.probes[m];
      out.layers.push_back(std::move(report));
    }
    out.tokens = static_cast<int64_t>(state_.sums.front().totals()[0]);
    out.tables.check("the calibration");
  }

  static LayerCalibration summary_of(const LayerTables& tables) {
    LayerCalibration out;
    out.k0 = tables.k0;
    const size_t E = tables.norm.size();
    for (size_t s = 0; s < E; ++s) {
      double best = -1, least = 1;
      for (size_t t = 0; t < E; ++t) {
        if (s == t) continue;
        const auto alike = static_cast<double>(tables.similarity[s * E + t]);
        out.mean_similarity += alike / static_cast<double>(E * (E - 1));
        best = std::max(best, alike);
        least = std::min(least, static_cast<double>(tables.fold_loss[s * E + t]));
      }
      out.mean_best_similarity += best / static_cast<double>(E);
      out.mean_best_loss += least / static_cast<double>(E);
    }
    return out;
  }

  Model& model_;
  const Documents& documents_;
  const CalibrateOptions& options_;
  std::vector<int> layers_;
  double saved_;
  CalibrationProgress state_;
};

}  // namespace

std::vector<int> choose_k0(const std::vector<std::vector<double>>& loss, const std::vector<int>& k0, int top_k,
                           double mean_k0) {
  std::vector<int> choices = k0;
  choices.push_back(top_k);
  std::vector<size_t> at(loss.size(), 0);
  const auto loss_at = [&](size_t l, size_t i) { return i < k0.size() ? loss[l][i] : 0.0; };
  double left = (mean_k0 - choices[0]) * static_cast<double>(loss.size()) + 1e-9;
  while (true) {
    size_t best_layer = loss.size(), best_choice = 0;
    double best_gain = 0;
    for (size_t l = 0; l < loss.size(); ++l) {
      for (size_t i = at[l] + 1; i < choices.size(); ++i) {
        const int more = choices[i] - choices[at[l]];
        const double gain = (loss_at(l, at[l]) - loss_at(l, i)) / more;
        if (more > left || gain <= best_gain) continue;
        best_gain = gain;
        best_layer = l;
        best_choice = i;
      }
    }
    if (best_layer == loss.size()) break;
    left -= choices[best_choice] - choices[at[best_layer]];
    at[best_layer] = best_choice;
  }
  std::vector<int> out;
  for (const size_t i : at) out.push_back(choices[i]);
  return out;
}

void check_calibrate(const ModelConfig& config, const CalibrateOptions& o) {
  if (config.moe_layers() == 0) {
    throw Error(ErrorKind::kConfig, "the model has no routed experts: there is nothing to calibrate");
  }
  const int E = config.n_experts, K = config.top_k;
  if (E < 2) throw Error(ErrorKind::kConfig, "layers of one expert have nothing to route");
  if (o.resident < 0 || o.resident > E)
    refuse(fmt::format("{} resident experts of {}: must be 0 to {}", o.resident, E, E));
  if (o.documents < 1) refuse(fmt::format("{} documents: at least 1 is needed", o.documents));
  if (o.probe_documents == 0) return;
  if (o.probe_documents > o.documents) {
    refuse(fmt::format("{} documents to probe with are more than the {} of the text", o.probe_documents, o.documents));
  }
  if (o.batch < 2 || o.probe_documents % o.batch != 0) {
    refuse(fmt::format("{} documents do not fill batches of {} rows, which must be 2 or more", o.probe_documents,
                       o.batch));
  }
  if (K < 2) refuse("one expert per token leaves no k0 to probe; leave the sensitivity out");
  if (o.k0.empty()) refuse("no k0 to probe");
  for (size_t i = 0; i < o.k0.size(); ++i) {
    const bool ascends = i == 0 || o.k0[i] > o.k0[i - 1];
    if (o.k0[i] < 1 || o.k0[i] >= K || !ascends) {
      refuse(fmt::format("the k0 to probe must ascend from 1 to {}, got {}", K - 1, fmt::join(o.k0, ",")));
    }
  }
  if (!(o.mean_k0 >= o.k0[0] && o.mean_k0 <= K)) {
    refuse(fmt::format("a mean k0 of {} must be {} to {}", o.mean_k0, o.k0[0], K));
  }
}

Calibration calibrate(Model& model, const Documents& documents, const CalibrateOptions& options) {
  CARPOOL_CHECK(std::ssize(documents) == options.documents);
  check_calibrate(model.config(), options);
  check_fits(static_cast<int>(documents[0].size()), model.config());
  return Calibrator(model, documents, options).run();
}

}  // namespace carpool
