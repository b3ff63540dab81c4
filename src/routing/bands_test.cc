// Each group is decided by the policy of its number of rows, as if that policy decided alone.
#include "routing/bands.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "routing/cases_test_util.h"
#include "routing/tables_test_util.h"

namespace carpool {
namespace {

Selection select(const Policy& policy, const test::Case& c) {
  Scratch scratch;
  Selection out;
  policy.select(c.input(), scratch, out);
  return out;
}

std::vector<int> row(const Selection& s, int t) { return {s.row(t).begin(), s.row(t).end()}; }

TEST(Bands, TheNumberOfRowsOfAGroupChoosesThePolicy) {
  test::Rng rng(5);
  const auto bands = make_policy("bands:2=oea:k0=1,guard=off;4=prune:k0=1;7=topk");
  const auto small = make_policy("oea:k0=1,guard=off"), middle = make_policy("prune:k0=1"), plain = make_policy("topk");
  int seen[4] = {};
  for (int i = 0; i < 2000; ++i) {
    test::Case c = test::random_case(rng);
    for (TokenInfo& token : c.tokens) token.policy = 0;
    const Selection chosen = select(*bands, c);
    ASSERT_EQ(chosen.rows(), c.rows());
    for (int t = 0; t < c.rows(); ++t) {
      int rows = 0;
      for (const TokenInfo& token : c.tokens)
        rows +=
            token.phase == Phase::kDecode && !token.isolated && token.group == c.tokens[static_cast<size_t>(t)].group;
      const int band = rows < 2 ? 0 : rows < 4 ? 1 : rows < 7 ? 2 : 3;
      const Policy& expected = band == 1 ? *small : band == 2 ? *middle : *plain;
      EXPECT_EQ(row(chosen, t), row(select(expected, c), t)) << "case " << i << " row " << t << " of " << rows;
      const TokenInfo& token = c.tokens[static_cast<size_t>(t)];
      if (band == 0 && token.phase == Phase::kDecode && !token.isolated)
        EXPECT_EQ(chosen.reason(t), PlainReason::kMinBatch);
      ++seen[band];
    }
  }
  for (const int n : seen) EXPECT_GT(n, 100) << "every band had its rows";
}

TEST(Bands, TheSpecIsCanonicalAndReadsBack) {
  const auto bands = make_policy("bands:4=oea:min_batch=2,k0=5;16=topk");
  EXPECT_EQ(bands->spec(), "bands:4=oea:k0=5;16=topk");
  EXPECT_EQ(make_policy(bands->spec())->spec(), bands->spec());
  EXPECT_FALSE(bands->is_plain(8));
  EXPECT_TRUE(make_policy("bands:4=topk;8=oea:k0=8")->is_plain(8));
  EXPECT_THROW(bands->check(64, 4), Error) << "k0 above K";
  EXPECT_NO_THROW(bands->check(64, 8));
}

TEST(Bands, BandsShareOneFileOfTables) {
  const auto bands = make_policy("bands:2=prune:k0=1;4=sere:table=t,k0=1;7=oea:k0=table,table=t,guard=off");
  EXPECT_EQ(bands->tables_file(), "t");
  EXPECT_TRUE(bands->properties().uses_tables);
  EXPECT_EQ(make_policy("bands:2=prune:k0=1")->tables_file(), "");
  EXPECT_THROW(bands->check(8, 4), Error) << "no tables yet";
  EXPECT_THROW(make_policy("bands:2=sere:table=t,k0=1;4=exfold:table=u,m=4"), Error) << "two files";
  test::Rng rng(7);
  int tabled = 0;
  for (int i = 0; i < 400; ++i) {
    test::Case c = test::random_case(rng);
    for (TokenInfo& token : c.tokens) token = {Phase::kDecode, false, 0};
    const auto tables = test::random_tables(c.n_experts, c.top_k, static_cast<uint64_t>(i));
    bands->use_tables(tables);
    bands->check(c.n_experts, c.top_k);
    const int rows = c.rows();
    const auto alone = make_policy(rows < 2   ? "topk"
                                   : rows < 4 ? "prune:k0=1"
                                   : rows < 7 ? "sere:table=t,k0=1"
                                              : "oea:k0=table,table=t,guard=off");
    if (!alone->tables_file().empty()) alone->use_tables(tables);
    tabled += rows >= 4;
    const Selection got = select(*bands, c), want = select(*alone, c);
    for (int t = 0; t < rows; ++t) {
      ASSERT_EQ(row(got, t), row(want, t)) << "case " << i << " row " << t << " of " << rows;
      for (int s = got.begin(t); s < got.end(t); ++s) EXPECT_EQ(got.mix(s), want.mix(s)) << "case " << i;
    }
  }
  EXPECT_GT(tabled, 50);
}

TEST(Bands, WhatIsNoTextOfBandsIsOneSentence) {
  for (const char* bad : {"bands:", "bands:oea:k0=5", "bands:0=topk", "bands:4=topk;4=topk", "bands:8=topk;4=topk",
                          "bands:4=topk;", "bands:4=unknown", "bands:4=bands:2=topk", "bands:x=topk",
                          "bands:99999999999=topk", "bands:4=oea:k0=5;oea:k0=4"}) {
    try {
      make_policy(bad);
      ADD_FAILURE() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kConfig) << bad;
    }
  }
}

}  // namespace
}  // namespace carpool
