#include "measure/layer_k0.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"

namespace carpool {
namespace {

constexpr double kLeast = 1e-12;  // nats and experts that count as some

}  // namespace

LayerK0::LayerK0(std::vector<K0Effect> uniform, int top_k, std::vector<bool> moe_layer)
    : uniform_(std::move(uniform)), top_k_(top_k), moe_layer_(std::move(moe_layer)) {
  CARPOOL_CHECK(!uniform_.empty());
  for (size_t l = 0; l < moe_layer_.size(); ++l) {
    if (moe_layer_[l]) layers_.push_back(static_cast<int>(l));
  }
}

std::string LayerK0::spec_of(const std::vector<int>& k0) const {
  std::vector<int> all(moe_layer_.size(), 0);
  for (size_t m = 0; m < layers_.size(); ++m) all[static_cast<size_t>(layers_[m])] = k0[m];
  return fmt::format("oea:k0={}", fmt::join(all, "/"));
}

std::vector<std::string> LayerK0::probes(int near) {
  near_ = near;
  // The nearest setting below and the nearest above; one of them where there is no other.
  const auto above = std::find_if(uniform_.begin(), uniform_.end(), [&](const K0Effect& e) { return e.k0 > near; });
  const auto below = std::find_if(uniform_.rbegin(), uniform_.rend(), [&](const K0Effect& e) { return e.k0 < near; });
  std::vector<int> probed;
  if (below != uniform_.rend()) probed.push_back(below->k0);
  if (above != uniform_.end()) probed.push_back(above->k0);
  if (probed.empty()) probed.push_back(uniform_.front().k0);
  std::vector<std::string> specs;
  probes_.clear();
  for (size_t m = 0; m < layers_.size(); ++m) {
    for (const int k0 : probed) {
      std::vector<int> all(layers_.size(), top_k_);
      all[m] = k0;
      probes_.push_back({m, spec_of(all), {k0, 0, 0}});
      specs.push_back(probes_.back().spec);
    }
  }
  return specs;
}

void LayerK0::learn(const std::vector<CompareCell>& cells, const std::function<double(const CompareCell&)>& cost) {
  for (Probe& probe : probes_) {
    const auto cell = std::find_if(cells.begin(), cells.end(), [&](const auto& c) { return c.policy == probe.spec; });
    CARPOOL_CHECK(cell != cells.end());
    probe.effect.cost = std::max(cost(*cell), kLeast);
    const double layers = static_cast<double>(layers_.size());  // the others are plain, so the difference is its own
    probe.effect.saved = std::max((cell->distinct_plain - cell->distinct) * layers, 0.0);
  }
}

// From the nearest probe of the layer, along the uniform settings' own curve; of two as near the geometric mean.
K0Effect LayerK0::effect(size_t layer, size_t choice) const {
  if (choice == uniform_.size()) return {top_k_, 0, 0};
  const K0Effect& at = uniform_[choice];
  int nearest = top_k_;
  for (const Probe& p : probes_) {
    if (p.layer == layer) nearest = std::min(nearest, std::abs(p.effect.k0 - at.k0));
  }
  double log_cost = 0, saved = 0, n = 0;
  for (const Probe& p : probes_) {
    if (p.layer != layer || std::abs(p.effect.k0 - at.k0) != nearest) continue;
    const auto own = std::find_if(uniform_.begin(), uniform_.end(), [&](const auto& u) { return u.k0 == p.effect.k0; });
    log_cost += std::log(p.effect.cost * std::max(at.cost, kLeast) / std::max(own->cost, kLeast));
    saved += p.effect.saved * at.saved / std::max(own->saved, kLeast);
    n += 1;
  }
  return {at.k0, std::exp(log_cost / n), saved / n};
}

// What a layer costs alone does not add up to what all cost together; at the setting nearest to the probes it is made
// to.
double LayerK0::scale() const {
  size_t choice = 0;
  for (size_t i = 1; i < uniform_.size(); ++i) {
    if (std::abs(uniform_[i].k0 - near_) < std::abs(uniform_[choice].k0 - near_)) choice = i;
  }
  double sum = 0;
  for (size_t m = 0; m < layers_.size(); ++m) sum += effect(m, choice).cost;
  return std::max(uniform_[choice].cost, kLeast) / std::max(sum, kLeast);
}

std::string LayerK0::assign(double budget) const {
  const double scaled = scale();
  std::vector<std::vector<K0Effect>> effects(layers_.size());
  for (size_t m = 0; m < layers_.size(); ++m) {
    for (size_t i = 0; i <= uniform_.size(); ++i) effects[m].push_back(effect(m, i));
  }
  std::vector<size_t> at(layers_.size(), uniform_.size());
  double left = budget;
  while (true) {
    size_t best_layer = layers_.size(), best_choice = 0;
    double best_gain = 0, best_cost = 0;
    for (size_t m = 0; m < layers_.size(); ++m) {
      const K0Effect& now = effects[m][at[m]];
      for (size_t i = 0; i < at[m]; ++i) {
        const double cost = std::max(scaled * (effects[m][i].cost - now.cost), kLeast);
        const double gain = (effects[m][i].saved - now.saved) / cost;
        if (cost > left || gain <= best_gain) continue;
        best_gain = gain;
        best_cost = cost;
        best_layer = m;
        best_choice = i;
      }
    }
    if (best_layer == layers_.size()) break;
    left -= best_cost;
    at[best_layer] = best_choice;
  }
  if (std::all_of(at.begin(), at.end(), [&](size_t i) { return i == at[0]; })) return "";
  std::vector<int> k0;
  for (size_t m = 0; m < at.size(); ++m) k0.push_back(effects[m][at[m]].k0);
  return spec_of(k0);
}

}  // namespace carpool
