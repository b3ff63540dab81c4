// Several policies in one step: each row is decided by the policy that its TokenInfo names.
//
// Owns PolicySet, a Policy made of others. To each of them the rows of the others are isolated: they neither lend nor
// borrow, so what it chooses for its own rows is what it would choose without them (max_rows, which counts rows of the
// whole step, sees them). With one policy, or rows of one policy only, the set is that policy. Counters tell the
// policies of a step apart by themselves (counters.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "routing/policy.h"

namespace carpool {

class PolicySet final : public Policy {
 public:
  // TokenInfo::policy is an index of `policies`, at least one of them; rows with any other index stay plain. The
  // policies outlive the set, and none of them is a set.
  explicit PolicySet(std::vector<const Policy*> policies);

  void select(const RouterInput& in, Scratch& scratch, Selection& out) const override;

  // What holds for every choice of policies, row by row; that of the policy when there is one.
  const PolicyProperties& properties() const override { return properties_; }
  std::string spec() const override;  // of all, with " | " between them
  bool is_plain(int top_k) const override;
  void check(int n_experts, int top_k) const override;

 private:
  std::vector<const Policy*> policies_;
  PolicyProperties properties_;
};

}  // namespace carpool
