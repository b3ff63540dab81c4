// What every policy owes: a function from (policy, declared properties, input) to the list of broken invariants.
//
// The names C, O, P and M are those of the routing specification: C common to all policies, O of OEA-like policies, P
// of what rows of one batch may do to each other, M metamorphic. Which of them apply follows from the declared
// properties and from the conventional arguments (k0, p, k_max, max_p, min_batch), read from the policy's spec. C9
// (layers without a router, shared experts) lies outside a policy's reach; M9 is in scoring_test.cc, as it concerns
// logits. Being a function, it can be pointed at wrong policies and wrong declarations: contract_test.cc does.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "routing/cases_test_util.h"
#include "routing/counters.h"
#include "routing/oracle_test_util.h"
#include "routing/policy.h"
#include "routing/scoring.h"
#include "routing/tables_test_util.h"

namespace carpool::test {

inline std::vector<int> row_of(const Selection& selection, int t) {
  return {selection.row(t).begin(), selection.row(t).end()};
}
inline std::set<int> set_of(const std::vector<int>& row) { return {row.begin(), row.end()}; }
inline bool subset(const std::set<int>& a, const std::set<int>& b) {
  return std::includes(b.begin(), b.end(), a.begin(), a.end());
}

// The default of a conventional argument as policy_list() states it, for arguments that a spec leaves out.
inline std::string argument(const oracle::Settings& spec, const std::string& key, const std::string& absent) {
  if (spec.count(key)) return spec.at(key);
  for (const PolicyInfo& info : policy_list()) {
    if (info.name != spec.at("")) continue;
    for (const ArgumentInfo& a : info.arguments) {
      const bool number = !a.fallback.empty() && std::isdigit(static_cast<unsigned char>(a.fallback[0]));
      if (a.name == key && number) return a.fallback;
    }
  }
  return absent;
}

// A policy with tables has those of prepare(policy, E, K, seed).
class Checker {
 public:
  Checker(const Policy& policy, const PolicyProperties& declared, const Case& c, uint64_t seed)
      : policy_(policy), declared_(declared), case_(c), in_(c.input()), rng_(seed) {
    const oracle::Settings spec = oracle::parse(policy.spec());
    const std::string k0 = argument(spec, "k0", "0");
    k0_ = k0 == "auto" ? 0 : k0 == "table" ? random_tables(c.n_experts, c.top_k, seed)->layers[0].k0 : std::stoi(k0);
    p_ = std::stod(argument(spec, "p", "1"));
    k_max_ = std::stoi(argument(spec, "k_max", std::to_string(c.top_k)));
    max_p_ = std::stoi(argument(spec, "max_p", std::to_string(c.n_experts)));
    min_batch_ = std::stoi(argument(spec, "min_batch", "1"));
    norm_ = argument(spec, "norm", "model");
    policy_.select(in_, scratch_, chosen_);
  }

  std::vector<std::string> violations() {
    if (chosen_.rows() != case_.rows()) {
      fail("C1", "the selection has another number of rows");
      return found_;
    }
    structure();
    if (!found_.empty()) return found_;  // the rest presumes sane rows
    counting();
    weights();
    plain_rows();
    identity();
    base_sets();
    unions();
    fills();
    ties();
    repeat();
    permute();
    pads();
    duplicate();
    grow();
    isolated();
    alone();
    relabel();
    other_weights();
    return found_;
  }

 private:
  void fail(const std::string& invariant, const std::string& what) { found_.push_back(invariant + ": " + what); }
  void expect(bool holds, const char* invariant, const std::string& what) {
    if (!holds) fail(invariant, what);
  }
  bool applied(int t) const { return chosen_.reason(t) == PlainReason::kApplied; }
  const TokenInfo& token(int t) const { return case_.tokens[static_cast<size_t>(t)]; }
  std::vector<int> base(int t) const { return oracle::base_set(in_, t, k0_, p_); }
  Selection select(const Case& c) {
    Selection s;
    policy_.select(c.input(), scratch_, s);
    return s;
  }
  bool same_row(const Selection& other, int there, int here) const {
    return row_of(other, there) == row_of(chosen_, here) && other.reason(there) == chosen_.reason(here);
  }

  // The experts that applied rows of `group` use in `s`.
  std::set<int> used_by(const Case& c, const Selection& s, int group) const {
    std::set<int> used;
    for (int t = 0; t < c.rows(); ++t) {
      const bool counts = s.reason(t) == PlainReason::kApplied && c.tokens[static_cast<size_t>(t)].group == group;
      if (counts) used.insert(s.row(t).begin(), s.row(t).end());
    }
    return used;
  }

  void structure() {
    for (int t = 0; t < case_.rows(); ++t) {
      const std::vector<int> row = row_of(chosen_, t);
      const std::vector<int> order = oracle::ranked(in_, t);
      const std::string text = fmt::format("row {} is {}", t, fmt::join(row, " "));
      if (token(t).phase == Phase::kPad) {
        expect(row.empty(), "C2", text + ", a pad");
        continue;
      }
      expect(row.empty() == order.empty(), "C6", text + ": empty exactly when no expert can be chosen");
      const bool in_range = std::all_of(row.begin(), row.end(), [&](int e) { return e >= 0 && e < case_.n_experts; });
      expect(in_range, "C1", text + ": an id is out of range");
      if (!declared_.may_repeat) expect(set_of(row).size() == row.size(), "P3", text + ": an expert occurs twice");
      expect(subset(set_of(row), set_of(order)), "P13", text + ": an expert may not be chosen");
      const auto rank = [&](int e) { return std::find(order.begin(), order.end(), e) - order.begin(); };
      const bool sorted = std::is_sorted(row.begin(), row.end(), [&](int a, int b) { return rank(a) < rank(b); });
      if (!declared_.may_repeat) expect(sorted, "C1", text + ": not best first");
      bool reweighed = chosen_.sum(t) > 0;
      for (int i = chosen_.begin(t); i < chosen_.end(t); ++i) reweighed = reweighed || chosen_.mix(i) >= 0;
      expect(!reweighed || (declared_.reweighs && applied(t)), "reweighs", text + ": slots weigh for other experts");
      const int limit = applied(t) ? k_max_ : case_.top_k;
      const int most = std::max(limit, applied(t) ? case_.top_k : 0);  // a row may keep its plain choice
      expect(static_cast<int>(row.size()) <= most, "O3", text + ": too many experts");
    }
  }

  void counting() {
    Selection plain;
    select_plain(in_, scratch_, plain);
    RoutingCounters counters;
    count(in_, plain, chosen_, scratch_, counters);
    std::set<int> all, all_plain;
    int64_t rerouted = 0, rows = 0;
    for (int t = 0; t < case_.rows(); ++t) {
      const std::vector<int> own = oracle::plain_row(in_, t);
      all.insert(chosen_.row(t).begin(), chosen_.row(t).end());
      all_plain.insert(own.begin(), own.end());
      rerouted += set_of(own) != set_of(row_of(chosen_, t)) ? 1 : 0;
      rows += token(t).phase != Phase::kPad ? 1 : 0;
    }
    expect(counters.distinct_experts == static_cast<int64_t>(all.size()), "C3",
           "the count of distinct experts is wrong");
    expect(counters.distinct_plain == static_cast<int64_t>(all_plain.size()), "C3", "the plain count is wrong");
    expect(counters.rerouted_tokens == rerouted, "C3", "the count of re-routed rows is wrong");
    int64_t by_reason = 0;
    for (int64_t n : counters.plain_rows) by_reason += n;
    expect(by_reason == rows, "C3", "rows by reason do not add up");
    if (declared_.at_most_plain) {
      expect(all.size() <= all_plain.size(), "P5",
             fmt::format("O7: {} experts, plain {}", all.size(), all_plain.size()));
    }
  }

  // What the weights of row t must sum to under the policy's "norm", by its definition.
  double wanted_sum(int t) const {
    const auto mass = [&](const std::vector<int>& experts) {
      double sum = 0;
      for (int e : experts) sum += std::max(0.0f, in_.weight_row(t)[static_cast<size_t>(e)]);
      return sum;
    };
    double own = mass(row_of(chosen_, t)), by_model = 1;
    if (declared_.reweighs && applied(t)) {
      own = 0;
      for (int i = chosen_.begin(t); i < chosen_.end(t); ++i) own += chosen_.mix(i);
      const double plain = mass(oracle::plain_row(in_, t));
      if (plain > 0) by_model = own / plain;  // the model's rule divides by the sum over the plain choice
    }
    if (!applied(t) || norm_ == "model") return by_model;
    if (norm_ == "final") return own > 0 ? 1 : by_model;
    if (norm_ == "none") return own;
    const size_t best = norm_ == "topk" ? static_cast<size_t>(case_.top_k) : std::stoul(norm_);
    const double reference = mass(oracle::first(oracle::ranked(in_, t), best));
    return reference > 0 ? own / reference : by_model;
  }

  void weights() {
    std::vector<float> w(static_cast<size_t>(chosen_.size()));
    finish_weights(Scoring{}, case_.n_experts, case_.weight, chosen_, w);
    for (int t = 0; t < case_.rows(); ++t) {
      double sum = 0;
      bool sane = true;
      for (int i = chosen_.begin(t); i < chosen_.end(t); ++i) {
        const float x = w[static_cast<size_t>(i)];
        sane = sane && std::isfinite(x) && x >= 0;
        sum += x;
      }
      const auto n = static_cast<double>(chosen_.row(t).size());
      expect(sane, "C1", fmt::format("row {} has a weight that is not finite or negative", t));
      // At most n float32 additions here, as many in the divisor, and one division per slot: half-ulp errors each.
      // Slots that stand for others are products and sums themselves.
      const double more = (norm_ == "model" ? 0 : case_.n_experts) + (declared_.reweighs ? 2 * case_.top_k : 0);
      const double wanted = wanted_sum(t), terms = n + more;
      const double bound = terms * wanted * std::numeric_limits<float>::epsilon();
      if (n > 0)
        expect(std::fabs(sum - wanted) <= bound, "P7", fmt::format("C6: row {} has weights that sum to {}", t, sum));
    }
  }

  void plain_rows() {
    for (int t = 0; t < case_.rows(); ++t) {
      const bool own_choice = token(t).phase != Phase::kDecode || token(t).isolated;
      if (own_choice) expect(!applied(t), "C8", fmt::format("P10: row {} is prefill or isolated, yet re-routed", t));
      if (!applied(t)) {
        expect(row_of(chosen_, t) == oracle::plain_row(in_, t), "C8", fmt::format("P9: row {} is not plain", t));
        continue;
      }
      int peers = 0;
      for (const TokenInfo& other : case_.tokens) {
        const bool eligible = other.phase == Phase::kDecode && !other.isolated;
        peers += eligible && other.group == token(t).group ? 1 : 0;
      }
      expect(peers >= min_batch_, "M4", fmt::format("row {} re-routed in a group of {}", t, peers));
      const std::vector<int> top = oracle::first(oracle::ranked(in_, t), static_cast<size_t>(max_p_));
      const bool capped = max_p_ < case_.n_experts && row_of(chosen_, t) != oracle::plain_row(in_, t);
      if (capped)
        expect(subset(set_of(row_of(chosen_, t)), set_of(top)), "P11", fmt::format("row {} is past max_p", t));
    }
  }

  void identity() {
    if (!policy_.is_plain(case_.top_k)) return;
    Selection plain;
    select_plain(in_, scratch_, plain);
    const bool same =
        std::equal(plain.experts().begin(), plain.experts().end(), chosen_.experts().begin(), chosen_.experts().end());
    expect(same, "C7", "P9, O5: says it is plain and is not");
    if (!same) return;
    std::vector<float> a(static_cast<size_t>(plain.size())), b(a.size());
    finish_weights(Scoring{}, case_.n_experts, case_.weight, plain, a);
    finish_weights(Scoring{}, case_.n_experts, case_.weight, chosen_, b);
    expect(a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0, "M3", "weights differ in bits");
  }

  void base_sets() {
    if (!declared_.keeps_top_k0) return;
    for (int t = 0; t < case_.rows(); ++t) {
      if (!applied(t)) continue;
      const std::vector<int> own = base(t);
      const bool kept = oracle::first(row_of(chosen_, t), own.size()) == own;
      expect(kept, "P1", fmt::format("O2: row {} lost part of its base set", t));
    }
  }

  std::set<int> applied_groups() const {
    std::set<int> groups;
    for (int t = 0; t < case_.rows(); ++t) {
      if (applied(t)) groups.insert(token(t).group);
    }
    return groups;
  }

  void unions() {
    if (!declared_.union_exact) return;
    for (int group : applied_groups()) {
      std::set<int> bases;
      int rows = 0;
      for (int t = 0; t < case_.rows(); ++t) {
        if (!applied(t) || token(t).group != group) continue;
        const std::vector<int> own = base(t);
        bases.insert(own.begin(), own.end());
        ++rows;
      }
      const std::set<int> used = used_by(case_, chosen_, group);
      expect(used == bases, "O1",
             fmt::format("P4: group {} uses {}, its base sets are {}", group, fmt::join(used, " "),
                         fmt::join(bases, " ")));
      expect(static_cast<int>(used.size()) <= std::min(case_.n_experts, rows * k0_), "O7", "more than rows times k0");
      if (rows > 1) continue;
      for (int t = 0; t < case_.rows(); ++t) {
        const bool alone = applied(t) && token(t).group == group;
        if (alone)
          expect(set_of(row_of(chosen_, t)) == set_of(base(t)), "O6", "a single row has more than its base set");
      }
    }
  }

  void fills() {
    if (!declared_.fills_union) return;
    for (int t = 0; t < case_.rows(); ++t) {
      if (!applied(t)) continue;
      const std::set<int> used = used_by(case_, chosen_, token(t).group);
      std::vector<int> want;
      for (int e : oracle::first(oracle::ranked(in_, t), static_cast<size_t>(max_p_))) {
        if (used.count(e)) want.push_back(e);
      }
      want = oracle::first(want, static_cast<size_t>(k_max_));
      expect(want.size() == chosen_.row(t).size(), "P2", fmt::format("O3: row {} has the wrong number of experts", t));
      expect(want == row_of(chosen_, t), "P6", fmt::format("O4: row {} did not take the best of the union", t));
    }
  }

  void ties() {
    if (declared_.uses_tables) return;  // tables tell experts apart that scores do not
    for (float r : case_.rank) {
      if (r != case_.rank[0] || !(r > -kInf)) return;
    }
    for (float w : case_.weight) {
      if (w != case_.weight[0]) return;  // pools are filled by weight
    }
    for (int t = 0; t < case_.rows(); ++t) {
      const std::vector<int> row = row_of(chosen_, t);
      for (size_t i = 0; i < row.size(); ++i) {
        expect(row[i] == static_cast<int>(i) || declared_.may_repeat, "M12",
               fmt::format("row {}: ties to lower ids", t));
      }
    }
  }

  void repeat() {
    Selection again;
    Scratch fresh;
    policy_.select(in_, fresh, again);
    for (int t = 0; t < case_.rows(); ++t) expect(same_row(again, t, t), "C5", "a second call differs");
  }

  void permute() {
    std::vector<int> order(static_cast<size_t>(case_.rows()));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), rng_);
    Case c = case_.without_rows();
    for (int t : order) c.add_row_of(case_, t);
    const Selection s = select(c);
    for (int t = 0; t < c.rows(); ++t) {
      expect(same_row(s, t, order[static_cast<size_t>(t)]), "C4", "M1: the order of rows matters");
    }
  }

  void pads() {
    Case c = case_.without_rows();
    std::vector<int> at;
    const auto add_pad = [&] {
      std::vector<float> rank, weight;
      random_row(rng_, {chance(rng_, 50), chance(rng_, 50), false}, c.n_experts, rank, weight);
      if (chance(rng_, 20)) std::fill(rank.begin(), rank.end(), chance(rng_, 50) ? kNan : kInf);
      c.add_row(rank, weight, {Phase::kPad, chance(rng_, 30), chance(rng_, 50) ? 0 : below(rng_, 1000)});
    };
    for (int t = 0; t < case_.rows(); ++t) {
      for (int n = below(rng_, 3); n > 0; --n) add_pad();
      at.push_back(c.rows());
      c.add_row_of(case_, t);
    }
    add_pad();
    const Selection s = select(c);
    for (int t = 0; t < case_.rows(); ++t) {
      expect(same_row(s, at[static_cast<size_t>(t)], t), "C2", "M2: pads changed a row");
    }
  }

  bool same_reasons(const Selection& s) const {
    for (int t = 0; t < case_.rows(); ++t) {
      if (s.reason(t) != chosen_.reason(t)) return false;
    }
    return true;
  }

  void duplicate() {
    if (case_.rows() == 0) return;
    const int twin = below(rng_, case_.rows());
    Case c = case_;
    c.add_row_of(case_, twin);
    const Selection s = select(c);
    expect(row_of(s, c.rows() - 1) == row_of(s, twin), "M5", "twins differ");
    const bool immune = declared_.batch_free || (declared_.union_exact && declared_.fills_union);
    if (!immune || !same_reasons(s)) return;
    for (int t = 0; t < case_.rows(); ++t) expect(same_row(s, t, t), "M5", "a duplicate changed another row");
  }

  void grow() {
    if (case_.rows() == 0 || !declared_.union_exact || !declared_.fills_union) return;
    Case c = case_;
    std::vector<float> rank, weight;
    random_row(rng_, {}, c.n_experts, rank, weight);
    const int group = token(below(rng_, case_.rows())).group;
    c.add_row(rank, weight, {Phase::kDecode, false, group});
    const Selection s = select(c);
    if (!same_reasons(s)) return;
    expect(subset(used_by(case_, chosen_, group), used_by(c, s, group)), "O8", "the union shrank with an added row");
    for (int t = 0; t < case_.rows(); ++t) {
      const auto before = chosen_.row(t), after = s.row(t);
      bool better = after.size() >= before.size();
      for (size_t i = 0; better && i < before.size(); ++i) {
        const auto scores = in_.rank_row(t);
        better = scores[static_cast<size_t>(after[i])] >= scores[static_cast<size_t>(before[i])];
      }
      expect(better, "P8", fmt::format("M6: an added row took something from row {}", t));
    }
  }

  void isolated() {
    for (int victim = 0; victim < case_.rows(); ++victim) {
      if (!token(victim).isolated) continue;
      std::vector<float> rank, weight;
      random_row(rng_, {}, case_.n_experts, rank, weight);
      Case c = case_;
      std::copy(rank.begin(), rank.end(), c.rank.begin() + static_cast<long>(victim) * c.n_experts);
      std::copy(weight.begin(), weight.end(), c.weight.begin() + static_cast<long>(victim) * c.n_experts);
      const Selection s = select(c);
      for (int t = 0; t < case_.rows(); ++t) {
        expect(t == victim || same_row(s, t, t), "P10", "M7: an isolated row changed another row");
      }
    }
  }

  void alone() {
    if (!declared_.batch_free) return;
    for (int t = 0; t < case_.rows(); ++t) {
      Case c = case_.without_rows();
      c.add_row_of(case_, t);
      expect(same_row(select(c), 0, t), "batch_free", fmt::format("row {} is another when alone", t));
    }
  }

  // Whether two choosable experts of a row tie in rank, or two weights of a row tie.
  bool has_ties() const {
    for (int t = 0; t < case_.rows(); ++t) {
      const std::vector<int> order = oracle::ranked(in_, t);
      std::set<float> ranks, masses;
      for (int e : order) {
        ranks.insert(in_.rank_row(t)[static_cast<size_t>(e)]);
        masses.insert(in_.weight_row(t)[static_cast<size_t>(e)]);
      }
      if (ranks.size() < order.size() || masses.size() < order.size()) return true;
    }
    return false;
  }

  // Weights that say something else, with the same order of ranks.
  void other_weights() {
    if (!declared_.by_rank) return;
    Case c = case_;
    for (float& w : c.weight) w = static_cast<float>(1 + below(rng_, 1000));
    const Selection s = select(c);
    for (int t = 0; t < case_.rows(); ++t) {
      expect(same_row(s, t, t), "by_rank", fmt::format("row {} depends on weights", t));
    }
  }

  void relabel() {
    if (p_ < 1 || declared_.ids_decide || declared_.uses_tables || has_ties())
      return;  // with p < 1 the order of a sum over experts is part of the definition
    std::vector<int> label(static_cast<size_t>(case_.n_experts));
    std::iota(label.begin(), label.end(), 0);
    std::shuffle(label.begin(), label.end(), rng_);
    Case c = case_;
    for (int t = 0; t < c.rows(); ++t) {
      for (int e = 0; e < c.n_experts; ++e) {
        const auto from = static_cast<size_t>(t * c.n_experts + e);
        const auto to = static_cast<size_t>(t * c.n_experts + label[static_cast<size_t>(e)]);
        c.rank[to] = case_.rank[from];
        c.weight[to] = case_.weight[from];
      }
    }
    const Selection s = select(c);
    for (int t = 0; t < c.rows(); ++t) {
      std::set<int> want;
      for (int e : chosen_.row(t)) want.insert(label[static_cast<size_t>(e)]);
      expect(want == set_of(row_of(s, t)), "M8", fmt::format("row {} depends on how experts are numbered", t));
    }
  }

  const Policy& policy_;
  const PolicyProperties declared_;
  const Case& case_;
  RouterInput in_;
  Rng rng_;
  int k0_ = 0, k_max_ = 0, max_p_ = 0, min_batch_ = 1;
  std::string norm_;
  double p_ = 1;
  Scratch scratch_;
  Selection chosen_;
  std::vector<std::string> found_;
};

inline std::vector<std::string> violations(const Policy& policy, const PolicyProperties& declared, const Case& c,
                                           uint64_t seed) {
  return Checker(policy, declared, c, seed).violations();
}

}  // namespace carpool::test
