// ser: a row skips experts whose weight is small beside its best one's, but never its k_min best (the "smart expert
// reduction" of ik_llama.cpp). Never guarded: a row's choice does not depend on the batch.
#include <fmt/format.h>

#include "routing/budget.h"
#include "routing/registry.h"
#include "routing/scope.h"

namespace carpool {
namespace {

class Ser final : public PolicyBase {
 public:
  Ser(int k_min, double t, Divisor divisor, std::string spec, const PolicyProperties& properties)
      : PolicyBase(std::move(spec), properties), k_min_(k_min), t_(t), divisor_(divisor) {}

  void select(const RouterInput& in, Scratch& scratch, Selection& out) const override {
    out.start(in.rows(), in.top_k);
    for (int t = 0; t < in.rows(); ++t) {
      const PlainReason reason = own_reason(in.tokens[t]);
      if (reason != PlainReason::kApplied) {
        push_plain(in, t, reason, scratch, out);
        continue;
      }
      const std::span<const int> best = best_ranked(in.rank_row(t), in.top_k, scratch);
      const std::span<const int> kept = best.first(keeps(in.weight_row(t), best));
      for (const int expert : kept) out.push(expert);
      out.end_row(reason, divisor_.of(in, t, kept, scratch));
    }
  }
  bool is_plain(int top_k) const override {
    return (t_ <= 0 || k_min_ >= top_k) && divisor_.kind == Divisor::Kind::kModel;
  }
  void check(int, int top_k) const override {
    if (k_min_ > top_k)
      refuse(*this, fmt::format("k_min {} is more than the model's {} experts per token", k_min_, top_k));
  }

 private:
  // Ranks before the first one past k_min whose weight is below t of the best one's: what is kept is a prefix.
  size_t keeps(std::span<const float> weight, std::span<const int> best) const {
    for (auto i = static_cast<size_t>(k_min_); i < best.size(); ++i) {
      const double bar = t_ * static_cast<double>(weight[static_cast<size_t>(best.front())]);
      if (static_cast<double>(weight[static_cast<size_t>(best[i])]) < bar) return i;
    }
    return best.size();
  }

  int k_min_;
  double t_;
  Divisor divisor_;
};

}  // namespace

PolicyDescription describe_ser() {
  return {.summary = "every decode row skips experts whose weight is small beside its best one's",
          .arguments = {{"k_min", "experts that every row keeps, 1 to K", "required"},
                        {"t", "an expert with less than this share of the best one's weight is skipped; 0: none is",
                         "required"},
                        kNormArgument},
          .examples = {"ser:k_min=1,t=0.5", "ser:k_min=2,t=0.3", "ser:k_min=1,t=1", "ser:k_min=1,t=0",
                       "ser:k_min=1,t=0.6,norm=topk"},
          .make = [](Arguments& arguments, const PolicyProperties& declared) -> std::unique_ptr<Policy> {
            const int k_min = arguments.required_integer("k_min", 1, kMaxArgument);
            const double t = arguments.required_number("t", 0, 1);
            const Divisor divisor = arguments.divisor("norm");
            return std::make_unique<Ser>(k_min, t, divisor, arguments.spec(), declared);
          }};
}

}  // namespace carpool
