// cache_prior: experts that already lie in fast memory get a bonus when a row chooses (cache-conditional experts, arXiv
// 2412.00099, the cache-prior rule).
//
// A row keeps its k0 best (J in the paper); the rest of its K are the best by rank score + lambda * range, where range
// is the mean spread of a row's scores in the layer, for resident experts, and by the score alone for others. Weights
// come from the unbiased scores. In the paper the range is a running mean; here it is that of the calibration text, so
// that a row's choice depends on the row alone. The resident set is an input: the file says it, no cache is managed.
#include <fmt/format.h>

#include "routing/budget.h"
#include "routing/registry.h"
#include "routing/scope.h"

namespace carpool {
namespace {

class CachePrior final : public PolicyBase {
 public:
  struct Settings {
    std::string table;
    double lambda = 0;
    int k0 = 0;
    Divisor divisor;
  };
  CachePrior(const Settings& settings, std::string spec, const PolicyProperties& properties)
      : PolicyBase(std::move(spec), properties, settings.table, TableKind::kResident), set_(settings) {}

  void select(const RouterInput& in, Scratch& scratch, Selection& out) const override {
    const LayerTables* tables = tables_of(in.layer);
    if (!tables) return select_plain(in, scratch, out);
    out.start(in.rows(), in.top_k);
    for (int t = 0; t < in.rows(); ++t) {
      const PlainReason reason = own_reason(in.tokens[t]);
      if (reason != PlainReason::kApplied) {
        push_plain(in, t, reason, scratch, out);
        continue;
      }
      const std::span<const int> chosen = choose(in, t, *tables, scratch);
      for (const int expert : chosen) out.push(expert);
      out.end_row(reason, set_.divisor.of(in, t, chosen, scratch));
    }
  }
  bool is_plain(int top_k) const override {
    return (set_.lambda <= 0 || set_.k0 >= top_k) && set_.divisor.kind == Divisor::Kind::kModel;
  }
  void check(int n_experts, int top_k) const override {
    if (set_.k0 > top_k) {
      refuse(*this, fmt::format("k0 {} is more than the model's {} experts per token", set_.k0, top_k));
    }
    check_tables(n_experts);
  }

 private:
  // Row t's experts, best first by the unbiased score; in scratch.order.
  std::span<const int> choose(const RouterInput& in, int t, const LayerTables& tables, Scratch& scratch) const {
    const std::span<const float> rank = in.rank_row(t);
    const auto E = static_cast<size_t>(in.n_experts);
    ensure(scratch.biased, E);
    const auto bonus = static_cast<float>(set_.lambda * static_cast<double>(tables.rank_range));
    for (size_t e = 0; e < E; ++e) {
      scratch.biased[e] = choosable(rank[e]) && tables.resident[e] != 0 ? rank[e] + bonus : rank[e];
    }
    ExpertSets chosen(scratch, 1, in.n_experts);
    const std::span<const int> kept = best_ranked(rank, set_.k0, scratch);
    for (const int e : kept) chosen.add(0, e);
    const int room = in.top_k - static_cast<int>(kept.size());
    const std::span<const float> biased(scratch.biased.data(), E);
    // No expert that this passes over is added meanwhile: the set changes only once the list is complete.
    for (const int e : best_ranked(biased, room, scratch, [&](int x) { return !chosen.has(0, x); })) chosen.add(0, e);
    return best_ranked(rank, in.top_k, scratch, [&](int e) { return chosen.has(0, e); });
  }

  Settings set_;
};

}  // namespace

PolicyDescription describe_cache_prior() {
  return {
      .summary = "every decode row prefers experts that lie in fast memory, beyond its k0 best",
      .arguments = {table_argument("the resident experts"),
                    {"lambda", "the bonus of a resident expert, as a share of the usual spread of scores", "required"},
                    {"k0", "experts that every row keeps, 0 to K (J in the paper)", "1"},
                    kNormArgument},
      .examples = {"cache_prior:table=t.tables,lambda=0.2", "cache_prior:table=t.tables,lambda=0.5,k0=2",
                   "cache_prior:table=t.tables,lambda=100,k0=0", "cache_prior:table=t.tables,lambda=0",
                   "cache_prior:table=t.tables,lambda=0.4,norm=topk"},
      .make = [](Arguments& arguments, const PolicyProperties& declared) -> std::unique_ptr<Policy> {
        CachePrior::Settings s;
        s.table = arguments.required_file("table");
        s.lambda = arguments.required_number("lambda", 0, 1e6);
        s.k0 = arguments.integer("k0", 1, 0, kMaxArgument);
        s.divisor = arguments.divisor("norm");
        return std::make_unique<CachePrior>(s, arguments.spec(), declared);
      }};
}

}  // namespace carpool
