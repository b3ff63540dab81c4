#include "measure/bench_routing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>

#include "base/error.h"

namespace carpool {
namespace {

void expect_refused(const std::string& text, const std::string& part) {
  try {
    parse_routing(text);
    ADD_FAILURE() << text << " was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kConfig) << text;
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST(BenchRouting, TheTextSaysWhichKind) {
  EXPECT_EQ(parse_routing("uniform").skew, 0);
  EXPECT_EQ(parse_routing("skewed").skew, 1);
  EXPECT_EQ(parse_routing("skewed:0.75").skew, 0.75);
  EXPECT_TRUE(parse_routing("skewed").forced.empty());
  const std::vector<ForcedRouting> forced = parse_routing("forced:8x1,16x4").forced;
  ASSERT_EQ(forced.size(), 2u);
  EXPECT_EQ(forced[0].experts, 8);
  EXPECT_EQ(forced[0].rows, 1);
  EXPECT_EQ(forced[1].experts, 16);
  EXPECT_EQ(forced[1].rows, 4);
}

TEST(BenchRouting, OtherTextsAreRefusedWithWhatThereIs) {
  expect_refused("", "unknown; there are uniform, skewed, skewed:S and forced:EXPERTSxROWS");
  expect_refused("zipf", "unknown");
  expect_refused("uniform:1", "unknown");
  expect_refused("skewed:0", "above 0 and at most 10");
  expect_refused("skewed:11", "above 0 and at most 10");
  expect_refused("skewed:nan", "above 0");
  expect_refused("skewed:1x", "above 0");
  expect_refused("forced", "\"\" is not EXPERTSxROWS");
  expect_refused("forced:8", "\"8\" is not EXPERTSxROWS");
  expect_refused("forced:8x", "\"8x\" is not EXPERTSxROWS");
  expect_refused("forced:8x1,", "\"\" is not EXPERTSxROWS");
  expect_refused("forced:0x1", "must be 1 to 4096");
  expect_refused("forced:8x4097", "must be 1 to 4096");
  expect_refused("forced:-8x1", "must be 1 to 4096");
}

// Share of draws in which each expert has the largest logit.
std::vector<double> first_shares(const LogitSource& source, int n_experts, int draws) {
  std::vector<double> shares(static_cast<size_t>(n_experts));
  std::vector<float> logits(shares.size());
  for (int d = 0; d < draws; ++d) {
    source.draw(static_cast<uint64_t>(d), logits);
    shares[static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin())] += 1.0 / draws;
  }
  return shares;
}

TEST(BenchRouting, UniformLogitsGiveEveryExpertTheSameShare) {
  constexpr int kExperts = 16, kDraws = 20000;
  const double p = 1.0 / kExperts, sigma = std::sqrt(p * (1 - p) / kDraws);
  for (const double share : first_shares(LogitSource(kExperts, 0, 1), kExperts, kDraws)) {
    EXPECT_NEAR(share, p, 5 * sigma);
  }
}

TEST(BenchRouting, SkewedSharesFollowTheRankToThePowerOfMinusS) {
  constexpr int kExperts = 16, kDraws = 40000;
  for (const double skew : {1.0, 2.0}) {
    std::vector<double> shares = first_shares(LogitSource(kExperts, skew, 1), kExperts, kDraws);
    std::sort(shares.rbegin(), shares.rend());
    double sum = 0;
    for (int r = 1; r <= kExperts; ++r) sum += std::pow(r, -skew);
    for (int r = 1; r <= 3; ++r) {
      const double p = std::pow(r, -skew) / sum;
      EXPECT_NEAR(shares[static_cast<size_t>(r) - 1], p, 5 * std::sqrt(p * (1 - p) / kDraws)) << "rank " << r;
    }
  }
}

TEST(BenchRouting, LogitsFollowTheSeeds) {
  std::vector<float> a(64), b(64), c(64), d(64);
  LogitSource(32, 1, 5).draw(7, a);
  LogitSource(32, 1, 5).draw(7, b);
  LogitSource(32, 1, 5).draw(8, c);
  LogitSource(32, 1, 6).draw(7, d);
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
  EXPECT_NE(a, d) << "another permutation of the popularity";
}

TEST(BenchRouting, ForcedSelectionsHaveExactlyTheExpertsAndRowsAskedFor) {
  for (const ForcedRouting& f : {ForcedRouting{8, 1}, {8, 8}, {1, 5}, {3, 7}, {64, 2}, {13, 3}}) {
    constexpr int kExperts = 64, kTopK = 8;
    Selection chosen;
    force_selection(f, kExperts, kTopK, 9, chosen);
    EXPECT_EQ(chosen.rows(), forced_tokens(f, kTopK));
    std::map<int, int> rows;
    for (int t = 0; t < chosen.rows(); ++t) {
      const std::span<const int> row = chosen.row(t);
      EXPECT_LE(row.size(), static_cast<size_t>(kTopK));
      EXPECT_EQ(std::set<int>(row.begin(), row.end()).size(), row.size()) << "no token has an expert twice";
      for (const int e : row) ++rows[e];
    }
    EXPECT_EQ(rows.size(), static_cast<size_t>(f.experts));
    for (const auto& [expert, n] : rows) {
      EXPECT_TRUE(expert >= 0 && expert < kExperts);
      EXPECT_EQ(n, f.rows) << f.experts << "x" << f.rows;
    }
  }
}

TEST(BenchRouting, ForcedExpertsChangeFromStepToStep) {
  Selection a, b;
  force_selection({8, 1}, 128, 8, 1, a);
  force_selection({8, 1}, 128, 8, 2, b);
  EXPECT_FALSE(std::equal(a.experts().begin(), a.experts().end(), b.experts().begin()));
}

}  // namespace
}  // namespace carpool
