// oea: Opportunistic Expert Activation (arXiv 2511.02237, algorithms 1 and 2).
//
// Phase 1: every eligible row is sure of its base set, its n_i = min(k0, t_i) best experts, where t_i ranks reach the
// share p of the row's weight. Their union, per group, is what has to be read from memory anyway. Phase 2: every
// eligible row walks its further ranks, up to max_p, and takes what is in the union until it has k_max experts. The
// base set is in the union and on top of the row's order, so both phases together are: the k_max best-ranked experts
// of the union. Beyond the paper: guards that leave a batch plain, and scopes (TokenInfo::group).
// Read next: scope.h for groups and guards, contract_test.cc for what must hold.
#include <fmt/format.h>

#include "routing/registry.h"
#include "routing/scope.h"

namespace carpool {
namespace {

struct OeaArguments {
  int k0 = 0;  // with `target`: the largest of 1 to K whose union the target holds; with `table`: each layer's
  std::vector<int> by_layer;  // in place of k0: each layer's, 0 for plain ones
  std::string table;
  std::optional<Budget> target;
  double p = 1;      // 1 and above: no mass test
  double floor = 0;  // of an expert beyond the base set: share of the weight of the row's best
  Divisor divisor;
  std::optional<int> k_max;
  std::optional<int> max_p;
  BatchGuards guards;
  bool keep_underfilled = false;
  bool prefill_lends = false;
  bool union_guard = true;
};

class Oea final : public PolicyBase {
 public:
  Oea(const OeaArguments& arguments, std::string spec, const PolicyProperties& properties)
      : PolicyBase(std::move(spec), properties, arguments.table, TableKind::kK0), arg_(arguments) {}

  void select(const RouterInput& in, Scratch& scratch, Selection& out) const override;
  bool is_plain(int top_k) const override;
  void check(int n_experts, int top_k) const override;
  int layers() const override { return static_cast<int>(arg_.by_layer.size()); }

 private:
  int own_k0(int layer) const;
  void find_k0(const RouterInput& in, int n_groups, Scratch& scratch) const;
  void collect(const RouterInput& in, Scratch& scratch, ExpertSets& unions) const;
  float lowest_weight(const RouterInput& in, int t, Scratch& scratch) const;
  std::span<const int> fill(const RouterInput& in, int t, const ExpertSets& unions, Scratch& scratch) const;

  OeaArguments arg_;
};

// What the arguments or the tables say; 0 where they leave the layer plain.
int Oea::own_k0(int layer) const {
  if (const LayerTables* tables = tables_of(layer)) return tables->k0;
  if (arg_.by_layer.empty()) return arg_.k0;
  return layer >= 0 && layer < layers() ? arg_.by_layer[static_cast<size_t>(layer)] : 0;
}

// The largest k0 of each group whose base sets together are within the target. Unions grow with k0, so counting the
// experts that some row ranks k0-th and none better gives them all in one pass.
void Oea::find_k0(const RouterInput& in, int n_groups, Scratch& scratch) const {
  scratch.group_k0.assign(static_cast<size_t>(n_groups), own_k0(in.layer));
  if (!arg_.target) return;
  const auto E = static_cast<size_t>(in.n_experts);
  scratch.votes.assign(E * static_cast<size_t>(n_groups), in.top_k);  // best rank that a row gives the expert
  for (int t = 0; t < in.rows(); ++t) {
    if (own_reason(in.tokens[t]) != PlainReason::kApplied) continue;
    int64_t* ranks = scratch.votes.data() + E * static_cast<size_t>(scratch.group_of_row[t]);
    const std::span<const int> best = best_ranked(in.rank_row(t), in.top_k, scratch);
    for (size_t i = 0; i < best.size(); ++i) ranks[best[i]] = std::min(ranks[best[i]], static_cast<int64_t>(i));
  }
  for (int g = 0; g < n_groups; ++g) {
    const int64_t* ranks = scratch.votes.data() + E * static_cast<size_t>(g);
    const auto experts = [&](int k0) {
      return static_cast<int>(std::count_if(ranks, ranks + E, [k0](int64_t r) { return r < k0; }));
    };
    const int most = arg_.target->of(experts(in.top_k));
    int k0 = in.top_k;
    while (k0 > 1 && experts(k0) > most) --k0;
    scratch.group_k0[static_cast<size_t>(g)] = k0;
  }
}

// The union of the base sets, per group: of eligible rows, and of prefill rows where they lend.
void Oea::collect(const RouterInput& in, Scratch& scratch, ExpertSets& unions) const {
  for (int t = 0; t < in.rows(); ++t) {
    const TokenInfo& token = in.tokens[t];
    const bool eligible = own_reason(token) == PlainReason::kApplied;
    const bool lends = arg_.prefill_lends && token.phase == Phase::kPrefill && !token.isolated;
    if (!eligible && !lends) continue;
    const int g = scratch.group_of_row[t];
    for (int expert : base_set(in, t, scratch.group_k0[static_cast<size_t>(g)], arg_.p, scratch)) unions.add(g, expert);
  }
}

// The k_max best experts of row t that lie in its group's union, among its max_p best overall; beyond its base set only
// those of enough weight.
std::span<const int> Oea::fill(const RouterInput& in, int t, const ExpertSets& unions, Scratch& scratch) const {
  const int k_max = arg_.k_max.value_or(in.top_k);
  const std::span<const float> weight = in.weight_row(t);
  float bar = -std::numeric_limits<float>::infinity();
  if (arg_.floor > 0) bar = lowest_weight(in, t, scratch);
  const auto in_union = [&, group = scratch.group_of_row[t]](int expert) {
    return unions.has(group, expert) && !(weight[static_cast<size_t>(expert)] < bar);
  };
  if (!arg_.max_p) return best_ranked(in.rank_row(t), k_max, scratch, in_union);
  const size_t ranked = best_ranked(in.rank_row(t), *arg_.max_p, scratch).size();
  int* order = scratch.order.data();
  const int* end = std::copy_if(order, order + ranked, order, in_union);
  return {order, std::min(static_cast<size_t>(end - order), static_cast<size_t>(k_max))};
}

// What an expert of row t must weigh: the floor's share of the best one's weight, or as much as the base set's lightest
// member where that is less, so that the base set stays whole.
float Oea::lowest_weight(const RouterInput& in, int t, Scratch& scratch) const {
  const int k0 = scratch.group_k0[static_cast<size_t>(scratch.group_of_row[t])];
  const std::span<const float> weight = in.weight_row(t);
  const std::span<const int> base = base_set(in, t, k0, arg_.p, scratch);
  if (base.empty()) return 0;
  auto bar = static_cast<float>(arg_.floor * static_cast<double>(weight[static_cast<size_t>(base.front())]));
  for (const int e : base) bar = std::min(bar, weight[static_cast<size_t>(e)]);
  return bar;
}

void Oea::select(const RouterInput& in, Scratch& scratch, Selection& out) const {
  if (!arg_.target && own_k0(in.layer) == 0) return select_plain(in, scratch, out);
  out.start(in.rows(), std::max(in.top_k, arg_.k_max.value_or(0)));
  const int n_groups = number_groups(in, scratch);
  guard_batch(in, arg_.guards, scratch);
  find_k0(in, n_groups, scratch);
  ExpertSets unions(scratch, n_groups, in.n_experts);
  collect(in, scratch, unions);
  for (int g = 0; g < n_groups; ++g) {
    if (scratch.verdict[g] != PlainReason::kApplied) continue;
    const bool whole = arg_.target && scratch.group_k0[static_cast<size_t>(g)] == in.top_k;
    if (whole) scratch.verdict[g] = PlainReason::kBudget;
    if (arg_.union_guard && unions.size(g) < in.top_k) scratch.verdict[g] = PlainReason::kUnion;
  }
  for (int t = 0; t < in.rows(); ++t) {
    PlainReason reason = own_reason(in.tokens[t]);
    if (reason == PlainReason::kApplied) reason = scratch.verdict[scratch.group_of_row[t]];
    if (reason != PlainReason::kApplied) {
      push_plain(in, t, reason, scratch, out);
      continue;
    }
    const std::span<const int> chosen = fill(in, t, unions, scratch);
    const int full = std::min(in.top_k, arg_.k_max.value_or(in.top_k));
    if (arg_.keep_underfilled && static_cast<int>(chosen.size()) < full) {
      push_plain(in, t, PlainReason::kUnion, scratch, out);
      continue;
    }
    for (int expert : chosen) out.push(expert);
    out.end_row(reason, arg_.divisor.of(in, t, chosen, scratch));
  }
}

// With k0 = k_max = K a base set is the plain choice and nothing can be added, whatever the guards say.
bool Oea::is_plain(int top_k) const {
  if (arg_.target || !arg_.table.empty()) return false;
  const bool whole = arg_.p >= 1 && arg_.k_max.value_or(top_k) == top_k && arg_.divisor.kind == Divisor::Kind::kModel;
  const auto plain = [&](int k0) { return k0 == 0 || (k0 == top_k && whole); };
  if (arg_.by_layer.empty()) return plain(arg_.k0);
  return std::all_of(arg_.by_layer.begin(), arg_.by_layer.end(), plain);
}

void Oea::check(int n_experts, int top_k) const {
  check_tables(n_experts);
  int k0 = arg_.k0;
  for (const int own : arg_.by_layer) k0 = std::max(k0, own);
  for (size_t l = 0; tables() && l < tables()->layers.size(); ++l) k0 = std::max(k0, tables()->layers[l].k0);
  if (k0 > top_k) refuse(*this, fmt::format("k0 {} is more than the model's {} experts per token", k0, top_k));
  const auto in_range = [&](const char* key, const std::optional<int>& value) {
    if (!value) return;
    if (*value > n_experts)
      refuse(*this, fmt::format("{} {} is more than the layer's {} experts", key, *value, n_experts));
    if (*value < k0) refuse(*this, fmt::format("{} {} is less than k0 {}", key, *value, k0));
  };
  in_range("k_max", arg_.k_max);
  in_range("max_p", arg_.max_p);
}

std::unique_ptr<Policy> make_oea(Arguments& arguments, const PolicyProperties& declared) {
  OeaArguments a;
  std::string word;
  std::optional<int> k0;
  a.by_layer = arguments.layer_list("k0", 0, kMaxArgument);
  if (a.by_layer.empty()) k0 = arguments.required_integer_or("k0", {"auto", "table"}, 0, kMaxArgument, &word);
  a.table = arguments.file("table");
  a.target = arguments.optional_budget("t");
  const std::string given = k0 ? fmt::format("{}", *k0) : a.by_layer.empty() ? word : "a list";
  if (word == "auto" && !a.target) arguments.fail("k0=auto needs the experts that a group may load, t=32 or t=50%");
  if (word == "table" && a.table.empty()) arguments.fail("k0=table needs the file of the layers' k0, table=FILE");
  if (word != "auto" && a.target) arguments.fail(fmt::format("t is for k0=auto, but k0 is {}", given));
  if (word != "table" && !a.table.empty()) arguments.fail(fmt::format("table is for k0=table, but k0 is {}", given));
  a.k0 = k0.value_or(0);
  a.p = arguments.number_above("p", 1.0, 0.0);
  a.k_max = arguments.optional_integer("k_max", 1, kMaxArgument);
  a.max_p = arguments.optional_integer("max_p", 1, kMaxArgument);
  a.floor = arguments.number("floor", 0, 0, 1);
  a.divisor = arguments.divisor("norm");
  a.guards.min_batch = arguments.integer("min_batch", 2, 1, kMaxArgument);
  a.guards.max_rows = arguments.integer("max_rows", kMaxArgument, 1, kMaxArgument);
  a.keep_underfilled = arguments.choice("underfill", {"fewer", "keep"}) == 1;
  a.prefill_lends = arguments.choice("lend", {"none", "prefill"}) == 1;
  a.union_guard = arguments.choice("guard", {"on", "off"}) == 0;

  PolicyProperties properties = declared;
  properties.uses_tables = !a.table.empty();
  if (a.target) properties.union_exact = properties.keeps_top_k0 = false;  // there is no k0 to state them with
  if (a.floor > 0) properties.fills_union = false;
  if (a.floor > 0 || a.p < 1) properties.by_rank = false;
  // The base set of a row that then stays plain, or of a lender, may find no taker among the applied rows.
  if (a.keep_underfilled || a.prefill_lends) properties.union_exact = false;
  return std::make_unique<Oea>(a, arguments.spec(), properties);
}

}  // namespace

PolicyDescription describe_oea() {
  return {
      .summary = "every decode row keeps its k0 best experts and fills up to K from the union of the group's",
      .arguments = {{"k0",
                     "experts that every row keeps, 1 to K; 0 switches the policy off; auto: the most that t allows; "
                     "table: what the table says for the layer; 5/3/0/4: each layer's of the model, 0 for plain ones",
                     "required"},
                    table_argument("each layer's k0, for k0=table", "none"),
                    {"t", "with k0=auto: experts per group, a number or 50% of what plain routing loads", "none"},
                    {"p", "a row keeps fewer than k0 once they hold this share of its weight; 1 and above: never", "1"},
                    {"k_max", "most experts per row", "K"},
                    {"max_p", "last rank that a row may take", "E"},
                    {"floor", "an expert beyond the k0 must have this share of the weight of the row's best", "0"},
                    kNormArgument,
                    {"min_batch", "groups with fewer eligible rows stay plain", "2"},
                    {"max_rows", "steps with more rows, pads aside, stay plain", "unlimited"},
                    {"underfill",
                     "fewer: a row may end with fewer than K (or k_max) experts; keep: it then stays plain", "fewer"},
                    {"lend", "prefill: base sets of prefill rows join the union; none: they do not", "none"},
                    {"guard", "on: a group whose union has fewer than K experts stays plain; off: it does not", "on"}},
      .examples = {"oea:k0=auto,t=50%",
                   "oea:k0=auto,t=4,min_batch=1,guard=off",
                   "oea:k0=auto,t=75%,floor=0.2,norm=topk",
                   "oea:k0=1,floor=0.3,guard=off",
                   "oea:k0=2,norm=none",
                   "oea:k0=table,table=t.tables",
                   "oea:k0=table,table=t.tables,p=0.7,min_batch=1,guard=off",
                   "oea:k0=1,p=0.6,floor=0.5,norm=6,guard=off",
                   "oea:k0=2/1/0",
                   "oea:k0=1/0/2,p=0.7,min_batch=1,guard=off",
                   "oea:k0=0",
                   "oea:k0=1",
                   "oea:k0=2",
                   "oea:k0=3",
                   "oea:k0=1,min_batch=1,guard=off",
                   "oea:k0=2,min_batch=1,guard=off",
                   "oea:k0=2,p=0.5,min_batch=1,guard=off",
                   "oea:k0=2,p=0.4",
                   "oea:k0=2,k_max=5,guard=off",
                   "oea:k0=2,k_max=2,guard=off",
                   "oea:k0=1,max_p=3,guard=off",
                   "oea:k0=1,min_batch=3",
                   "oea:k0=2,max_rows=4",
                   "oea:k0=1,underfill=keep,guard=off",
                   "oea:k0=2,lend=prefill,guard=off",
                   "oea:k0=2,lend=prefill",
                   "oea:k0=1,p=0.6,k_max=3,max_p=4,min_batch=1,underfill=keep,lend=prefill"},
      .make = make_oea};
}

}  // namespace carpool
