// Decode and prefill benches on a tiny model: what is counted, reported and refused. No test asserts a time.
#include "measure/bench_decode.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "base/error.h"
#include "measure/bench_prefill.h"
#include "model/golden_test_util.h"

namespace carpool {
namespace {

constexpr size_t kSmallProbe = size_t{1} << 20;

Model tiny_model() {
  LoadOptions load;
  load.threads = 1;
  return Model::load(golden::kFolder + "/bf16_tied", load);
}

DecodeOptions tiny_options() {
  DecodeOptions o;
  o.policies = {"topk", "oea:k0=2"};
  o.batches = {1, 8};
  o.prompt = 3;
  o.steps = 5;
  o.repeats = 2;
  o.chunk = 7;
  o.probe_bytes = kSmallProbe;
  return o;
}

template <class Check>
void expect_refused(ErrorKind kind, const std::string& part, const Check& check) {
  try {
    check();
    ADD_FAILURE() << "accepted: " << part;
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST(BenchDecode, EveryRowCountsItsStepsBytesAndRouting) {
  Model model = tiny_model();
  const DecodeOptions o = tiny_options();
  const std::vector<DecodeRow> rows = run_decode(model, o);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].policy, "topk");
  EXPECT_EQ(rows[1].policy, "oea:k0=2");
  EXPECT_EQ(rows[3].batch, 8);
  for (const DecodeRow& row : rows) {
    const int64_t layer_steps = int64_t{3} * o.steps * o.repeats;
    EXPECT_EQ(row.routing.layers, layer_steps) << "3 MoE layers; no prompt rows, no warm-up";
    const auto& reasons = row.routing.plain_rows;
    EXPECT_EQ(reasons[static_cast<size_t>(PlainReason::kPhase)], 0) << "all rows are decode rows";
    EXPECT_EQ(std::accumulate(reasons.begin(), reasons.end(), int64_t{0}), layer_steps * row.batch);
    EXPECT_GT(row.prefill_s.value, 0);
    EXPECT_GT(row.step_ms.value, 0);
    EXPECT_DOUBLE_EQ(row.expert_bytes, row.distinct * 3 * static_cast<double>(model.weights().bytes_per_expert()));
    // Step t of 0..4 attends to 3 + t + 1 positions: 6 on average.
    EXPECT_DOUBLE_EQ(
        row.dense_bytes,
        static_cast<double>(model.weights().dense_bytes_per_step()) +
            row.batch * 6.0 * static_cast<double>(KvCache::bytes_for(model.config(), 16, model.kv_format())) / 16);
    EXPECT_GT(row.times.sum(), 0) << "the model times its phases";
    EXPECT_GT(row.engine_s, 0) << "an engine steps the same batch";
    EXPECT_LE(row.times.sum() * o.steps, row.decode_s.hi * 1.0001) << "phases are parts of steps";
  }
  EXPECT_EQ(rows[0].distinct, 4) << "one row, K experts";
  EXPECT_LT(rows[3].distinct, rows[2].distinct);
  EXPECT_DOUBLE_EQ(rows[2].rows_per_expert, 8 * 4 / rows[2].distinct);
  EXPECT_EQ(rows[2].ratio.value, 1);
}

TEST(BenchDecode, EqualSeedsGiveEqualRoutingAndOtherSeedsAnother) {
  Model model = tiny_model();
  DecodeOptions o = tiny_options();
  o.policies = {"topk"};
  const int64_t a = run_decode(model, o)[1].routing.distinct_experts,
                b = run_decode(model, o)[1].routing.distinct_experts;
  o.seed = 2;
  const int64_t c = run_decode(model, o)[1].routing.distinct_experts;
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
}

TEST(BenchDecode, TokensAreDrawnOverTheWholeVocabularyInAStreamPerSequence) {
  std::set<int> seen;
  TokenStream stream(1, 0, 0, 16);
  for (int i = 0; i < 1000; ++i) seen.insert(stream.next());
  EXPECT_EQ(seen.size(), 16u);
  EXPECT_EQ(*seen.begin(), 0);
  EXPECT_EQ(*seen.rbegin(), 15);
  const auto first = [](uint64_t seed, int repeat, int sequence) {
    TokenStream s(seed, repeat, sequence, 1 << 20);
    return std::pair{s.next(), s.next()};
  };
  const std::set<std::pair<int, int>> different = {first(1, 0, 0), first(1, 0, 1), first(1, 1, 0), first(2, 0, 0)};
  EXPECT_EQ(different.size(), 4u);
  EXPECT_EQ(first(1, 2, 3), first(1, 2, 3));
}

TEST(BenchDecode, TheReportHasTheColumnsOfBatchedBench) {
  DecodeRow row;
  row.policy = "topk";
  row.batch = 4;
  row.prompt = 10;
  row.steps = 5;
  row.prefill_s = {2, 1, 3};
  row.decode_s = {4, 3, 5};
  row.step_ms = {800, 600, 1000};
  row.ratio = {1, 1, 1};
  row.distinct = row.plain = row.uniform = 20;
  row.rows_per_expert = 1.5;
  row.expert_bytes = 7e9;
  row.dense_bytes = 1e9;
  row.read_gbps = {20, 19, 21};
  row.floor_share = {0.5, 0.4, 0.6};
  ModelConfig config;
  config.n_experts = 64;
  config.top_k = 8;
  BenchReport report;
  report_decode({row}, config, "dummy:x", 5, report);
  const std::vector<std::string> columns = {"policy",   "PP",     "TG",       "B",   "N_KV", "T_PP s",
                                            "S_PP t/s", "T_TG s", "S_TG t/s", "T s", "S t/s"};
  EXPECT_EQ(report.tables[0].columns, columns);
  const std::vector<std::string> cells = {"topk",  "10",    "5",    "4",     "60",   "2.000",
                                          "20.00", "4.000", "5.00", "6.000", "10.00"};
  EXPECT_EQ(report.tables[0].rows[0], cells);
  const json::object& out = report.results[0].as_object();
  EXPECT_EQ(out.at("n_kv"), 60);
  EXPECT_EQ(out.at("tokens_per_second"), 5.0);
  EXPECT_EQ(out.at("gbps"), 10.0);
  EXPECT_EQ(out.at("bytes_per_step"), 8e9);
  EXPECT_FALSE(out.contains("phase_ms")) << "no phases without times";
  EXPECT_TRUE(report.tables[2].rows.empty());
  EXPECT_TRUE(report.notes.empty()) << "plain, spread, from memory";
  row.times.experts = 0.5;
  BenchReport timed;
  report_decode({row}, config, "dummy:x", 5, timed);
  EXPECT_EQ(timed.tables[2].rows.size(), 1u);
  EXPECT_EQ(timed.results[0].at("phase_ms").at("experts"), 500.0);
}

TEST(BenchDecode, CollapsedRoutingBytesFromCacheAndLossyPoliciesAreCalledWhatTheyAre) {
  DecodeRow row;
  row.policy = "oea:k0=5";
  row.batch = 16;
  row.prompt = row.steps = 1;
  row.prefill_s = row.decode_s = row.step_ms = row.ratio = row.read_gbps = {1, 1, 1};
  row.floor_share = {1.3, 1, 2};
  row.plain = row.distinct = 10;
  row.uniform = uniform_experts(128, 8, 16);
  row.routing.rerouted_tokens = 1;
  ModelConfig config;
  config.n_experts = 128;
  config.top_k = 8;
  BenchReport report;
  report_decode({row}, config, "dummy:x", 5, report);
  ASSERT_EQ(report.notes.size(), 3u);
  EXPECT_NE(report.notes[0].find("warning: the routing has collapsed at batch 16"), std::string::npos);
  EXPECT_NE(report.notes[1].find("warning: at batch 16 the step's bytes came faster than memory"), std::string::npos);
  EXPECT_NE(report.notes[2].find("Random weights have no quality to lose"), std::string::npos);
  BenchReport real;
  report_decode({row}, config, "models/x", 5, real);
  EXPECT_NE(real.notes[2].find("carpool ab models/x --a topk --b oea:k0=5 does"), std::string::npos) << real.notes[2];
}

TEST(BenchDecode, WhatCannotBeMeasuredIsRefused) {
  const ModelConfig config = read_model_config(golden::kFolder + "/bf16_tied");
  const auto with = [&](auto change) {
    DecodeOptions o = tiny_options();
    change(o);
    return [o, &config] { check_decode(config, o); };
  };
  EXPECT_NO_THROW(with([](DecodeOptions&) {})());
  expect_refused(ErrorKind::kUsage, "a batch must be 1 to 1024, got 0", with([](auto& o) { o.batches = {0}; }));
  expect_refused(ErrorKind::kUsage, "no batch", with([](auto& o) { o.batches = {}; }));
  expect_refused(ErrorKind::kUsage, "prompt tokens must be", with([](auto& o) { o.prompt = 0; }));
  expect_refused(ErrorKind::kUsage, "steps must be", with([](auto& o) { o.steps = 0; }));
  expect_refused(ErrorKind::kUsage, "repeats must be", with([](auto& o) { o.repeats = 0; }));
  expect_refused(ErrorKind::kUsage, "the chunk must be", with([](auto& o) { o.chunk = 0; }));
  expect_refused(ErrorKind::kUsage, "do not fit the model's context of 256", with([](auto& o) { o.steps = 254; }));
  expect_refused(ErrorKind::kConfig, "k0", with([](auto& o) { o.policies = {"oea:k0=5"}; }));
}

TEST(BenchPrefill, EveryPromptGoesThroughInChunks) {
  Model model = tiny_model();
  PrefillOptions o;
  o.tokens = {5, 40};
  o.chunk = 16;
  o.repeats = 2;
  o.probe_bytes = kSmallProbe;
  const std::vector<PrefillRow> rows = run_prefill(model, o);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].tokens, 40);
  EXPECT_EQ(rows[1].chunk, 16);
  EXPECT_GT(rows[1].prefill_ms.value, 0);
  // 40 tokens in chunks of 16, 16 and 8: 160 slots of a layer over 3 steps.
  EXPECT_NEAR(rows[1].rows_per_expert * rows[1].distinct, 160 / 3.0, 1e-9);
  EXPECT_NEAR(rows[0].rows_per_expert * rows[0].distinct, 20, 1e-9);
  BenchReport report;
  report_prefill(rows, 2, report);
  EXPECT_EQ(report.tables[0].rows[1][0], "pp40");
  EXPECT_EQ(report.results[1].at("tokens"), 40);
}

TEST(BenchPrefill, WhatCannotBeMeasuredIsRefused) {
  const ModelConfig config = read_model_config(golden::kFolder + "/bf16_tied");
  PrefillOptions o;
  o.tokens = {256};
  EXPECT_NO_THROW(check_prefill(config, o));
  o.tokens = {257};
  expect_refused(ErrorKind::kUsage, "257 tokens does not fit the model's context of 256",
                 [&] { check_prefill(config, o); });
  o.tokens = {0};
  expect_refused(ErrorKind::kUsage, "at least 1 token", [&] { check_prefill(config, o); });
  o.tokens = {1};
  o.chunk = 0;
  expect_refused(ErrorKind::kUsage, "the chunk must be", [&] { check_prefill(config, o); });
  o.chunk = 1;
  o.repeats = 0;
  expect_refused(ErrorKind::kUsage, "repeats must be", [&] { check_prefill(config, o); });
}

}  // namespace
}  // namespace carpool
