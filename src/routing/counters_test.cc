// The counters: every number on an input where it can be counted by hand.
#include "routing/counters.h"

#include <gtest/gtest.h>

#include "routing/cases_test_util.h"
#include "routing/policy.h"

namespace carpool {
namespace {

RoutingCounters counters_of(const std::string& spec, const test::Case& c) {
  Scratch scratch;
  Selection plain, chosen;
  make_policy(spec)->select(c.input(), scratch, chosen);
  select_plain(c.input(), scratch, plain);
  RoutingCounters counters;
  count(c.input(), plain, chosen, scratch, counters);
  return counters;
}

int64_t at(const std::array<int64_t, kPlainReasons>& by_reason, PlainReason reason) {
  return by_reason[static_cast<size_t>(reason)];
}
int64_t sum(const std::array<int64_t, kPlainReasons>& by_reason) {
  int64_t n = 0;
  for (int64_t x : by_reason) n += x;
  return n;
}

// K = 3 of 6; with k0 = 1 the union is {0, 5}: plain {0,1,2} twice and {5,4,3}.
test::Case three_rows() {
  test::Case c{6, 3, {}, {}, {}};
  c.add_row({6, 5, 4, 3, 2, 1}, {6, 5, 4, 3, 2, 1});
  c.add_row({6, 5, 4, 3, 2, 1}, {6, 5, 4, 3, 2, 1});
  c.add_row({1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 5, 6});
  return c;
}

TEST(Counters, ReroutedRowsAreCountedOnceAndExpertsByDistinctness) {
  const RoutingCounters n = counters_of("oea:k0=1,guard=off", three_rows());
  EXPECT_EQ(n.layers, 1);
  EXPECT_EQ(n.distinct_plain, 6);
  EXPECT_EQ(n.distinct_experts, 2);
  EXPECT_EQ(n.slots, 6);
  EXPECT_EQ(n.rerouted_tokens, 3);
  EXPECT_EQ(n.underfilled_tokens, 3);
  EXPECT_EQ(at(n.plain_rows, PlainReason::kApplied), 3);
  EXPECT_EQ(sum(n.plain_steps), 0);
}

TEST(Counters, PlainRoutingReroutesNothing) {
  const RoutingCounters n = counters_of("topk", three_rows());
  EXPECT_EQ(n.distinct_experts, n.distinct_plain);
  EXPECT_EQ(n.rerouted_tokens, 0);
  EXPECT_EQ(n.underfilled_tokens, 0);
  EXPECT_EQ(n.slots, 9);
  EXPECT_EQ(at(n.plain_rows, PlainReason::kPolicy), 3);
  EXPECT_EQ(at(n.plain_steps, PlainReason::kPolicy), 1);
}

TEST(Counters, FewerExpertsThanKIsNoUnderfillWhenNoMoreAreAllowed) {
  test::Case c{4, 3, {}, {}, {}};
  c.add_row({4, 3, -test::kInf, test::kNan}, {4, 3, 0, 0});
  c.add_row({4, 3, 2, 1}, {4, 3, 2, 1});
  const RoutingCounters n = counters_of("oea:k0=2,guard=off", c);  // union {0, 1}
  EXPECT_EQ(n.underfilled_tokens, 1);
  EXPECT_EQ(n.rerouted_tokens, 1);
}

TEST(Counters, PadsAreCountedNowhere) {
  test::Case c = three_rows();
  for (TokenInfo& token : c.tokens) token = {Phase::kPad, false, 4};
  const RoutingCounters n = counters_of("oea:k0=1", c);
  EXPECT_EQ(n.layers, 1);
  EXPECT_EQ(n.distinct_experts + n.distinct_plain + n.slots + sum(n.plain_rows) + sum(n.plain_steps), 0);
}

TEST(Counters, EveryGroupWithoutAnAppliedRowIsOnePlainStep) {
  test::Case c = three_rows();
  c.tokens[2].group = 1;  // alone there: min_batch; the other two form a union of one expert
  const RoutingCounters n = counters_of("oea:k0=1", c);
  EXPECT_EQ(at(n.plain_steps, PlainReason::kUnion), 1);
  EXPECT_EQ(at(n.plain_steps, PlainReason::kMinBatch), 1);
  EXPECT_EQ(sum(n.plain_steps), 2);
  EXPECT_EQ(at(n.plain_rows, PlainReason::kUnion), 2);
  EXPECT_EQ(at(n.plain_rows, PlainReason::kMinBatch), 1);
}

TEST(Counters, TheReasonOfAPlainStepIsThatOfItsEligibleRows) {
  test::Case c = three_rows();
  c.tokens[0].phase = Phase::kPrefill;
  c.tokens[1].isolated = true;
  EXPECT_EQ(at(counters_of("oea:k0=1", c).plain_steps, PlainReason::kMinBatch), 1);
  c.tokens[2].isolated = true;
  EXPECT_EQ(at(counters_of("oea:k0=1", c).plain_steps, PlainReason::kIsolated), 1);
  for (TokenInfo& token : c.tokens) token = {Phase::kPrefill, false, 0};
  EXPECT_EQ(at(counters_of("oea:k0=1", c).plain_steps, PlainReason::kPhase), 1);
}

TEST(Counters, OneAppliedRowMakesTheStepOfItsGroupNotPlain) {
  test::Case c = three_rows();
  c.tokens[0].isolated = true;
  const RoutingCounters n = counters_of("oea:k0=2", c);
  EXPECT_EQ(at(n.plain_rows, PlainReason::kIsolated), 1);
  EXPECT_EQ(at(n.plain_rows, PlainReason::kApplied), 2);
  EXPECT_EQ(sum(n.plain_steps), 0);
}

TEST(Counters, AddSumsEveryField) {
  RoutingCounters total = counters_of("oea:k0=1,guard=off", three_rows());
  total.add(counters_of("topk", three_rows()));
  EXPECT_EQ(total.layers, 2);
  EXPECT_EQ(total.distinct_experts, 8);
  EXPECT_EQ(total.distinct_plain, 12);
  EXPECT_EQ(total.slots, 15);
  EXPECT_EQ(total.rerouted_tokens, 3);
  EXPECT_EQ(total.underfilled_tokens, 3);
  EXPECT_EQ(at(total.plain_rows, PlainReason::kApplied), 3);
  EXPECT_EQ(at(total.plain_rows, PlainReason::kPolicy), 3);
  EXPECT_EQ(at(total.plain_steps, PlainReason::kPolicy), 1);
}

}  // namespace
}  // namespace carpool
