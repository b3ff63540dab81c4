// lynx: what plain routing loads for the group, less the experts that the fewest rows chose (Lynx, arXiv 2411.08982,
// first version: subtractive).
#include "routing/pool.h"

namespace carpool {
namespace {

class Lynx final : public PoolPolicy {
 public:
  using PoolPolicy::PoolPolicy;

 private:
  void vote(const RouterInput&, int, std::span<const int> best, std::span<int64_t> votes) const override {
    for (const int e : best) ++votes[static_cast<size_t>(e)];
  }
  int protects(const RouterInput&, int, std::span<const int>) const override { return 0; }
  int size(int plain) const override { return std::max(1, plain - PoolPolicy::size(plain)); }
};

}  // namespace

PolicyDescription describe_lynx() {
  return {.summary = "drops the experts that the fewest rows of the group chose",
          .arguments =
              with_pool_arguments({{"drop", "experts to drop: a number, or 25% of those loaded", "required"}}, false),
          .examples = {"lynx:drop=1", "lynx:drop=50%", "lynx:drop=2,min_batch=1", "lynx:drop=25%,max_rows=4,norm=topk",
                       "lynx:drop=3,norm=none,always=0+1.3"},
          .make = [](Arguments& arguments, const PolicyProperties& declared) -> std::unique_ptr<Policy> {
            const Budget drop = arguments.budget("drop");
            const PoolArguments pool = read_pool_arguments(arguments, drop, false);
            return std::make_unique<Lynx>(pool, arguments.spec(), declared);
          }};
}

}  // namespace carpool
