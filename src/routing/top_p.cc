// top_p: a row runs its best experts until they hold the share p of its weight, at most K (arXiv 2403.07652, without
// the training). Never guarded: a row's choice does not depend on the batch.
#include "routing/budget.h"
#include "routing/registry.h"
#include "routing/scope.h"

namespace carpool {
namespace {

class TopP final : public PolicyBase {
 public:
  TopP(double p, Divisor divisor, std::string spec, const PolicyProperties& properties)
      : PolicyBase(std::move(spec), properties), p_(p), divisor_(divisor) {}

  void select(const RouterInput& in, Scratch& scratch, Selection& out) const override {
    out.start(in.rows(), in.top_k);
    for (int t = 0; t < in.rows(); ++t) {
      const PlainReason reason = own_reason(in.tokens[t]);
      if (reason != PlainReason::kApplied) {
        push_plain(in, t, reason, scratch, out);
        continue;
      }
      const std::span<const int> chosen = base_set(in, t, in.top_k, p_, scratch);
      for (const int expert : chosen) out.push(expert);
      out.end_row(reason, divisor_.of(in, t, chosen, scratch));
    }
  }
  bool is_plain(int) const override { return p_ >= 1 && divisor_.kind == Divisor::Kind::kModel; }
  void check(int, int) const override {}

 private:
  double p_;
  Divisor divisor_;
};

}  // namespace

PolicyDescription describe_top_p() {
  return {.summary = "every decode row runs its best experts until they hold a share of its weight",
          .arguments = {{"p", "the share of the row's whole weight; 1 and above: never reached", "required"},
                        kNormArgument},
          .examples = {"top_p:p=0.3", "top_p:p=0.6", "top_p:p=0.5,norm=topk", "top_p:p=1"},
          .make = [](Arguments& arguments, const PolicyProperties& declared) -> std::unique_ptr<Policy> {
            const double p = arguments.required_number_above("p", 0.0);
            const Divisor divisor = arguments.divisor("norm");
            return std::make_unique<TopP>(p, divisor, arguments.spec(), declared);
          }};
}

}  // namespace carpool
