// Metrics on timelines made by hand.
#include "measure/load_metrics.h"

#include <gtest/gtest.h>

namespace carpool {
namespace {

LoadOutcome done(double start, double ttft, double latency, std::vector<double> itl, int tokens) {
  LoadOutcome o;
  o.success = o.counted = true;
  o.start = start;
  o.ttft = ttft;
  o.latency = latency;
  o.itl = std::move(itl);
  o.prompt_tokens = 10;
  o.output_tokens = tokens;
  return o;
}

TEST(LoadPercentile, InterpolatesLinearlyAsNumpyDoes) {
  // numpy.percentile([1, 2, 4, 8], [0, 50, 90, 95, 99, 100])
  const std::vector<double> v = {1, 2, 4, 8};
  EXPECT_DOUBLE_EQ(percentile(v, 0), 1);
  EXPECT_DOUBLE_EQ(percentile(v, 50), 3);
  EXPECT_DOUBLE_EQ(percentile(v, 90), 6.8);
  EXPECT_DOUBLE_EQ(percentile(v, 95), 7.4);
  EXPECT_NEAR(percentile(v, 99), 7.88, 1e-12);
  EXPECT_DOUBLE_EQ(percentile(v, 100), 8);
  EXPECT_DOUBLE_EQ(percentile({5}, 99), 5);
  EXPECT_EQ(percentile({}, 50), 0);
}

TEST(LoadDistribution, HasThePopulationsDeviationAndNeedsNoOrder) {
  const Distribution d = distribution({4, 2, 6}, {50, 99});
  EXPECT_EQ(d.count, 3u);
  EXPECT_DOUBLE_EQ(d.mean, 4);
  EXPECT_DOUBLE_EQ(d.median, 4);
  EXPECT_NEAR(d.std, 1.632993161855452, 1e-12);  // numpy.std([2, 4, 6])
  EXPECT_DOUBLE_EQ(d.max, 6);
  ASSERT_EQ(d.percentiles.size(), 2u);
  EXPECT_EQ(d.percentiles[1].first, 99);
  EXPECT_NEAR(d.percentiles[1].second, 5.96, 1e-12);
}

TEST(LoadMetrics, FollowTheDefinitionsOfBenchServing) {
  // A: 5 tokens, first after 0.2 s, whole after 1.0 s. B: 2 tokens in one chunk, no gap.
  const std::vector<LoadOutcome> outcomes = {done(0, 0.2, 1.0, {0.2, 0.2, 0.1, 0.3}, 5), done(0.5, 0.5, 1.5, {}, 2)};
  const LoadMetrics m = summarise(outcomes, 2.0, {90, 95, 99});
  EXPECT_EQ(m.completed, 2);
  EXPECT_EQ(m.failed, 0);
  EXPECT_EQ(m.total_input, 20);
  EXPECT_EQ(m.total_output, 7);
  EXPECT_DOUBLE_EQ(m.request_throughput, 1);
  EXPECT_DOUBLE_EQ(m.input_throughput, 10);
  EXPECT_DOUBLE_EQ(m.output_throughput, 3.5);
  EXPECT_DOUBLE_EQ(m.total_throughput, 13.5);
  EXPECT_DOUBLE_EQ(m.concurrency, 1.25) << "(1.0 + 1.5) / 2";
  EXPECT_DOUBLE_EQ(m.ttft_ms.mean, 350);
  EXPECT_DOUBLE_EQ(m.e2e_ms.mean, 1250);
  EXPECT_EQ(m.tpot_ms.count, 2u);
  EXPECT_DOUBLE_EQ(m.tpot_ms.mean, (200 + 1000) / 2.0) << "(1.0 - 0.2) / 4 and (1.5 - 0.5) / 1";
  EXPECT_EQ(m.itl_ms.count, 4u);
  EXPECT_DOUBLE_EQ(m.itl_ms.mean, 200);
  EXPECT_DOUBLE_EQ(m.itl_ms.max, 300);
}

TEST(LoadMetrics, ARequestOfOneTokenHasNoTimePerOutputToken) {
  const LoadMetrics m = summarise({done(0, 0.1, 0.1, {}, 1)}, 1, {99});
  EXPECT_EQ(m.tpot_ms.count, 0u);
  EXPECT_EQ(m.ttft_ms.count, 1u);
}

TEST(LoadMetrics, PeaksAreTheFullestSeconds) {
  // Token events at 10.2, 10.4, 10.6 and 11.5; at 11.1, 11.2, 11.3. Seconds count from the first start.
  const std::vector<LoadOutcome> outcomes = {done(10.0, 0.2, 2.0, {0.2, 0.2, 0.9}, 4),
                                             done(11.0, 0.1, 0.4, {0.1, 0.1}, 3), done(12.5, 0.1, 0.2, {}, 1)};
  const LoadMetrics m = summarise(outcomes, 3, {99});
  EXPECT_EQ(m.peak_output, 4) << "one token of the first request and three of the second";
  EXPECT_EQ(m.peak_concurrent, 2);
}

TEST(LoadMetrics, WithoutVisibleTextThereIsNoTimeToFirstTokenInsteadOfZero) {
  LoadOutcome silent = done(0, -1, 2.0, {}, 8);
  const LoadMetrics m = summarise({done(0, 0.4, 1.0, {0.6}, 2), silent}, 2, {99});
  EXPECT_EQ(m.completed, 2);
  EXPECT_EQ(m.without_text, 1);
  EXPECT_EQ(m.ttft_ms.count, 1u);
  EXPECT_DOUBLE_EQ(m.ttft_ms.mean, 400);
  EXPECT_EQ(m.tpot_ms.count, 1u);
  EXPECT_EQ(m.e2e_ms.count, 2u);
  EXPECT_EQ(m.total_output, 10) << "its tokens were generated";
}

TEST(LoadMetrics, FailedRequestsAreCountedByKindAndInNoLatency) {
  LoadOutcome refused, again, late;
  refused.failure = again.failure = "HTTP 503 overloaded";
  refused.message = "the queue is full";
  again.message = "still full";
  late.failure = "timeout";
  late.latency = 100;
  late.output_tokens = 50;
  const std::vector<LoadOutcome> outcomes = {refused, again, late, done(0, 0.1, 1, {0.9}, 2)};
  const LoadMetrics m = summarise(outcomes, 1, {99});
  EXPECT_EQ(m.completed, 1);
  EXPECT_EQ(m.failed, 3);
  EXPECT_EQ(m.total_output, 2);
  EXPECT_EQ(m.e2e_ms.count, 1u);
  const auto kinds = failures(outcomes);
  ASSERT_EQ(kinds.size(), 2u);
  EXPECT_EQ(kinds.at("HTTP 503 overloaded").count, 2);
  EXPECT_EQ(kinds.at("HTTP 503 overloaded").message, "the queue is full");
  EXPECT_EQ(kinds.at("timeout").count, 1);
}

TEST(LoadMetrics, NothingAtAllIsZerosAndNoDivision) {
  const LoadMetrics m = summarise({}, 0, {99});
  EXPECT_EQ(m.completed, 0);
  EXPECT_EQ(m.output_throughput, 0);
  EXPECT_EQ(m.peak_output, 0);
  EXPECT_EQ(m.ttft_ms.percentiles.at(0).second, 0);
}

TEST(LoadMetrics, WhatRoutingAppliedIsCountedOverSuccessfulRequests) {
  LoadOutcome a = done(0, 0, 1, {}, 1), b = a, failed;
  a.routing = "oea:k0=5; scope=tenant";
  b.routing = "topk";
  failed.routing = "topk";
  EXPECT_EQ(applied_routing({a, a, b, failed, done(0, 0, 1, {}, 1)}),
            (std::map<std::string, int>{{"oea:k0=5; scope=tenant", 2}, {"topk", 1}}));
}

}  // namespace
}  // namespace carpool
