// Medians with intervals, and the JSON spelling that every measuring command shares.
#include "measure/result.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>

#include "base/error.h"
#include "measure/report_test_util.h"

namespace carpool {
namespace {

TEST(Median, IsTheMiddleValueOrTheMeanOfTheTwoInTheMiddle) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(median({}), 0);
}

TEST(Median, IntervalHoldsTheMedianAndLiesWithinTheValues) {
  const std::vector<double> values = {10, 12, 11, 15, 9, 10.5, 11.5};
  const Estimate e = median_with_interval(values);
  EXPECT_EQ(e.value, 11);
  EXPECT_LE(e.lo, e.value);
  EXPECT_GE(e.hi, e.value);
  EXPECT_GE(e.lo, 9);
  EXPECT_LE(e.hi, 15);
  EXPECT_LT(e.lo, e.hi);
}

TEST(Median, IntervalIsAPointForOneValueAndForEqualValues) {
  for (const std::vector<double>& values : {std::vector<double>{5}, std::vector<double>{5, 5, 5, 5}}) {
    const Estimate e = median_with_interval(values);
    EXPECT_EQ(e.value, 5);
    EXPECT_EQ(e.lo, 5);
    EXPECT_EQ(e.hi, 5);
  }
}

TEST(Median, FewerThanFiveRepeatsGiveTheirExtremes) {
  const Estimate e = median_with_interval({4, 1, 3, 9});
  EXPECT_EQ(e.value, 3.5);
  EXPECT_EQ(e.lo, 1);
  EXPECT_EQ(e.hi, 9);
}

TEST(Bootstrap, HoldsTheStatisticOfTheValuesBetweenThoseOfResamples) {
  const std::vector<double> values = {1, 2, 3, 4, 5, 6, 7, 18};
  const Estimate m = bootstrap(values, mean);
  EXPECT_DOUBLE_EQ(m.value, 5.75);
  EXPECT_LT(m.lo, m.value);
  EXPECT_GT(m.hi, m.value);
  EXPECT_GT(m.lo, 1);
  EXPECT_LT(m.hi, 18);
  EXPECT_EQ(bootstrap(values, median).value, 4.5);
  EXPECT_EQ(bootstrap({}, mean).value, 0);
}

TEST(Median, IntervalIsTheSameAtEveryCall) {
  const Estimate a = median_with_interval({1, 2, 3, 4, 5, 6, 7});
  const Estimate b = median_with_interval({1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(a.lo, b.lo);
  EXPECT_EQ(a.hi, b.hi);
}

TEST(Median, IntervalNarrowsWithMoreRepeats) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> noise(100, 5);
  std::vector<double> few, many;
  for (int i = 0; i < 10; ++i) few.push_back(noise(random));
  many = few;
  for (int i = 0; i < 490; ++i) many.push_back(noise(random));
  const Estimate wide = median_with_interval(few), narrow = median_with_interval(many);
  EXPECT_LT(narrow.hi - narrow.lo, wide.hi - wide.lo);
  // The standard error of a median of 500 normal values is 1.2533 * 5 / sqrt(500) = 0.28; six of them are safe.
  EXPECT_NEAR(narrow.value, 100, 1.7);
}

TEST(ResultJson, RowsCarryTheAgreedKeys) {
  const json::value root = to_json(sample_report());
  const json::object& top = root.as_object();
  for (const char* key : {"command", "commit", "machine", "model", "settings", "results"})
    EXPECT_TRUE(top.contains(key)) << key;
  const json::object& row = top.at("results").as_array().at(1).as_object();
  EXPECT_EQ(row.at("policy").as_string(), "oea:k0=5");
  EXPECT_EQ(row.at("batch").as_int64(), 16);
  const std::vector<std::pair<const char*, double>> numbers = {{"tokens_per_second", 952.4},
                                                               {"tokens_per_second_lo", 935.7},
                                                               {"tokens_per_second_hi", 969.7},
                                                               {"step_ms", 16.8},
                                                               {"step_ms_lo", 16.5},
                                                               {"step_ms_hi", 17.1},
                                                               {"speedup", 1.19},
                                                               {"distinct_experts", 36.1},
                                                               {"distinct_experts_plain", 47.5},
                                                               {"bytes_per_step", 98.76e6},
                                                               {"read_gbps", 14.3},
                                                               {"floor_share", 0.411},
                                                               {"cross_entropy", 3.1536},
                                                               {"cross_entropy_delta", 0.012},
                                                               {"cross_entropy_delta_lo", 0.009},
                                                               {"cross_entropy_delta_hi", 0.0151},
                                                               {"kl_mean", 0.02345},
                                                               {"top1_agreement", 0.9321}};
  for (const auto& [key, value] : numbers) EXPECT_EQ(row.at(key).as_double(), value) << key;
  EXPECT_EQ(row.at("rerouted_tokens").as_int64(), 10080);
  EXPECT_EQ(row.at("underfilled_tokens").as_int64(), 504);
  EXPECT_EQ(row.at("plain_steps").as_object().at("min_batch").as_int64(), 7);
}

TEST(ResultJson, QualityKeysAreAbsentWhereNoQualityWasMeasured) {
  const json::value root = to_json(sample_report());
  const json::object& mixed = root.as_object().at("results").as_array().at(3).as_object();
  EXPECT_EQ(mixed.at("steps").as_string(), "mixed");
  for (const char* key : {"cross_entropy", "cross_entropy_delta", "kl_mean", "top1_agreement"})
    EXPECT_FALSE(mixed.contains(key)) << key;
}

TEST(ResultJson, MixedRowsClaimNoSpeedEvenWhenTheirMembersHoldOne) {
  Report report = sample_report();
  report.rows[3].speedup = Estimate{2, 2, 2};
  const json::value root = to_json(report);
  const json::object& mixed = root.as_object().at("results").as_array().at(3).as_object();
  std::vector<std::string> keys;
  for (const auto& entry : mixed) keys.emplace_back(entry.key());
  EXPECT_EQ(keys,
            (std::vector<std::string>{"policy", "batch", "steps", "steps_measured", "repeats", "step_ms", "step_ms_lo",
                                      "step_ms_hi", "read_gbps", "distinct_experts", "distinct_experts_plain",
                                      "rerouted_tokens", "underfilled_tokens", "plain_steps"}));
}

TEST(ResultJson, ANumberThatIsNotFiniteIsRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const std::vector<std::function<void(ResultRow&)>> faults = {
      [=](ResultRow& row) { row.step_ms.value = nan; },
      [=](ResultRow& row) { row.tokens_per_second.hi = inf; },
      [=](ResultRow& row) { row.floor_share = inf; },
      [=](ResultRow& row) { row.speedup->lo = nan; },
      [=](ResultRow& row) { row.quality->cross_entropy = nan; },
      [=](ResultRow& row) { row.quality->cross_entropy_delta.hi = nan; },
      [=](ResultRow& row) { row.quality->kl_mean = inf; },
  };
  for (size_t i = 0; i < faults.size(); ++i) {
    for (const size_t row : {size_t{0}, size_t{1}}) {
      Report report = sample_report();
      faults[i](report.rows[row]);
      EXPECT_THROW(to_json(report), Error) << i;
    }
  }
}

TEST(RoutingJson, CountsPerLayerAndReasons) {
  RoutingCounters counters = oea_row(4).routing;
  counters.layers = 4;
  counters.distinct_experts = 30;
  counters.distinct_plain = 34;
  const json::object out = routing_json(counters);
  EXPECT_EQ(out.at("distinct_experts").as_double(), 7.5);
  EXPECT_EQ(out.at("distinct_experts_plain").as_double(), 8.5);
  EXPECT_EQ(out.at("rerouted_tokens").as_int64(), 10080);
  EXPECT_EQ(out.at("underfilled_tokens").as_int64(), 504);
  EXPECT_EQ(out.at("plain_steps").at("min_batch").as_int64(), 7);
  EXPECT_EQ(out.at("plain_steps").at("policy").as_int64(), 0);
  EXPECT_EQ(routing_json(RoutingCounters{}).at("distinct_experts").as_double(), 0) << "nothing counted";
}

TEST(RoutingJson, ReasonsAreNamedOnlyWhereTheyOccurred) {
  RoutingCounters counters;
  EXPECT_EQ(plain_reasons_text(counters), "none");
  counters.plain_steps[4] = 7;
  EXPECT_EQ(plain_reasons_text(counters), "min_batch 7");
  counters.plain_steps[1] = 3;
  EXPECT_EQ(plain_reasons_text(counters), "policy 3, min_batch 7");
}

TEST(ResultJson, TextSurvivesSerialisingAndParsing) {
  Report report = sample_report();
  report.facts.command = "carpool ab \"a b\" \\ \x01";
  const json::value root = to_json(report);
  EXPECT_EQ(parse_json(json::serialize(root), "report"), root);
}

TEST(ResultJson, SettingsKeepTheirOrder) {
  const json::value root = to_json(sample_report());
  const json::object& settings = root.as_object().at("settings").as_object();
  ASSERT_EQ(settings.size(), 2u);
  EXPECT_EQ(settings.begin()->key(), "cold copies");
}

TEST(Facts, MachineNamesThreadsAndInstructionSet) {
  const std::string facts = machine_facts(3, "avx512");
  EXPECT_NE(facts.find("3 threads"), std::string::npos) << facts;
  EXPECT_NE(facts.find("avx512"), std::string::npos) << facts;
  EXPECT_NE(facts.find("memory"), std::string::npos) << facts;
  EXPECT_FALSE(build_commit().empty());
}

}  // namespace
}  // namespace carpool
