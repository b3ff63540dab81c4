// The A/B on a live server: order, paired ratios, and when no winner is named.
#include "measure/load_ab.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace carpool {
namespace {

const std::string kOea = "oea:k0=5";

// A run with this throughput; its experts and re-routed tokens are what the server counted.
ArmRun run_of(double tokens_per_second, int64_t experts, int64_t rerouted, const std::string& applied) {
  ArmRun run;
  run.metrics.completed = 8;
  run.metrics.total_output = 100;
  run.metrics.output_throughput = tokens_per_second;
  run.metrics.ttft_ms.median = 10;
  run.metrics.tpot_ms.median = 1000 / tokens_per_second;
  run.metrics.itl_ms.median = 2;
  run.metrics.e2e_ms.median = 50;
  ServerCounters c;
  c.decode.layers = 10;
  c.decode.distinct_experts = experts;
  c.decode.distinct_plain = 200;
  c.decode.rerouted_tokens = rerouted;
  c.decode_steps = 4;
  c.decode_seconds = 0.4 / tokens_per_second;
  run.counters = c;
  run.applied = {{applied, 8}};
  return run;
}

ArmRun good(size_t arm, int repeat) {
  return arm == 0 ? run_of(100 + repeat, 200, 0, "topk") : run_of(120 + repeat, 150, 40, kOea + "; scope=tenant");
}

ServeAbOptions options_of(int repeats, std::vector<int> concurrency = {16}) {
  return {{"topk", kOea}, std::move(concurrency), repeats};
}

std::string all(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += line + "\n";
  return out;
}

TEST(ServeAb, AlternatesTheArmsAtEveryConcurrency) {
  std::string order;
  run_serve_ab(options_of(3, {1, 10}), [&](int concurrency, int repeat, size_t arm) {
    order += std::to_string(concurrency) + (arm ? "B" : "A") + std::to_string(repeat) + " ";
    return good(arm, repeat);
  });
  EXPECT_EQ(order, "1A0 1B0 1B1 1A1 1A2 1B2 10A0 10B0 10B1 10A1 10A2 10B2 ");
  EXPECT_EQ(arm_order(3, 1), (std::vector<size_t>{2, 1, 0}));
}

TEST(ServeAb, RefusesArmsAndSettingsThatCompareNothing) {
  const RunArm never = [](int, int, size_t) -> ArmRun { throw Error(ErrorKind::kInternal, "must not run"); };
  for (const ServeAbOptions& bad :
       {ServeAbOptions{{"topk"}, {1}, 5}, ServeAbOptions{{"topk", "topk"}, {1}, 5},
        ServeAbOptions{{"topk", kOea}, {}, 5}, ServeAbOptions{{"topk", kOea}, {0}, 5},
        ServeAbOptions{{"topk", kOea}, {4097}, 5}, ServeAbOptions{{"topk", kOea}, {1}, 0}}) {
    try {
      run_serve_ab(bad, never);
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kUsage) << e.what();
    }
  }
}

TEST(ServeAb, NamesTheFasterArmWhenTheIntervalLeavesNoDoubt) {
  const auto levels = run_serve_ab(options_of(5), [](int, int r, size_t arm) { return good(arm, r); });
  EXPECT_TRUE(objections(options_of(5), levels[0], 1).empty()) << all(objections(options_of(5), levels[0], 1));
  const std::string text = verdict(options_of(5), levels[0], 1);
  EXPECT_NE(text.find("output throughput 1.196x"), std::string::npos) << text;
  EXPECT_NE(text.find("oea:k0=5 is faster"), std::string::npos) << text;
  EXPECT_NE(text.find("distinct experts 0.750x"), std::string::npos) << text;
}

TEST(ServeAb, SaysNothingWhenTheIntervalIncludesNoDifferenceOrThereIsNone) {
  const auto noise = run_serve_ab(options_of(6), [](int, int r, size_t arm) {
    return arm == 0 ? run_of(100, 200, 0, "topk") : run_of(r % 2 ? 90 : 110, 150, 40, kOea);
  });
  EXPECT_NE(verdict(options_of(6), noise[0], 1).find("includes no difference"), std::string::npos);
  const auto few = run_serve_ab(options_of(2), [](int, int r, size_t arm) { return good(arm, r); });
  EXPECT_NE(verdict(options_of(2), few[0], 1).find("no winner is named"), std::string::npos);
}

std::string objections_when(const std::function<void(ArmRun&, size_t arm)>& change) {
  const auto levels = run_serve_ab(options_of(5), [&](int, int r, size_t arm) {
    ArmRun run = good(arm, r);
    if (r == 2) change(run, arm);
    return run;
  });
  const std::string text = verdict(options_of(5), levels[0], 1);
  const std::string why = all(objections(options_of(5), levels[0], 1));
  if (!why.empty()) {
    EXPECT_NE(text.find("no winner is named"), std::string::npos) << text;
    EXPECT_EQ(text.find("faster"), std::string::npos) << text;
  }
  return why;
}

TEST(ServeAb, NamesNoWinnerWhenTheCountersDoNotShowThatThePolicyRan) {
  const auto levels = run_serve_ab(options_of(5), [](int, int r, size_t arm) {
    ArmRun run = good(arm, r);
    run.counters->decode.rerouted_tokens = 0;
    run.counters->decode.plain_steps[static_cast<size_t>(PlainReason::kMinBatch)] = 40;
    return run;
  });
  const std::string text = verdict(options_of(5), levels[0], 1);
  EXPECT_NE(text.find("oea:k0=5 never re-routed a token"), std::string::npos) << text;
  EXPECT_NE(text.find("min_batch 200"), std::string::npos) << "the reasons of all repeats: " << text;
  EXPECT_EQ(text.find("faster"), std::string::npos) << text;
}

TEST(ServeAb, NamesNoWinnerForAnyOtherDoubt) {
  EXPECT_EQ(objections_when([](ArmRun&, size_t) {}), "");
  EXPECT_NE(objections_when([](ArmRun& run, size_t) { run.counters.reset(); }).find("no routing counters"),
            std::string::npos);
  EXPECT_NE(objections_when([](ArmRun& run, size_t arm) {
              if (arm == 0) run.counters->decode.rerouted_tokens = 3;
            }).find("3 tokens were re-routed while topk ran"),
            std::string::npos);
  EXPECT_NE(objections_when([](ArmRun& run, size_t arm) {
              if (arm == 1) run.applied = {{"topk", 8}};
            }).find("oea:k0=5 was asked for and topk applied"),
            std::string::npos);
  EXPECT_NE(objections_when([](ArmRun& run, size_t arm) {
              if (arm == 1) run.metrics.failed = 2;
            }).find("2 requests of oea:k0=5 failed"),
            std::string::npos);
  EXPECT_NE(objections_when([](ArmRun& run, size_t arm) {
              if (arm == 1) run.metrics.total_output = 20;
            }).find("not the same work"),
            std::string::npos);
}

TEST(ServeAb, ASpecIsComparedByItsMeaningAndNotItsSpelling) {
  ServeAbOptions options = options_of(5);
  options.arms[1] = "oea:min_batch=2,k0=5";
  const auto levels = run_serve_ab(options, [](int, int r, size_t arm) { return good(arm, r); });
  EXPECT_EQ(all(objections(options, levels[0], 1)), "");
}

TEST(ServeAb, PredictsFromUniformRoutingForPoliciesWithAK0) {
  const MoeSizes sizes{128, 8};
  EXPECT_EQ(predicted_experts_ratio("topk", sizes, 16), 1);
  EXPECT_EQ(predicted_experts_ratio(kOea, sizes, 1), 1) << "one row is below its min_batch, 2 by default";
  EXPECT_NEAR(*predicted_experts_ratio("oea:min_batch=1,k0=5", sizes, 1), 5.0 / 8, 1e-12);
  EXPECT_NEAR(*predicted_experts_ratio(kOea, sizes, 2), uniform_experts(128, 5, 2) / uniform_experts(128, 8, 2), 1e-12);
  EXPECT_EQ(predicted_experts_ratio("oea:k0=5,min_batch=17", sizes, 16), 1);
  EXPECT_NEAR(*predicted_experts_ratio(kOea, sizes, 1024), 1, 1e-6) << "every expert is loaded either way";
  EXPECT_FALSE(predicted_experts_ratio("xshare:m=32", sizes, 16));
  EXPECT_FALSE(predicted_experts_ratio(kOea, {}, 16));
  EXPECT_FALSE(predicted_experts_ratio("oea:k0=0", sizes, 16));
}

TEST(ServeAb, TheReportHasTablesRowsVerdictsAndTheQualitySentence) {
  const ServeAbOptions options = options_of(5, {1, 16});
  const auto levels = run_serve_ab(options, [](int, int r, size_t arm) { return good(arm, r); });
  BenchReport report;
  report_serve_ab(options, levels, {32, 8}, report);
  ASSERT_EQ(report.results.size(), 4u);
  const json::value& row = report.results[1];
  EXPECT_EQ(row.at("policy"), "oea:k0=5");
  EXPECT_EQ(row.at("batch"), 1);
  EXPECT_EQ(row.at("tokens_per_second"), 122.0);
  EXPECT_EQ(row.at("distinct_experts"), 15.0);
  EXPECT_EQ(row.at("distinct_experts_plain"), 20.0);
  EXPECT_EQ(row.at("rerouted_tokens"), 200);
  EXPECT_NEAR(row.at("tokens_per_second_ratio").as_double(), 122.0 / 102, 1e-9);
  for (const char* key : {"tokens_per_second_ratio_lo", "ttft_ms_ratio", "tpot_ms_ratio", "itl_ms_ratio",
                          "e2e_latency_ms_ratio", "step_ms_ratio", "distinct_experts_ratio", "predicted_experts_ratio",
                          "step_ms", "ttft_ms_hi", "plain_steps", "underfilled_tokens"}) {
    EXPECT_TRUE(row.as_object().contains(key)) << key;
  }
  EXPECT_EQ(row.at("runs").as_array().size(), 5u);
  EXPECT_EQ(row.at("runs").at(4).at("repeat"), 4);
  ASSERT_EQ(report.tables.size(), 3u);
  EXPECT_EQ(report.tables[0].rows.size(), 4u);
  EXPECT_EQ(report.tables[1].rows.size(), 2u);
  EXPECT_EQ(report.tables[2].rows.size(), 4u);
  for (const Table& table : report.tables) {
    for (const auto& cells : table.rows) EXPECT_EQ(cells.size(), table.columns.size()) << table.title;
  }
  const std::string notes = all(report.notes);
  EXPECT_NE(notes.find("at concurrency 1:"), std::string::npos) << notes;
  EXPECT_NE(notes.find("at concurrency 16:"), std::string::npos) << notes;
  EXPECT_NE(notes.find("carpool ab MODEL --a topk --b oea:k0=5"), std::string::npos) << notes;
}

TEST(ServeAb, ShowsTheQualityThatAnotherCommandMeasured) {
  const json::value ab = parse_json(
      "{\"model\": \"books\", \"command\": \"carpool ab x\", \"results\": [{\"policy\": \"topk\", \"batch\": 16}, "
      "{\"policy\": \"oea:k0=5\", \"batch\": 16, \"cross_entropy_delta\": 0.0123, \"cross_entropy_delta_lo\": 0.01, "
      "\"cross_entropy_delta_hi\": 0.015, \"kl_mean\": 0.02, \"top1_agreement\": 0.953}]}",
      "ab.json");
  const Table table = measured_quality(ab, "ab.json", {"topk", "oea:min_batch=2,k0=5"});
  ASSERT_EQ(table.rows.size(), 1u);
  EXPECT_EQ(table.rows[0], (std::vector<std::string>{"oea:min_batch=2,k0=5", "16", "+0.0123 [+0.0100, +0.0150]",
                                                     "0.0200", "95.30 %"}));
  EXPECT_NE(table.title.find("books"), std::string::npos) << table.title;
  EXPECT_THROW(measured_quality(ab, "ab.json", {"topk", "oea:k0=3"}), Error) << "not in the file";
  EXPECT_THROW(measured_quality(parse_json("{\"a\": 1}", "x"), "x", {kOea}), Error);
}

TEST(ServeAb, AServerWithoutCountersStillGetsItsTables) {
  const ServeAbOptions options = options_of(1);
  const auto levels = run_serve_ab(options, [](int, int r, size_t arm) {
    ArmRun run = good(arm, r);
    run.counters.reset();
    run.failures["HTTP 503 overloaded"] = {2, "full"};
    run.metrics.failed = 2;
    return run;
  });
  BenchReport report;
  report_serve_ab(options, levels, {}, report);
  for (const Table& table : report.tables) {
    for (const auto& cells : table.rows) EXPECT_EQ(cells.size(), table.columns.size()) << table.title;
  }
  EXPECT_EQ(report.tables[2].rows[0][2], "-");
  EXPECT_FALSE(report.results[1].as_object().contains("step_ms"));
  EXPECT_NE(
      all(report.notes).find("topk at concurrency 16: 2 requests failed: HTTP 503 overloaded; the first said: full"),
      std::string::npos)
      << all(report.notes);
}

}  // namespace
}  // namespace carpool
