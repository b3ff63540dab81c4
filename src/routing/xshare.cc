// xshare: each row keeps its k0 best experts, and the experts with the most router weight over the whole group join
// them until a budget is reached (XShare, arXiv 2602.07265).
//
// The sum of weights is modular in the set, so taking the largest sums is optimal for it. With budget_guard a group
// that fits the budget anyway stays plain, where the paper would still move rows to experts of more weight.
#include "routing/pool.h"

namespace carpool {
namespace {

class XShare final : public PoolPolicy {
 public:
  XShare(int k0, const PoolArguments& pool, std::string spec, const PolicyProperties& properties)
      : PoolPolicy(pool, std::move(spec), properties), k0_(k0) {}

  void check(int n_experts, int top_k) const override {
    PoolPolicy::check(n_experts, top_k);
    if (k0_ > top_k) {
      refuse(*this,
             "k0 " + std::to_string(k0_) + " is more than the model's " + std::to_string(top_k) + " experts per token");
    }
  }

 private:
  void vote(const RouterInput& in, int t, std::span<const int>, std::span<int64_t> votes) const override {
    const std::span<const float> rank = in.rank_row(t), weight = in.weight_row(t);
    for (size_t e = 0; e < votes.size(); ++e) votes[e] += choosable(rank[e]) ? vote_of(weight[e]) : 0;
  }
  int protects(const RouterInput&, int, std::span<const int>) const override { return k0_; }

  int k0_;
};

}  // namespace

PolicyDescription describe_xshare() {
  return {.summary = "every row keeps its k0 best experts; those of most weight over the group join up to a budget",
          .arguments =
              with_pool_arguments({{"m", "experts per group: a number, or 50% of what plain routing loads", "required"},
                                   {"k0", "experts that every row keeps, 0 to K", "1"}}),
          .examples = {"xshare:m=3", "xshare:m=50%", "xshare:m=4,k0=2", "xshare:m=2,k0=0,guard=off",
                       "xshare:m=4,min_batch=1,guard=off", "xshare:m=75%,max_rows=4,norm=topk",
                       "xshare:m=3,norm=final,always=1+0.2", "xshare:m=3,norm=none", "xshare:m=3,norm=4"},
          .make = [](Arguments& arguments, const PolicyProperties& declared) -> std::unique_ptr<Policy> {
            const Budget budget = arguments.budget("m");
            const int k0 = arguments.integer("k0", 1, 0, kMaxArgument);
            const PoolArguments pool = read_pool_arguments(arguments, budget);
            return std::make_unique<XShare>(k0, pool, arguments.spec(), declared);
          }};
}

}  // namespace carpool
