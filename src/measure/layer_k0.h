// A k0 of OEA for each layer of a model, from what lowering it costs and saves in one layer alone.
//
// Owns the probes (which specs to measure), what they say of every k0 of every layer, and the greedy choice: from plain
// routing everywhere, the step that saves most experts for the divergence it adds, until a budget is full. arXiv
// 2511.02237 leaves a k0 by layer open; sensitivity by layer is common in pruning, the choice here is ours. Does not
// measure. See tune.h; `carpool calibrate` makes tables of k0 for a given mean instead (calibrate.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "measure/compare.h"

namespace carpool {

// What one k0 does: cost in nats per token, distinct experts saved per step, summed over the layers concerned.
struct K0Effect {
  int k0 = 0;
  double cost = 0, saved = 0;
};

class LayerK0 {
 public:
  // `uniform`: what settings oea:k0=N do on all layers, ascending, N < K. `moe_layer` [layers of the model].
  LayerK0(std::vector<K0Effect> uniform, int top_k, std::vector<bool> moe_layer);

  // Specs that lower k0 in one layer alone, to the settings of `uniform` next to `near` (1 to K); for every MoE layer
  // in turn. All other layers keep K.
  std::vector<std::string> probes(int near);
  // Takes the cells of the probes, in any order among others; `cost` is what a cell costs. Error{kInternal} when one is
  // missing.
  void learn(const std::vector<CompareCell>& cells, const std::function<double(const CompareCell&)>& cost);
  // The spec whose sum of costs comes nearest to `budget` from below, greedily, scaled so that the sum for a uniform k0
  // is what it costs; "" when that is the same k0 in all layers. After learn().
  std::string assign(double budget) const;

 private:
  struct Probe {
    size_t layer = 0;  // among the MoE layers
    std::string spec;
    K0Effect effect;
  };

  std::string spec_of(const std::vector<int>& k0) const;  // of the MoE layers
  K0Effect effect(size_t layer, size_t choice) const;     // of choices_[choice], as the probes let expect
  double scale() const;

  std::vector<K0Effect> uniform_;
  int top_k_;
  std::vector<bool> moe_layer_;
  std::vector<int> layers_;  // the MoE layers' numbers
  int near_ = 0;
  std::vector<Probe> probes_;
};

}  // namespace carpool
