// Scores against sums by hand, and documents in step against the same documents alone.
#include "measure/policy_score.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "model/golden_test_util.h"

namespace carpool {
namespace {

LockstepRun run_of(std::vector<double> loss, std::vector<double> kl, std::vector<float> token_kl) {
  LockstepRun run;
  run.loss = std::move(loss);
  run.kl = std::move(kl);
  run.agree.assign(run.loss.size(), 0.75);
  run.token_kl = std::move(token_kl);
  run.predictions = static_cast<int64_t>(run.token_kl.size());
  return run;
}

TEST(PolicyScore, MeansAreOverDocumentsAndQuantilesOverTokens) {
  const LockstepRun plain = run_of({2, 4}, {0, 0}, {});
  const LockstepRun run = run_of({2.5, 4.1}, {0.2, 0.4}, {0, 0.1F, 0.2F, 0.9F});
  const PolicyScore s = score_run("oea:k0=3", 2, run, plain);
  EXPECT_NEAR(s.cross_entropy.value, 3.3, 1e-12);
  EXPECT_NEAR(s.cross_entropy_delta.value, 0.3, 1e-12);
  EXPECT_NEAR(s.cross_entropy_delta.lo, 0.1, 1e-12) << "both resampled documents are the second";
  EXPECT_NEAR(s.cross_entropy_delta.hi, 0.5, 1e-12);
  EXPECT_NEAR(s.kl_mean.value, 0.3, 1e-12);
  EXPECT_EQ(s.kl_p99, 0.9F);
  EXPECT_EQ(s.top1_agreement.value, 0.75);
  const std::vector<std::string> lines = document_lines("oea:k0=3", 2, run, plain);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NEAR(parse_json(lines[1], "line").at("cross_entropy_delta").to_number<double>(), 0.1, 1e-12);
}

TEST(PolicyScore, AQuantileIsTheNearestRank) {
  EXPECT_EQ(quantile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(quantile({3, 1, 2}, 0), 1);
  EXPECT_EQ(quantile({3, 1, 2}, 1), 3);
  EXPECT_EQ(quantile({}, 0.5), 0);
}

TEST(Lockstep, SeedsRegroupDocumentsAndARowOfTopkDoesNotSeeIt) {
  Model model = golden::load("bf16_tied");
  Documents documents(8);
  unsigned seed = 3;
  for (auto& d : documents) {
    for (int i = 0; i < 10; ++i) d.push_back(static_cast<int>((seed = seed * 1664525u + 1013904223u) >> 16) % 96);
  }
  const auto oea = make_policy("oea:k0=1,guard=off");
  const auto runs = [&](std::vector<uint64_t> seeds) {
    return decode_in_step(model, {oea.get()}, documents, {2, std::move(seeds), {}, nullptr});
  };
  const auto in_order = runs({0}), shuffled = runs({9}), both = runs({0, 9});
  ASSERT_EQ(in_order.size(), 2u) << "topk and the policy";
  EXPECT_EQ(in_order[0].loss, shuffled[0].loss) << "to the bit";
  EXPECT_NE(in_order[1].loss, shuffled[1].loss);
  for (size_t d = 0; d < documents.size(); ++d)
    EXPECT_NEAR(both[1].kl[d], (in_order[1].kl[d] + shuffled[1].kl[d]) / 2, 1e-9);
  EXPECT_EQ(in_order[1].steps.size(), 4u * 9u);
  EXPECT_EQ(both[1].token_kl.size(), 2u * 8u * 9u);
  EXPECT_EQ(in_order[0].kl, std::vector<double>(8, 0.0));
  EXPECT_EQ(in_order[0].agree, std::vector<double>(8, 1.0));
}

}  // namespace
}  // namespace carpool
