// prune: every decode row runs only its k0 best experts. OEA's phase 1 alone, the control that shows what its fill is
// worth ("pruned" in arXiv 2511.02237, section 4).
//
// Never guarded: a row's choice does not depend on the batch, so there is nothing for a guard to look at. Prefill and
// isolated rows stay plain as under every lossy policy; k0 = 0 switches it off.
#include <fmt/format.h>

#include "routing/registry.h"
#include "routing/scope.h"

namespace carpool {
namespace {

class Prune final : public PolicyBase {
 public:
  Prune(int k0, double p, std::string spec, const PolicyProperties& properties)
      : PolicyBase(std::move(spec), properties), k0_(k0), p_(p) {}

  void select(const RouterInput& in, Scratch& scratch, Selection& out) const override {
    if (k0_ == 0) return select_plain(in, scratch, out);
    out.start(in.rows(), in.top_k);
    for (int t = 0; t < in.rows(); ++t) {
      const PlainReason reason = own_reason(in.tokens[t]);
      if (reason != PlainReason::kApplied) {
        push_plain(in, t, reason, scratch, out);
        continue;
      }
      for (int expert : base_set(in, t, k0_, p_, scratch)) out.push(expert);
      out.end_row(reason);
    }
  }

  bool is_plain(int top_k) const override { return k0_ == 0 || (k0_ == top_k && p_ >= 1); }

  void check(int, int top_k) const override {
    if (k0_ > top_k) refuse(*this, fmt::format("k0 {} is more than the model's {} experts per token", k0_, top_k));
  }

 private:
  int k0_;
  double p_;
};

}  // namespace

PolicyDescription describe_prune() {
  return {
      .summary = "every decode row runs only its k0 best experts",
      .arguments = {{"k0", "experts per decode row, 1 to K; 0 switches the policy off", "required"},
                    {"p", "a row runs fewer than k0 once they hold this share of its weight; 1 and above: never", "1"}},
      .examples = {"prune:k0=0", "prune:k0=1", "prune:k0=2", "prune:k0=3", "prune:k0=3,p=0.5"},
      .make = [](Arguments& arguments, const PolicyProperties& declared) -> std::unique_ptr<Policy> {
        const int k0 = arguments.required_integer("k0", 0, kMaxArgument);
        const double p = arguments.number_above("p", 1.0, 0.0);
        PolicyProperties properties = declared;
        if (p < 1) properties.by_rank = false;
        return std::make_unique<Prune>(k0, p, arguments.spec(), properties);
      }};
}

}  // namespace carpool
