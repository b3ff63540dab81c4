// des_vote: the experts with the most router weight over the group's rows are the pool, and nothing else is protected
// (DES-Vote of Dynamic Expert Sharing, arXiv 2602.00879; with vote=all the top-B of MoE-Spec, arXiv 2602.16052).
#include "routing/pool.h"

namespace carpool {
namespace {

class DesVote final : public PoolPolicy {
 public:
  DesVote(bool of_all, const PoolArguments& pool, std::string spec, const PolicyProperties& properties)
      : PoolPolicy(pool, std::move(spec), properties), of_all_(of_all) {}

 private:
  void vote(const RouterInput& in, int t, std::span<const int> best, std::span<int64_t> votes) const override {
    const std::span<const float> rank = in.rank_row(t), weight = in.weight_row(t);
    if (of_all_) {
      for (size_t e = 0; e < votes.size(); ++e) votes[e] += choosable(rank[e]) ? vote_of(weight[e]) : 0;
    } else {
      for (const int e : best) votes[static_cast<size_t>(e)] += vote_of(weight[static_cast<size_t>(e)]);
    }
  }
  int protects(const RouterInput&, int, std::span<const int>) const override { return 0; }

  bool of_all_;
};

}  // namespace

PolicyDescription describe_des_vote() {
  return {.summary = "the experts of most weight over the group's rows are all that the group loads",
          .arguments = with_pool_arguments(
              {{"m", "experts per group: a number, or 50% of what plain routing loads", "required"},
               {"vote", "topk: rows vote for their K best experts; all: for every expert", "topk"}}),
          .examples = {"des_vote:m=3", "des_vote:m=50%", "des_vote:m=4,vote=all", "des_vote:m=2,min_batch=1,guard=off",
                       "des_vote:m=75%,max_rows=4,norm=topk", "des_vote:m=2,norm=none,always=0+1.3"},
          .make = [](Arguments& arguments, const PolicyProperties& declared) -> std::unique_ptr<Policy> {
            const Budget budget = arguments.budget("m");
            const bool of_all = arguments.choice("vote", {"topk", "all"}) == 1;
            const PoolArguments pool = read_pool_arguments(arguments, budget);
            PolicyProperties properties = declared;
            if (of_all) properties.at_most_plain = false;  // experts that no row's plain choice has may join
            return std::make_unique<DesVote>(of_all, pool, arguments.spec(), properties);
          }};
}

}  // namespace carpool
