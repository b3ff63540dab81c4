// Policies that choose a pool of experts for each group of rows by a vote, and let every row take its best from it.
//
// Owns PoolPolicy, which does everything but the vote: groups, guards, protected and kept experts, filling. A pool
// holds the experts that some row of the group protects, then those with the most votes until the budget is reached;
// each row takes its K best of the pool. Votes are integers, so that their sums have no order. Read next: xshare.cc.
#pragma once

#include <string>

#include "routing/budget.h"
#include "routing/registry.h"
#include "routing/scope.h"

namespace carpool {

struct PoolArguments {
  Budget budget;
  BatchGuards guards;
  bool budget_guard = true;
  Divisor divisor;
  KeptExperts kept;
};

// Reads what every pool policy has: "min_batch", "max_rows", "norm" and "always", and "guard" where the policy can find
// a group within its budget; their descriptions follow.
PoolArguments read_pool_arguments(Arguments& arguments, const Budget& budget, bool has_guard = true);
std::vector<ArgumentInfo> with_pool_arguments(std::vector<ArgumentInfo> own, bool has_guard = true);

class PoolPolicy : public PolicyBase {
 public:
  PoolPolicy(const PoolArguments& arguments, std::string spec, const PolicyProperties& properties,
             std::string table = "", TableKind need = {})
      : PolicyBase(std::move(spec), properties, std::move(table), need), pool_(arguments) {}

  void select(const RouterInput& in, Scratch& scratch, Selection& out) const final;
  bool is_plain(int) const override { return false; }
  void check(int n_experts, int top_k) const override;

 protected:
  static constexpr int64_t kUnit = int64_t{1} << 40;  // of a vote by weight
  static int64_t vote_of(float weight) {
    return weight > 0 ? static_cast<int64_t>(std::min(weight, 1024.0f) * static_cast<float>(kUnit)) : 0;
  }

  // The size of the pool, protected experts included, where plain routing loads `plain` experts.
  virtual int size(int plain) const { return pool_.budget.of(plain); }

 private:
  // Adds what row t says to votes [E]; `best` are its K best experts.
  virtual void vote(const RouterInput& in, int t, std::span<const int> best, std::span<int64_t> votes) const = 0;
  // How many of row t's best experts are in the pool whatever the votes.
  virtual int protects(const RouterInput& in, int t, std::span<const int> best) const = 0;
  // Whether the layer is the policy's at all; where not, it is plain.
  virtual bool applies(const RouterInput&) const { return true; }
  // Writes applied row t, whose pool is set `pool`: by default its K best of it.
  virtual void take(const RouterInput& in, int t, int pool, const ExpertSets& sets, Scratch& scratch,
                    Selection& out) const;
  void collect(const RouterInput& in, Scratch& scratch, int n_groups, ExpertSets& sets) const;
  void choose(const RouterInput& in, int g, int n_groups, Scratch& scratch, ExpertSets& sets) const;
  void admit_best_of_empty_rows(const RouterInput& in, int n_groups, Scratch& scratch, ExpertSets& sets) const;

  PoolArguments pool_;
};

}  // namespace carpool
