// A policy for every number of rows: which of several decides depends on how many rows there are to decide.
//
// Owns Bands, a Policy made of others, and its text: "bands:4=oea:k0=5;16=oea:k0=4,min_batch=2;64=topk". A group of n
// rows that a policy may re-route is decided by the policy of the largest number that is not above n; with fewer rows
// than the first number it stays plain (reason min_batch). Groups of different bands do not see each other. Bands
// with tables have them from one file. This is
// what `carpool tune` writes and --policy auto reads: savings and costs depend on the size of the batch.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "routing/policy_set.h"

namespace carpool {

struct Band {
  int from = 1;  // rows, up to the next band's
  std::unique_ptr<Policy> policy;
};

class Bands final : public Policy {
 public:
  // At least one band, `from` ascending and at least 1.
  explicit Bands(std::vector<Band> bands);

  void select(const RouterInput& in, Scratch& scratch, Selection& out) const override;
  const PolicyProperties& properties() const override { return properties_; }
  std::string spec() const override;
  bool is_plain(int top_k) const override;
  void check(int n_experts, int top_k) const override;
  int layers() const override;
  std::string tables_file() const override;
  void use_tables(std::shared_ptr<const RoutingTables> tables) override;

 private:
  std::vector<Band> bands_;
  std::unique_ptr<Policy> below_;   // decides the groups below the first band
  std::unique_ptr<PolicySet> set_;  // below_, then the bands
  PolicyProperties properties_;
};

inline constexpr std::string_view kBandsPrefix = "bands:";

// The policy of the text behind "bands:". Error{kConfig} when it is none.
std::unique_ptr<Policy> make_bands(std::string_view text);

}  // namespace carpool
