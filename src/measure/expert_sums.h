// What calibration gathers about the routed experts of each MoE layer: sums over the tokens of a text.
//
// Owns ExpertSums (the sums of one layer, in one vector, so that they can be kept in a file and gone on with) and
// ExpertGatherer, which runs every expert of every MoE layer on every token that a model computes: E experts where
// routing runs K. Sums are in double, token after token, so they do not depend on threads. Read next: calibrate.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"
#include "routing/tables.h"

namespace carpool {

// Of one layer with E experts. E_e(x) is what expert e makes of token x; w_e(x) its weight where plain routing gives
// the token to it. Pairs (s, t) are at s * E + t.
class ExpertSums {
 public:
  explicit ExpertSums(int n_experts);

  int n_experts() const { return static_cast<int>(experts_); }
  std::span<double> values() { return values_; }
  std::span<const double> values() const { return values_; }

  // [E, E] over all tokens: E_s . E_t
  std::span<double> gram() { return part(0, experts_ * experts_); }
  // [E, E] over the tokens of s: w_s^2 E_s . E_t, and w_s^2 |E_t|^2
  std::span<double> cross() { return part(experts_ * experts_, experts_ * experts_); }
  std::span<double> energy() { return part(2 * experts_ * experts_, experts_ * experts_); }
  // [E] tokens of e; over them |E_e| and w_e |E_e|; |E_e| over all tokens
  std::span<double> slots() { return vector(0); }
  std::span<double> norms() { return vector(1); }
  std::span<double> contributions() { return vector(2); }
  std::span<double> all_norms() { return vector(3); }
  // [2] tokens; over them the largest less the smallest finite rank score
  std::span<double> totals() { return part(3 * experts_ * experts_ + 4 * experts_, 2); }

 private:
  std::span<double> part(size_t at, size_t n) { return std::span(values_).subspan(at, n); }
  std::span<double> vector(size_t i) { return part(3 * experts_ * experts_ + i * experts_, experts_); }

  size_t experts_;
  std::vector<double> values_;
};

// The tables that the sums give: similarity, folds, norms, contributions, the `resident` experts of most tokens, and
// the range of scores; not k0. Error{kMalformed} naming `where` when the sums are not finite or there are no tokens.
//   similarity   1 - |E_s - E_t| / the largest such distance of the layer, in Frobenius norms over all tokens (SERE,
//   arXiv
//                2602.07616, with the code of its authors)
//   fold_scale   the S >= 0 that makes sum of w_s^2 |E_s - S E_t|^2 + ridge S^2 least over the tokens of s, ridge being
//                1e-3 of sum of w_s^2 |E_s|^2; over all tokens, with w = 1, for an expert that no token went to
//   fold_loss    that sum without the ridge, as a share of sum of w_s^2 |E_s|^2 (ExFold, arXiv 2608.24938)
LayerTables tables_of_sums(ExpertSums& sums, int resident, const std::string& where);

// Adds what it sees of every MoE layer to that layer's sums.
class ExpertGatherer final : public StepObserver {
 public:
  static constexpr int kRows = 16;  // of a step, at most: the outputs of all experts for them are held at once

  // `sums`, one for each MoE layer in order, and `model` outlive this object. Error{kNoMemory}.
  ExpertGatherer(Model& model, std::vector<ExpertSums>& sums);
  void routed(const RoutedLayer& layer) override;

 private:
  void add_row(const RoutedLayer& layer, int t, ExpertSums& sums);

  Model& model_;
  std::vector<ExpertSums>& sums_;
  std::vector<float> outputs_;    // [E, kRows, D]
  std::vector<double> products_;  // [E, E] E_s . E_t of one token
};

}  // namespace carpool
