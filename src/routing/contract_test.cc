// Every registered policy against the invariants that its declared properties imply, and the checker itself against
// false declarations and sabotaged policies: a contract that cannot fail promises nothing.
#include <gtest/gtest.h>

#include <memory>

#include "base/error.h"
#include "routing/contract_test_util.h"

namespace carpool {
namespace {

using test::Case;
using test::Rng;

// Gives the policy its tables, if it has any, for case `i`; whether it fits the case then.
bool fits(Policy& policy, const Case& c, int i) {
  test::prepare(policy, c.n_experts, c.top_k, static_cast<uint64_t>(i));
  try {
    policy.check(c.n_experts, c.top_k);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// The invariants ("O1", "P6" ...) that `policy` breaks under `declared` within `n` random cases.
std::set<std::string> broken(Policy& policy, const PolicyProperties& declared, int n) {
  std::set<std::string> names;
  for (int i = 0; i < n; ++i) {
    Rng rng(static_cast<uint64_t>(i));
    const Case c = test::random_case(rng);
    if (!fits(policy, c, i)) continue;
    for (const std::string& v : test::violations(policy, declared, c, static_cast<uint64_t>(i))) {
      names.insert(v.substr(0, v.find(':')));
    }
  }
  return names;
}

TEST(Contract, EveryPolicyKeepsWhatItsPropertiesPromise) {
  constexpr int kCases = 1500;
  for (const PolicyInfo& info : policy_list()) {
    ASSERT_FALSE(info.examples.empty()) << info.name << " names no example specs";
    for (const std::string& spec : info.examples) {
      const std::unique_ptr<Policy> policy = make_policy(spec);
      int ran = 0;
      for (int i = 0; i < kCases; ++i) {
        Rng rng(static_cast<uint64_t>(i));
        const Case c = test::random_case(rng);
        if (!fits(*policy, c, i)) continue;
        ++ran;
        const auto found = test::violations(*policy, policy->properties(), c, static_cast<uint64_t>(i));
        ASSERT_TRUE(found.empty()) << spec << ", case " << i << ": " << found.front();
      }
      EXPECT_GT(ran, kCases / 4) << spec << " fits too few cases to be tested";
    }
  }
}

TEST(Contract, EveryExampleIsCanonicalAndTogetherTheyUseEveryArgument) {
  for (const PolicyInfo& info : policy_list()) {
    std::set<std::string> unused;
    for (const ArgumentInfo& a : info.arguments) unused.insert(a.name);
    for (const std::string& spec : info.examples) {
      EXPECT_EQ(make_policy(spec)->spec(), spec);
      for (const auto& [key, value] : oracle::parse(spec)) unused.erase(key);
    }
    EXPECT_TRUE(unused.empty()) << info.name << " never sets " << *unused.begin();
  }
}

TEST(Contract, DefaultArgumentsHaveTheDeclaredProperties) {
  const auto properties = [](const PolicyProperties& p) {
    return std::vector<bool>{p.union_exact, p.keeps_top_k0,  p.fills_union, p.batch_free, p.may_repeat,
                             p.ids_decide,  p.at_most_plain, p.uses_tables, p.reweighs};
  };
  for (const PolicyInfo& info : policy_list()) {
    std::string spec = info.name;
    for (const ArgumentInfo& a : info.arguments) {
      if (a.fallback == "required") spec += (spec == info.name ? ":" : ",") + a.name + "=1";
    }
    EXPECT_EQ(properties(make_policy(spec)->properties()), properties(info.properties)) << spec;
  }
}

struct FalseClaim {
  const char* spec;
  bool PolicyProperties::* property;
  const char* invariant;
};

TEST(Contract, AFalseDeclarationIsCaught) {
  const FalseClaim claims[] = {
      {"prune:k0=2", &PolicyProperties::fills_union, "P6"},
      {"oea:k0=2", &PolicyProperties::batch_free, "batch_free"},
      {"oea:k0=1,min_batch=1,guard=off", &PolicyProperties::batch_free, "batch_free"},
      {"xshare:m=3", &PolicyProperties::by_rank, "by_rank"},
      {"top_p:p=0.6", &PolicyProperties::by_rank, "by_rank"},
      {"oea:k0=1,floor=0.3,guard=off", &PolicyProperties::by_rank, "by_rank"},
      {"oea:k0=1,underfill=keep,guard=off", &PolicyProperties::union_exact, "O1"},
      {"oea:k0=2,lend=prefill,guard=off", &PolicyProperties::union_exact, "O1"},
      {"sere:table=t.tables,k0=2", &PolicyProperties::batch_free, "batch_free"},
      {"sere:table=t.tables,k0=2", &PolicyProperties::union_exact, "O1"},
      {"sere:table=t.tables,k0=2", &PolicyProperties::fills_union, "P6"},
      {"exfold:table=t.tables,m=3", &PolicyProperties::by_rank, "by_rank"},
      {"exfold:table=t.tables,m=3,pool=static,guard=off", &PolicyProperties::at_most_plain, "P5"},
      {"cache_prior:table=t.tables,lambda=0.5", &PolicyProperties::at_most_plain, "P5"},
  };
  for (const FalseClaim& claim : claims) {
    const auto policy = make_policy(claim.spec);
    PolicyProperties declared = policy->properties();
    ASSERT_FALSE(declared.*claim.property) << claim.spec;
    declared.*claim.property = true;
    EXPECT_TRUE(broken(*policy, declared, 1000).count(claim.invariant)) << claim.spec << " " << claim.invariant;
  }
}

// The oracle with a deliberate fault, as a policy. Says of itself what OEA says.
class Sabotaged final : public Policy {
 public:
  Sabotaged(std::string spec, oracle::Fault fault) : spec_(std::move(spec)), fault_(fault) {}

  void select(const RouterInput& in, Scratch&, Selection& out) const override {
    const oracle::Answer answer = oracle::oea(in, oracle::parse(spec_), fault_);
    out.start(in.rows(), in.n_experts);
    for (size_t t = 0; t < answer.rows.size(); ++t) {
      for (int e : answer.rows[t]) out.push(e);
      out.end_row(answer.reasons[t]);
    }
  }
  const PolicyProperties& properties() const override { return properties_; }
  std::string spec() const override { return spec_; }
  bool is_plain(int) const override { return false; }
  void check(int n_experts, int top_k) const override { make_policy(spec_)->check(n_experts, top_k); }

 private:
  std::string spec_;
  oracle::Fault fault_;
  PolicyProperties properties_ = make_policy("oea:k0=1")->properties();
};

TEST(Contract, APolicyWithTablesIsRefusedWithoutThemAndNoOtherNamesAFile) {
  for (const PolicyInfo& info : policy_list()) {
    for (const std::string& spec : info.examples) {
      const auto policy = make_policy(spec);
      const bool needs = policy->properties().uses_tables;
      EXPECT_EQ(!policy->tables_file().empty(), needs) << spec;
      if (!needs) continue;
      EXPECT_THROW(policy->check(8, 4), Error) << spec << " without tables";
      policy->use_tables(test::random_tables(9, 4, 1));
      EXPECT_THROW(policy->check(8, 4), Error) << spec << " with tables of other layers";
      auto bare = std::make_shared<RoutingTables>();
      bare->n_experts = 8;
      bare->top_k = 4;
      bare->layers.resize(1);
      policy->use_tables(bare);
      EXPECT_THROW(policy->check(8, 4), Error) << spec << " with a file that lacks its table";
    }
  }
}

TEST(Contract, SlotsThatStandForOthersMustBeDeclared) {
  const auto policy = make_policy("sere:table=t.tables,k0=1,rho=0");
  PolicyProperties declared = policy->properties();
  declared.reweighs = false;
  EXPECT_TRUE(broken(*policy, declared, 1000).count("reweighs"));
}

struct Sabotage {
  const char* what;
  oracle::Fault fault;
  const char* invariant;  // one that must be broken
};

TEST(Contract, ASabotagedPolicyIsCaught) {
  const Sabotage cases[] = {
      {"every expert counts as in the union", oracle::Fault::kEverythingIsInUnion, "O1"},
      {"no expert counts as in the union", oracle::Fault::kNothingIsInUnion, "P6"},
      {"pads lend", oracle::Fault::kPadsLend, "C2"},
      {"isolated rows lend", oracle::Fault::kIsolatedLends, "P10"},
      {"ties go to the higher id", oracle::Fault::kTiesToHigherId, "C1"},
      {"the best expert is dropped", oracle::Fault::kDropsBest, "P1"},
      {"the best expert comes twice", oracle::Fault::kRepeatsBest, "P3"},
      {"prefill rows are re-routed", oracle::Fault::kReroutesPrefill, "C8"},
      {"only the first row lends", oracle::Fault::kFirstRowOnlyLends, "C4"},
      {"groups are ignored", oracle::Fault::kIgnoresGroups, "O1"},
      {"the second of a base set is dropped", oracle::Fault::kForgetsSecondBase, "P1"},
  };
  for (const Sabotage& sabotage : cases) {
    Sabotaged policy("oea:k0=2,min_batch=1,guard=off", sabotage.fault);
    EXPECT_TRUE(broken(policy, policy.properties(), 1000).count(sabotage.invariant)) << sabotage.what;
  }
}

TEST(Contract, TheSameOracleWithoutAFaultIsNotAccused) {
  Sabotaged policy("oea:k0=2,min_batch=1,guard=off", oracle::Fault::kNone);
  EXPECT_TRUE(broken(policy, policy.properties(), 1000).empty());
}

// Loads one expert more than plain routing whenever it can: what at_most_plain must notice.
class Greedy final : public Policy {
 public:
  void select(const RouterInput& in, Scratch&, Selection& out) const override {
    out.start(in.rows(), in.top_k + 1);
    for (int t = 0; t < in.rows(); ++t) {
      const bool decode = in.tokens[static_cast<size_t>(t)].phase == Phase::kDecode;
      const bool eligible = decode && !in.tokens[static_cast<size_t>(t)].isolated;
      std::vector<int> row = oracle::plain_row(in, t);
      const std::vector<int> order = oracle::ranked(in, t);
      if (eligible && !row.empty()) row.back() = order.back();
      for (int e : row) out.push(e);
      out.end_row(eligible ? PlainReason::kApplied : PlainReason::kPhase);
    }
  }
  const PolicyProperties& properties() const override { return properties_; }
  std::string spec() const override { return "greedy"; }
  bool is_plain(int) const override { return false; }
  void check(int, int) const override {}

 private:
  PolicyProperties properties_{.batch_free = true, .at_most_plain = true};
};

TEST(Contract, LoadingMoreThanPlainRoutingIsCaught) {
  Greedy greedy;
  EXPECT_TRUE(broken(greedy, greedy.properties(), 1000).count("P5"));
}

}  // namespace
}  // namespace carpool
