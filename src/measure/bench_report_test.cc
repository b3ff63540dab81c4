#include "measure/bench_report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"

namespace carpool {
namespace {

TEST(BenchReport, TextAndJsonHoldTheFactsAndRows) {
  BenchReport report;
  report.facts = {"carpool bench x", "abc", "a machine", "a model", {{"seed", "1"}}};
  report.tables = {{"A table", {"name", "n"}, {{"row", "7"}}}, {"An empty one", {"name"}, {}}};
  report.notes = {"A sentence."};
  report.results = {json::object{{"policy", "topk"}}};
  report.summary["fit"] = 3;
  const std::string text = bench_text(report);
  for (const char* part :
       {"carpool bench x", "abc", "a machine", "a model", "seed", "A table", "row   7", "A sentence."}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
  EXPECT_EQ(text.find("An empty one"), std::string::npos);
  const json::value v = bench_json(report);
  EXPECT_EQ(v.at("command"), "carpool bench x");
  EXPECT_EQ(v.at("settings").at("seed"), "1");
  EXPECT_EQ(v.at("results").at(0).at("policy"), "topk");
  EXPECT_EQ(v.at("fit"), 3);
  EXPECT_EQ(v.at("notes").at(0), "A sentence.");
}

TEST(BenchReport, WhatIsNoNumberIsRefused) {
  json::object out;
  put_estimate(out, "step_ms", {2, 1, 3});
  EXPECT_EQ(out.at("step_ms"), 2.0);
  EXPECT_EQ(out.at("step_ms_lo"), 1.0);
  EXPECT_EQ(out.at("step_ms_hi"), 3.0);
  EXPECT_THROW(put_number(out, "x", std::nan("")), Error);
  EXPECT_THROW(put_estimate(out, "x", {1, 0, std::numeric_limits<double>::infinity()}), Error);
}

TEST(BenchReport, ARowIsTheMedianOverRepeatsOfMedianSteps) {
  RowTimes times;
  for (const double ms : {1.0, 2.0, 90.0}) times.add_step(ms / 1e3);
  times.end_repeat();
  for (const double ms : {4.0, 4.0}) times.add_step(ms / 1e3);
  times.end_repeat();
  for (const double ms : {9.0}) times.add_step(ms / 1e3);
  times.end_repeat();
  EXPECT_EQ(times.repeat_ms(), (std::vector<double>{2, 4, 9}));
  EXPECT_EQ(times.ms().value, 4);
  EXPECT_EQ(times.ms().lo, 2) << "of three repeats, the extremes";
  EXPECT_EQ(times.ms().hi, 9);
}

TEST(BenchReport, RatiosArePairedByRepeat) {
  const Estimate e = paired_ratio({2, 4, 8}, {1, 4, 2});
  EXPECT_EQ(e.value, 2);
  EXPECT_EQ(e.lo, 1);
  EXPECT_EQ(e.hi, 4);
}

TEST(BenchReport, TheShareOfTheFloorTakesTheProbeOfTheSameRepeat) {
  // 8 MB at 1, 2 and 4 GB/s take 8, 4 and 2 ms.
  const Estimate e = paired_floor_share(8e6, {1, 2, 4}, {16, 4, 4});
  EXPECT_DOUBLE_EQ(e.value, 0.5);
  EXPECT_DOUBLE_EQ(e.lo, 0.5);
  EXPECT_DOUBLE_EQ(e.hi, 1);
  const Estimate probe = median_with_extremes({3, 1, 2});
  EXPECT_EQ(probe.value, 2);
  EXPECT_EQ(probe.lo, 1);
  EXPECT_EQ(probe.hi, 3);
}

TEST(BenchReport, UniformExpertsAgreeWithCounting) {
  // E = 4, K = 2, two rows: the second row's pairs add 0, 1 or 2 experts with chances 1/6, 4/6, 1/6.
  EXPECT_NEAR(uniform_experts(4, 2, 2), 2 + (0 * 1 + 1 * 4 + 2 * 1) / 6.0, 1e-12);
  EXPECT_NEAR(uniform_experts(128, 8, 1), 8, 1e-12);
  EXPECT_NEAR(uniform_experts(128, 8, 16), 82.4, 0.05);
}

TEST(BenchReport, EqualRowsCountAsCollapsedAndTextDoesNot) {
  EXPECT_TRUE(routing_collapsed(8, 128, 8, 16)) << "all rows alike";
  EXPECT_TRUE(routing_collapsed(20, 128, 8, 64));
  EXPECT_FALSE(routing_collapsed(48, 128, 8, 16)) << "what real text was seen to load";
  EXPECT_FALSE(routing_collapsed(66, 128, 8, 16));
  EXPECT_FALSE(routing_collapsed(8, 128, 8, 1)) << "one row cannot collapse";
}

TEST(BenchReport, TheProbeReadsItsWholeBuffer) {
  const std::unique_ptr<Ops> ops = make_cpu_ops(1, "auto");
  BenchProbe probe(size_t{8} << 20);
  const double gbps = probe.pass(*ops);
  EXPECT_TRUE(std::isfinite(gbps) && gbps > 0);
}

}  // namespace
}  // namespace carpool
