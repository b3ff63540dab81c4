// Pruning: k0 experts per decode row, nothing else touched, never guarded.
#include <gtest/gtest.h>

#include "base/error.h"
#include "routing/cases_test_util.h"
#include "routing/policy.h"

namespace carpool {
namespace {

Selection run(const std::string& spec, const test::Case& c) {
  Scratch scratch;
  Selection chosen;
  make_policy(spec)->select(c.input(), scratch, chosen);
  return chosen;
}

test::Case four_rows() {
  test::Case c{4, 3, {}, {}, {}};
  c.add_row({4, 3, 2, 1}, {4, 3, 2, 1}, {Phase::kDecode, false, 0});
  c.add_row({1, 2, 3, 4}, {1, 2, 3, 4}, {Phase::kDecode, true, 0});
  c.add_row({1, 2, 3, 4}, {1, 2, 3, 4}, {Phase::kPrefill, false, 0});
  c.add_row({1, 2, 3, 4}, {1, 2, 3, 4}, {Phase::kPad, false, 0});
  return c;
}

TEST(Prune, OnlyDecodeRowsThatAreNotIsolatedArePruned) {
  const Selection chosen = run("prune:k0=2", four_rows());
  const size_t sizes[] = {2, 3, 3, 0};
  const PlainReason reasons[] = {PlainReason::kApplied, PlainReason::kIsolated, PlainReason::kPhase,
                                 PlainReason::kPhase};
  for (int t = 0; t < 4; ++t) {
    EXPECT_EQ(chosen.row(t).size(), sizes[t]) << "row " << t;
    EXPECT_EQ(chosen.reason(t), reasons[t]) << "row " << t;
  }
}

TEST(Prune, ASingleRowIsPrunedToo) {
  test::Case c{4, 3, {}, {}, {}};
  c.add_row({4, 3, 2, 1}, {4, 3, 2, 1});
  EXPECT_EQ(run("prune:k0=1", c).size(), 1);
}

TEST(Prune, ZeroSwitchesItOffAndKIsPlain) {
  EXPECT_EQ(run("prune:k0=0", four_rows()).row(0).size(), 3u);
  EXPECT_EQ(run("prune:k0=0", four_rows()).reason(1), PlainReason::kPolicy);
  EXPECT_TRUE(make_policy("prune:k0=0")->is_plain(3));
  EXPECT_FALSE(make_policy("prune:k0=3,p=0.9")->is_plain(3));
  EXPECT_TRUE(make_policy("prune:k0=3")->is_plain(3));
  EXPECT_FALSE(make_policy("prune:k0=2")->is_plain(3));
}

TEST(Prune, MoreThanKIsRefused) {
  EXPECT_NO_THROW(make_policy("prune:k0=3")->check(4, 3));
  EXPECT_THROW(make_policy("prune:k0=4")->check(4, 3), Error);
}

}  // namespace
}  // namespace carpool
