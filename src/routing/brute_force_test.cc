// The policies against the brute-force oracle: all inputs of a small space, and random inputs of every kind.
//
// CARPOOL_ROUTING_CASES sets the number of random cases; ctest runs a million in a test of its own.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <set>

#include "routing/cases_test_util.h"
#include "routing/oracle_test_util.h"
#include "routing/policy.h"

namespace carpool {
namespace {

using test::Case;
using test::Rng;

oracle::Answer solve(const RouterInput& in, const oracle::Settings& settings) {
  const std::string& policy = settings.at("");
  return policy == "oea"     ? oracle::oea(in, settings)
         : policy == "prune" ? oracle::prune(in, settings)
                             : oracle::topk(in);
}

// Where the policy and the oracle part, or an empty text.
std::string difference(const RouterInput& in, const oracle::Answer& want, const Selection& got) {
  if (got.rows() != in.rows()) return "another number of rows";
  for (int t = 0; t < in.rows(); ++t) {
    const std::vector<int>& row = want.rows[static_cast<size_t>(t)];
    const bool same = std::equal(row.begin(), row.end(), got.row(t).begin(), got.row(t).end());
    if (!same) return "other experts in row " + std::to_string(t);
    if (want.reasons[static_cast<size_t>(t)] != got.reason(t)) {
      return "reason " + std::string(name(got.reason(t))) + " in row " + std::to_string(t);
    }
  }
  return "";
}

// Every weak order of four experts as scores (75 of them), and each once more with its last expert forbidden.
std::vector<std::vector<float>> all_rank_orders() {
  std::set<std::vector<float>> orders;
  for (int code = 0; code < 256; ++code) {
    std::vector<float> row;
    for (int e = 0; e < 4; ++e) row.push_back(static_cast<float>(code >> (2 * e) & 3));
    // Kept when the scores are exactly 0..m-1: one representative per weak order.
    const std::set<float> values(row.begin(), row.end());
    if (*values.rbegin() == static_cast<float>(values.size() - 1)) orders.insert(row);
  }
  std::vector<std::vector<float>> rows(orders.begin(), orders.end());
  for (int forbidden = 0; forbidden < 4; ++forbidden) {
    std::vector<float> row = {2, 1, 1, 3};
    row[static_cast<size_t>(forbidden)] = forbidden % 2 ? -test::kInf : test::kNan;
    rows.push_back(row);
  }
  return rows;
}

TEST(BruteForce, AllInputsOfTwoRowsAndFourExpertsAgreeWithTheOracle) {
  const std::vector<std::vector<float>> orders = all_rank_orders();
  ASSERT_EQ(orders.size(), 75u + 4u);
  std::vector<std::string> specs = {"topk"};
  for (int k0 = 0; k0 <= 4; ++k0) {
    specs.push_back("prune:k0=" + std::to_string(k0));
    specs.push_back("oea:k0=" + std::to_string(k0));
    specs.push_back("oea:k0=" + std::to_string(k0) + ",min_batch=1,guard=off");
  }
  const TokenInfo kinds[] = {{Phase::kDecode, false, 0},
                             {Phase::kDecode, true, 0},
                             {Phase::kPrefill, false, 0},
                             {Phase::kPad, false, 0},
                             {Phase::kDecode, false, 1}};
#ifdef CARPOOL_SANITIZED
  constexpr size_t kStride = 10;  // memory errors need no exhaustive search
#else
  constexpr size_t kStride = 1;
#endif
  Scratch scratch;
  Selection got;
  int64_t cases = 0;
  for (const std::string& spec : specs) {
    const auto policy = make_policy(spec);
    const oracle::Settings settings = oracle::parse(spec);
    for (int top_k = std::max(1, oracle::get_int(settings, "k0", 0)); top_k <= 4; ++top_k) {
      for (size_t first = 0; first < orders.size(); ++first) {
        for (size_t second = 0; second < orders.size(); second += kStride) {
          Case c{4, top_k, {}, {}, {}};
          c.add_row(orders[first], orders[first]);
          c.add_row(orders[second], orders[second]);
          for (int kind = 0; kind < 25; ++kind) {
            c.tokens = {kinds[kind / 5], kinds[kind % 5]};
            const RouterInput in = c.input();
            policy->select(in, scratch, got);
            const std::string what = difference(in, solve(in, settings), got);
            ASSERT_EQ(what, "") << spec << " K=" << top_k << " orders " << first << " " << second << " kind " << kind;
            ++cases;
          }
        }
      }
    }
  }
  RecordProperty("cases", std::to_string(cases));
  EXPECT_GT(cases, 7'000'000 / static_cast<int64_t>(kStride));
}

TEST(BruteForce, RandomBatchesAgreeWithTheOracle) {
  const char* wanted = std::getenv("CARPOOL_ROUTING_CASES");
  const int64_t cases = wanted ? std::atoll(wanted) : 20'000;
  ASSERT_GT(cases, 0) << "CARPOOL_ROUTING_CASES must be a positive number";
  Scratch scratch;  // shared by all cases: what an earlier one left must not matter
  Selection got;
  std::array<int64_t, kPlainReasons> reasons{};
  for (int64_t i = 0; i < cases; ++i) {
    Rng rng(static_cast<uint64_t>(i) + 1'000'000'007);
    const Case c = test::random_case(rng);
    std::string spec = test::random_oea_spec(rng, c);
    if (i % 10 == 8) spec = "prune:k0=" + std::to_string(test::below(rng, c.top_k + 1)) + (i % 20 == 8 ? ",p=0.6" : "");
    if (i % 10 == 9) spec = "topk";
    const auto policy = make_policy(spec);
    policy->check(c.n_experts, c.top_k);
    const RouterInput in = c.input();
    policy->select(in, scratch, got);
    const oracle::Answer want = solve(in, oracle::parse(spec));
    ASSERT_EQ(difference(in, want, got), "") << spec << ", case " << i;
    for (PlainReason reason : want.reasons) ++reasons[static_cast<size_t>(reason)];
  }
  // No power without variety: every reason must have been met.
  for (size_t r = 0; r < reasons.size(); ++r) {
    if (static_cast<PlainReason>(r) == PlainReason::kBudget) continue;  // of policies that the oracle does not have
    EXPECT_GT(reasons[r], 0) << name(static_cast<PlainReason>(r)) << " never occurred";
  }
}

}  // namespace
}  // namespace carpool
