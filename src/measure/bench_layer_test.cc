#include "measure/bench_layer.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "measure/bench_weights.h"

namespace carpool {
namespace {

constexpr size_t kSmallProbe = size_t{1} << 20;

LayerOptions tiny() {
  LayerOptions o;
  o.shape.name = "tiny";
  o.shape.width = 64;
  o.shape.expert_width = 32;
  o.shape.n_experts = 16;
  o.shape.top_k = 4;
  o.shape.moe_layers = 1;
  o.format = Format::kQ4_0;
  o.batches = {1, 8};
  o.policies = {"topk", "oea:k0=2"};
  o.steps = 3;
  o.repeats = 2;
  o.cold_copies = 2;
  o.probe_bytes = kSmallProbe;
  return o;
}

std::unique_ptr<Ops> ops() { return make_cpu_ops(1, "auto"); }

void expect_refused(const LayerOptions& o, ErrorKind kind, const std::string& part) {
  try {
    check_layer(o);
    ADD_FAILURE() << "accepted: " << part;
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST(BenchLayer, EveryPolicyRunsOnTheSameLogitsAndCountsWhatItLoaded) {
  const std::unique_ptr<Ops> backend = ops();
  const std::vector<LayerRow> rows = run_layer(*backend, tiny());
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].policy, "topk");
  EXPECT_EQ(rows[1].policy, "oea:k0=2");
  EXPECT_EQ(rows[2].batch, 8);
  for (const LayerRow& row : rows) {
    EXPECT_EQ(row.routing.layers, 6) << "steps times repeats, warm-up apart";
    EXPECT_GT(row.step_ms.value, 0);
    EXPECT_GT(row.read_gbps.value, 0);
    EXPECT_DOUBLE_EQ(row.expert_bytes, row.distinct * static_cast<double>(layer_bytes(tiny())) / 16);
  }
  EXPECT_EQ(rows[0].distinct, 4) << "one token, K experts";
  EXPECT_EQ(rows[2].distinct, rows[2].plain) << "topk is plain routing";
  EXPECT_EQ(rows[3].plain, rows[2].plain) << "the same logits";
  EXPECT_LT(rows[3].distinct, rows[3].plain) << "oea loads fewer";
  EXPECT_DOUBLE_EQ(rows[2].rows_per_expert, 8 * 4 / rows[2].distinct);
  EXPECT_DOUBLE_EQ(rows[2].uniform, uniform_experts(16, 4, 8));
}

TEST(BenchLayer, UniformRoutingLoadsWhatTheFormulaSays) {
  LayerOptions o = tiny();
  o.policies = {"topk"};
  o.batches = {4};
  o.steps = 500;
  const std::unique_ptr<Ops> backend = ops();
  // Distinct experts of a step lie within 4..16, so their mean over 1000 steps has a deviation of at most 6/sqrt(1000).
  EXPECT_NEAR(run_layer(*backend, o)[0].distinct, uniform_experts(16, 4, 4), 5 * 6 / std::sqrt(1000.0));
}

TEST(BenchLayer, SkewedRoutingLoadsFewerExpertsThanUniform) {
  LayerOptions o = tiny();
  o.policies = {"topk"};
  o.batches = {4};
  o.steps = 50;
  const std::unique_ptr<Ops> backend = ops();
  const double uniform = run_layer(*backend, o)[0].distinct;
  o.routing = parse_routing("skewed:2");
  const LayerRow skewed = run_layer(*backend, o)[0];
  EXPECT_LT(skewed.distinct, uniform - 1);
  EXPECT_EQ(skewed.uniform, 0) << "no expectation to compare with";
}

TEST(BenchLayer, RulesWithBiasAndGroupsKeepTheRoutingAsDrawn) {
  LayerOptions o = tiny();
  o.shape.kind = Scoring::Kind::kSigmoid;
  o.shape.selection_bias = true;
  o.policies = {"topk"};
  o.batches = {4};
  o.steps = 500;
  const std::unique_ptr<Ops> backend = ops();
  EXPECT_NEAR(run_layer(*backend, o)[0].distinct, uniform_experts(16, 4, 4), 5 * 6 / std::sqrt(1000.0));
  o.shape.n_group = 4;
  o.shape.topk_group = 2;
  o.steps = 3;
  EXPECT_EQ(run_layer(*backend, o)[0].uniform, 0) << "the formula knows no groups";
}

TEST(BenchLayer, ForcedRoutingRunsWithoutRouterAndPolicy) {
  LayerOptions o = tiny();
  o.routing = parse_routing("forced:4x1,4x2,8x1,16x3");
  const std::unique_ptr<Ops> backend = ops();
  const std::vector<LayerRow> rows = run_layer(*backend, o);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[3].policy, "forced");
  EXPECT_EQ(rows[3].distinct, 16);
  EXPECT_EQ(rows[3].rows_per_expert, 3);
  EXPECT_EQ(rows[3].batch, 12) << "48 slots, at most 4 per token";
  EXPECT_EQ(rows[3].router_ms.value, 0);
  EXPECT_EQ(rows[3].routing.layers, 0);
  EXPECT_EQ(rows[3].step_ms.value, rows[3].experts_ms.value);
  BenchReport report;
  report_layer(rows, o, report);
  ASSERT_EQ(report.tables.size(), 1u);
  EXPECT_EQ(report.results.size(), 4u);
  EXPECT_TRUE(report.summary.contains("row_cost"));
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_NE(report.notes[0].find("An extra row on a loaded expert costs"), std::string::npos);
}

TEST(BenchLayer, LossyPoliciesComeWithTheSentenceOnQuality) {
  const LayerOptions o = tiny();
  const std::unique_ptr<Ops> backend = ops();
  std::vector<LayerRow> rows = run_layer(*backend, o);
  BenchReport report;
  report_layer(rows, o, report);
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_NE(report.notes[0].find("quality: oea:k0=2 changed"), std::string::npos);
  rows.pop_back();  // the only row that changed something: one token alone stays plain
  BenchReport plain;
  report_layer(rows, o, plain);
  EXPECT_TRUE(plain.notes.empty());
}

TEST(BenchLayer, TheFitFindsTheCostsThatMadeThePoints) {
  std::vector<CostPoint> points;
  for (const auto& [u, r] : {std::pair{8, 1}, {8, 2}, {8, 4}, {8, 8}, {16, 1}, {32, 4}}) {
    points.push_back({u, r, 0.5 + 0.1 * u + 0.01 * u * (r - 1)});
  }
  const std::optional<RowCost> cost = fit_row_cost(points);
  ASSERT_TRUE(cost);
  // The points are exact up to rounding; the normal equations square the condition number, so half the digits are safe.
  EXPECT_NEAR(cost->fixed, 0.5, 1e-7);
  EXPECT_NEAR(cost->expert, 0.1, 1e-8);
  EXPECT_NEAR(cost->row, 0.01, 1e-8);
  EXPECT_NEAR(cost->relative_error, 0, 1e-7);
  EXPECT_EQ(cost->points, 6);
}

TEST(BenchLayer, PointsThatDoNotDecideGiveNoFit) {
  EXPECT_FALSE(fit_row_cost({}));
  EXPECT_FALSE(fit_row_cost({{8, 1, 1.0}, {8, 2, 1.1}})) << "two points";
  EXPECT_FALSE(fit_row_cost({{8, 1, 1.0}, {16, 1, 2.0}, {32, 1, 4.0}})) << "one number of rows";
  EXPECT_FALSE(fit_row_cost({{8, 1, 1.0}, {8, 2, 2.0}, {8, 4, 4.0}})) << "one number of experts";
  BenchReport report;
  LayerOptions o = tiny();
  o.routing = parse_routing("forced:4x1");
  const std::unique_ptr<Ops> backend = ops();
  report_layer(run_layer(*backend, o), o, report);
  EXPECT_NE(report.notes.at(0).find("No fit"), std::string::npos);
}

TEST(BenchLayer, ColdCopiesMakeFourCachesUnlessToldOtherwise) {
  LayerOptions o = tiny();
  EXPECT_EQ(layer_copies(o), 2);
  o.cold_copies = 0;
  EXPECT_GT(layer_copies(o), 100) << "a tiny layer needs many";
  o.shape = find_shape("kimi-k2");
  EXPECT_EQ(layer_copies(o), 1) << "one is larger than any cache";
  // 384 experts of 3 * 7168 * 2048 weights in 4.5 bits.
  EXPECT_EQ(layer_bytes(o), size_t{384} * 3 * 7168 * 2048 / 32 * 18);
}

TEST(BenchLayer, WhatCannotBeMeasuredIsRefused) {
  EXPECT_NO_THROW(check_layer(tiny()));
  LayerOptions o = tiny();
  o.batches = {0};
  expect_refused(o, ErrorKind::kUsage, "a batch must be 1 to 4096, got 0");
  o = tiny();
  o.steps = 0;
  expect_refused(o, ErrorKind::kUsage, "steps must be");
  o = tiny();
  o.repeats = 0;
  expect_refused(o, ErrorKind::kUsage, "repeats must be");
  o = tiny();
  o.policies = {"oea:k0=5"};
  expect_refused(o, ErrorKind::kConfig, "k0");
  o = tiny();
  o.policies = {"oea:k0=2/1"};
  expect_refused(o, ErrorKind::kUsage, "one layer is measured here");
  o = tiny();
  o.format = Format::kQ4_K;
  expect_refused(o, ErrorKind::kConfig, "the gate matrix of the shape has 64 columns");
  o = tiny();
  o.routing = parse_routing("forced:17x1");
  expect_refused(o, ErrorKind::kConfig, "forced routing of 17 experts does not fit a layer of 16");
  o.routing = parse_routing("forced:16x4096");
  expect_refused(o, ErrorKind::kUsage, "tokens that forced routing needs");
}

TEST(BenchWeights, RandomPanelsFollowTheSeedAndDifferFromEachOther) {
  const std::unique_ptr<Ops> backend = ops();
  const PanelView shape{Format::kQ8_0, nullptr, 32, 64, {1, 1}};
  const RandomPanels a(*backend, shape, 2, 3, "x"), b(*backend, shape, 2, 3, "x"), c(*backend, shape, 2, 4, "x");
  const auto same = [&](const PanelView& v, const PanelView& w) {
    return std::equal(v.data, v.data + v.bytes(), w.data);
  };
  EXPECT_TRUE(same(a.views()[1], b.views()[1]));
  EXPECT_FALSE(same(a.views()[0], a.views()[1]));
  EXPECT_FALSE(same(a.views()[0], c.views()[0]));
}

TEST(BenchWeights, WhatDoesNotFitIsRefusedBeforeItIsTaken) {
  const std::unique_ptr<Ops> backend = ops();
  const PanelView shape{Format::kF32, nullptr, 1 << 20, 1 << 20, {1, 1}};
  try {
    RandomPanels(*backend, shape, 1 << 20, 1, "the layer");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kNoMemory);
    EXPECT_NE(std::string(e.what()).find("the layer needs"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace carpool
