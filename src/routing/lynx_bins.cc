// lynx_bins: votes by how near an expert's logit is to the row's best one, in bins of powers of two (the affinity
// binning of Lynx, arXiv 2411.08982, third version).
//
// The paper's formulas for its constants and for the size of the pool are not public. Ours, and stated as ours: bins of
// half a nat (alpha 2), eight of them (beta 8), base 2, and the size is an argument. A row is confident when its best
// expert holds the share `sure` of the weight of its K best; it then protects that expert. The distance of logits is
// taken from weights: log of their ratio for softmax, of the ratio of odds where weights are sigmoids.
#include <cmath>

#include "routing/pool.h"

namespace carpool {
namespace {

constexpr float kAlpha = 2;
constexpr int kBeta = 8;

class LynxBins final : public PoolPolicy {
 public:
  LynxBins(bool odds, double sure, const PoolArguments& pool, std::string spec, const PolicyProperties& properties)
      : PoolPolicy(pool, std::move(spec), properties), odds_(odds), sure_(sure) {}

 private:
  float log_of(float weight) const { return std::log(odds_ ? weight / (1 - weight) : weight); }

  void vote(const RouterInput& in, int t, std::span<const int> best, std::span<int64_t> votes) const override {
    if (best.empty()) return;
    const std::span<const float> weight = in.weight_row(t);
    const float top = log_of(weight[static_cast<size_t>(best.front())]);
    for (const int e : best) {
      const float bin = std::floor(kAlpha * (log_of(weight[static_cast<size_t>(e)]) - top));
      // A selection bias can put a larger weight behind the best; NaN (weights of 0) is the last bin.
      const int steps = bin >= -kBeta ? static_cast<int>(std::min(bin, 0.0f)) : -kBeta;
      votes[static_cast<size_t>(e)] += int64_t{1} << (kBeta + steps);
    }
  }

  int protects(const RouterInput& in, int t, std::span<const int> best) const override {
    const std::span<const float> weight = in.weight_row(t);
    double sum = 0;
    for (const int e : best) sum += std::max(0.0f, weight[static_cast<size_t>(e)]);
    return !best.empty() && weight[static_cast<size_t>(best.front())] >= sure_ * sum ? 1 : 0;
  }

  bool odds_;
  double sure_;
};

}  // namespace

PolicyDescription describe_lynx_bins() {
  return {
      .summary = "experts vote by the distance of their logits to the row's best; confident rows keep their best",
      .arguments = with_pool_arguments(
          {{"m", "experts per group: a number, or 50% of what plain routing loads", "required"},
           {"sure", "a row is confident when its best expert has this share of its K best's weight", "0.5"},
           {"scores", "softmax: weights are probabilities; sigmoid: they are sigmoids of logits", "softmax"}}),
      .examples = {"lynx_bins:m=3", "lynx_bins:m=50%", "lynx_bins:m=4,sure=0.2", "lynx_bins:m=2,min_batch=1,guard=off",
                   "lynx_bins:m=75%,max_rows=4,norm=topk", "lynx_bins:m=2,scores=sigmoid,norm=none,always=0+1.3"},
      .make = [](Arguments& arguments, const PolicyProperties& declared) -> std::unique_ptr<Policy> {
        const Budget budget = arguments.budget("m");
        const double sure = arguments.number_above("sure", 0.5, 0.0);
        const bool odds = arguments.choice("scores", {"softmax", "sigmoid"}) == 1;
        const PoolArguments pool = read_pool_arguments(arguments, budget);
        return std::make_unique<LynxBins>(odds, sure, pool, arguments.spec(), declared);
      }};
}

}  // namespace carpool
