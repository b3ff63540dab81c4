// exfold: slots of experts outside a pool are folded into the pool's experts that stand in for them best (ExFold, arXiv
// 2608.24938).
//
// Dynamic pool: the m experts of the largest contribution to the group, router weight times mean norm of the expert's
// output, summed over slots of the rows' plain choices. Static pool: the m of the largest mean contribution in
// calibration, in every step. A slot (s, w) outside goes to the pool's expert t of least fold_loss[s, t] with weight
// w * fold_scale[s, t]. Slots of one expert become one. Contributions take the router's scores before any
// renormalisation; folds of scale 0, which would run an expert for nothing, are left out; both differ from the paper.
#include "routing/merged_row.h"
#include "routing/pool.h"

namespace carpool {
namespace {

struct ExFoldArguments {
  std::string table;
  bool static_pool = false;
  PoolArguments pool;
};

class ExFold final : public PoolPolicy {
 public:
  ExFold(const ExFoldArguments& arguments, std::string spec, const PolicyProperties& properties)
      : PoolPolicy(arguments.pool, std::move(spec), properties, arguments.table, TableKind::kFold),
        static_pool_(arguments.static_pool),
        divisor_(arguments.pool.divisor) {}

  void check(int n_experts, int top_k) const override {
    PoolPolicy::check(n_experts, top_k);
    check_tables(n_experts);
  }

 private:
  bool applies(const RouterInput& in) const override { return tables_of(in.layer) != nullptr; }

  void vote(const RouterInput& in, int t, std::span<const int> best, std::span<int64_t> votes) const override {
    const LayerTables& tables = *tables_of(in.layer);
    const std::vector<float>& values = static_pool_ ? tables.contribution : tables.norm;
    const float most = *std::max_element(values.begin(), values.end());
    const auto share = [&](size_t e) { return most > 0 ? values[e] / most : 1.0f; };  // 0 to 1, as votes are
    if (static_pool_) {
      for (size_t e = 0; e < votes.size(); ++e) votes[e] = std::max<int64_t>(1, vote_of(share(e)));
      return;
    }
    for (const int expert : best) {
      const auto e = static_cast<size_t>(expert);
      votes[e] += vote_of(in.weight_row(t)[e] * share(e));
    }
  }
  int protects(const RouterInput&, int, std::span<const int>) const override { return 0; }

  void take(const RouterInput& in, int t, int pool, const ExpertSets& sets, Scratch& scratch,
            Selection& out) const override {
    const std::span<const int> best = best_ranked(in.rank_row(t), in.top_k, scratch);
    const LayerTables& tables = *tables_of(in.layer);
    MergedRow row(in, t, scratch);
    float plain_sum = 0;
    for (const int expert : best) {
      const float mix = in.slot_weight(t, expert);
      plain_sum += mix;
      if (sets.has(pool, expert)) {
        row.add(expert, mix);
        continue;
      }
      const int to = target(in, t, tables, expert, pool, sets);
      const float scale = to < 0 ? 0.0f : tables.fold_scale[at(in, expert, to)];
      if (scale > 0) row.add(to, mix * scale);
    }
    if (row.empty()) {  // nothing stands in for anything: the row's best of the pool, which every applied row has
      const auto in_pool = [&](int expert) { return sets.has(pool, expert); };
      for (const int expert : best_ranked(in.rank_row(t), 1, scratch, in_pool))
        row.add(expert, in.slot_weight(t, expert));
    }
    row.end(divisor_, plain_sum, out);
  }

  static size_t at(const RouterInput& in, int s, int t) {
    return static_cast<size_t>(s) * static_cast<size_t>(in.n_experts) + static_cast<size_t>(t);
  }

  // The expert of the pool that loses least of `expert`, equal ones the lower id; -1 where the row may choose none.
  static int target(const RouterInput& in, int t, const LayerTables& tables, int expert, int pool,
                    const ExpertSets& sets) {
    const std::span<const float> rank = in.rank_row(t);
    const float* loss = tables.fold_loss.data() + at(in, expert, 0);
    int best = -1;
    for (int v = 0; v < in.n_experts; ++v) {
      if (!sets.has(pool, v) || !choosable(rank[static_cast<size_t>(v)])) continue;
      if (best < 0 || loss[v] < loss[best]) best = v;
    }
    return best;
  }

  bool static_pool_;
  Divisor divisor_;
};

}  // namespace

PolicyDescription describe_exfold() {
  return {.summary = "experts outside a pool are folded into its members by tables of which stands in for which",
          .arguments = with_pool_arguments(
              {table_argument("what each expert makes of another"),
               {"m", "experts per group: a number, or 50% of what plain routing loads", "required"},
               {"pool", "dynamic: the experts that contribute most to the group; static: to the calibration text",
                "dynamic"}}),
          .examples = {"exfold:table=t.tables,m=3", "exfold:table=t.tables,m=50%",
                       "exfold:table=t.tables,m=2,guard=off", "exfold:table=t.tables,m=4,pool=static",
                       "exfold:table=t.tables,m=4,pool=static,min_batch=1,guard=off",
                       "exfold:table=t.tables,m=75%,max_rows=4,norm=topk",
                       "exfold:table=t.tables,m=3,norm=final,always=1+0.2", "exfold:table=t.tables,m=3,norm=none"},
          .make = [](Arguments& arguments, const PolicyProperties& declared) -> std::unique_ptr<Policy> {
            ExFoldArguments a;
            a.table = arguments.required_file("table");
            const Budget budget = arguments.budget("m");
            a.static_pool = arguments.choice("pool", {"dynamic", "static"}) == 1;
            if (a.static_pool && budget.share > 0) arguments.fail("a static pool has a number of experts, m=32");
            a.pool = read_pool_arguments(arguments, budget);
            PolicyProperties properties = declared;
            if (a.static_pool) properties.at_most_plain = false;
            return std::make_unique<ExFold>(a, arguments.spec(), properties);
          }};
}

}  // namespace carpool
