// sere: Similarity-based Expert Re-routing (arXiv 2602.07616).
//
// Every eligible row keeps its k0 best experts (S in the paper); their union per group are the primary experts. Each
// further slot of the row's plain choice whose expert is not primary goes to the primary expert most like it, if they
// are at least rho alike; a critical expert, which none is like, stays. Slots keep their weights. Beyond the paper:
// slots of one expert become one, only experts that the row may choose are targets, and guards.
#include <fmt/format.h>

#include "routing/merged_row.h"
#include "routing/registry.h"
#include "routing/scope.h"

namespace carpool {
namespace {

struct SereArguments {
  std::string table;
  int k0 = 0;
  double rho = 0;
  Divisor divisor;
  BatchGuards guards;
};

class Sere final : public PolicyBase {
 public:
  Sere(const SereArguments& arguments, std::string spec, const PolicyProperties& properties)
      : PolicyBase(std::move(spec), properties, arguments.table, TableKind::kSimilarity), arg_(arguments) {}

  void select(const RouterInput& in, Scratch& scratch, Selection& out) const override {
    const LayerTables* tables = tables_of(in.layer);
    if (!tables) return select_plain(in, scratch, out);
    out.start(in.rows(), in.top_k);
    const int n_groups = number_groups(in, scratch);
    guard_batch(in, arg_.guards, scratch);
    ExpertSets primary(scratch, n_groups, in.n_experts);
    for (int t = 0; t < in.rows(); ++t) {
      if (own_reason(in.tokens[t]) != PlainReason::kApplied) continue;
      for (const int e : best_ranked(in.rank_row(t), arg_.k0, scratch)) primary.add(scratch.group_of_row[t], e);
    }
    for (int t = 0; t < in.rows(); ++t) {
      PlainReason reason = own_reason(in.tokens[t]);
      if (reason == PlainReason::kApplied) reason = scratch.verdict[scratch.group_of_row[t]];
      if (reason == PlainReason::kApplied) {
        route(in, t, *tables, primary, scratch, out);
      } else {
        push_plain(in, t, reason, scratch, out);
      }
    }
  }

  bool is_plain(int top_k) const override { return arg_.k0 >= top_k && arg_.divisor.kind == Divisor::Kind::kModel; }

  void check(int n_experts, int top_k) const override {
    if (arg_.k0 > top_k) {
      refuse(*this, fmt::format("k0 {} is more than the model's {} experts per token", arg_.k0, top_k));
    }
    check_tables(n_experts);
  }

 private:
  void route(const RouterInput& in, int t, const LayerTables& tables, const ExpertSets& primary, Scratch& scratch,
             Selection& out) const {
    const std::span<const int> best = best_ranked(in.rank_row(t), in.top_k, scratch);
    MergedRow row(in, t, scratch);
    float plain_sum = 0;
    for (const int expert : best) {
      const float mix = in.slot_weight(t, expert);
      plain_sum += mix;
      row.add(primary.has(scratch.group_of_row[t], expert) ? expert : target(in, t, tables, primary, expert, scratch),
              mix);
    }
    row.end(arg_.divisor, plain_sum, out);
  }

  // The primary expert that runs a slot of `expert`, equal ones the lower id; `expert` itself where it is critical.
  int target(const RouterInput& in, int t, const LayerTables& tables, const ExpertSets& primary, int expert,
             const Scratch& scratch) const {
    const int g = scratch.group_of_row[t];
    const std::span<const float> rank = in.rank_row(t);
    const float* alike = tables.similarity.data() + static_cast<size_t>(expert) * static_cast<size_t>(in.n_experts);
    int best = -1;
    for (int v = 0; v < in.n_experts; ++v) {
      if (!primary.has(g, v) || !choosable(rank[static_cast<size_t>(v)])) continue;
      if (best < 0 || alike[v] > alike[best]) best = v;
    }
    const bool critical = best < 0 || (arg_.rho > 0 && static_cast<double>(alike[best]) < arg_.rho);
    return critical ? expert : best;
  }

  SereArguments arg_;
};

}  // namespace

PolicyDescription describe_sere() {
  return {
      .summary = "slots beyond a row's k0 best move to the most similar expert among the k0 best of the group's rows",
      .arguments = {table_argument("the similarity of experts"),
                    {"k0", "experts that every row keeps, 1 to K (S in the paper)", "required"},
                    {"rho", "a slot moves to an expert at least so similar, 0 to 1; 0: to the most similar whatever",
                     "0.1"},
                    kNormArgument,
                    {"min_batch", "groups with fewer eligible rows stay plain", "2"},
                    {"max_rows", "steps with more rows, pads aside, stay plain", "unlimited"}},
      .examples = {"sere:table=t.tables,k0=1", "sere:table=t.tables,k0=2,rho=0", "sere:table=t.tables,k0=2,rho=0.6",
                   "sere:table=t.tables,k0=1,rho=0.5,min_batch=1", "sere:table=t.tables,k0=2,norm=none,max_rows=4",
                   "sere:table=t.tables,k0=1,rho=0,norm=final", "sere:table=t.tables,k0=1,norm=topk,min_batch=3"},
      .make = [](Arguments& arguments, const PolicyProperties& declared) -> std::unique_ptr<Policy> {
        SereArguments a;
        a.table = arguments.required_file("table");
        a.k0 = arguments.required_integer("k0", 1, kMaxArgument);
        a.rho = arguments.number("rho", 0.1, 0, 1);
        a.divisor = arguments.divisor("norm");
        a.guards.min_batch = arguments.integer("min_batch", 2, 1, kMaxArgument);
        a.guards.max_rows = arguments.integer("max_rows", kMaxArgument, 1, kMaxArgument);
        return std::make_unique<Sere>(a, arguments.spec(), declared);
      }};
}

}  // namespace carpool
