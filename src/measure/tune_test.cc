// The search over made-up models: what is chosen is the fastest that keeps its budget on documents that it was not
// chosen on, screening measures little in full, and a k0 by layer is kept where it is surely faster.
#include "measure/tune.h"

#include <gtest/gtest.h>

#include <charconv>
#include <random>

#include "base/error.h"
#include "measure/layer_k0.h"

namespace carpool {
namespace {

constexpr int kTopK = 8;

// A model of four layers with experts and a dense one, number 0. Each of k0 less loads 4 of 40 experts less in a layer
// and costs that layer's sensitivity times the square of what is missing.
struct FakeModel {
  std::vector<double> sensitivity = {0, 1e-4, 1e-4, 1e-4, 1e-4};  // layer 0 is dense
  double slope = 0.05;                                            // ms per expert
  double held_out = 1;                             // cost there, as a share of that on the documents for tuning
  std::string bad_held_out;                        // a spec that costs ten times as much there
  double growth = 1;                               // cost from 16 rows on, as a share of that below
  std::vector<std::pair<std::string, int>> asked;  // spec, tokens

  CompareCell cell(const std::string& policy, int batch) const {
    std::vector<double> k0(sensitivity.size(), kTopK);
    const bool pruned = policy.starts_with("prune:k0=");
    if (policy != "topk") {
      const std::string list = policy.substr(policy.find("k0=") + 3);
      if (list.find('/') == std::string::npos) k0.assign(k0.size(), std::stod(list));
      for (size_t l = 0, at = 0; list.find('/') != std::string::npos && l < k0.size(); ++l) {
        k0[l] = std::stod(list.substr(at));
        at = list.find('/', at) + 1;
      }
    }
    double cost = 0, missing = 0;
    for (size_t l = 1; l < k0.size(); ++l) {
      cost += sensitivity[l] * (kTopK - k0[l]) * (kTopK - k0[l]) * (pruned ? 4 : 1);
      missing += (kTopK - k0[l]) / 4;
    }
    if (batch >= 16) cost *= growth;
    CompareCell c;
    c.policy = policy;
    c.batch = batch;
    c.distinct = 40 - 4 * missing;
    c.distinct_plain = 40;
    std::mt19937 random(static_cast<unsigned>(c.distinct * 100) + 1);
    std::normal_distribution<double> noise(0, 0.002);
    for (int d = 0; d < 16; ++d) {
      const double own = d % 2 == 0 ? cost : cost * held_out * (policy == bad_held_out ? 10 : 1);
      c.document_kl.push_back(own * (1 + noise(random)));
      c.document_delta.push_back(own / 2);
    }
    std::vector<double> ms, ratio;
    for (int b = 0; b < 40; ++b) {
      const double plain = 2 + slope * 40 + noise(random);
      c.blocks.push_back({c.distinct, 2 + slope * c.distinct + noise(random), plain});
      ms.push_back(c.blocks.back().ms);
      ratio.push_back(policy == "topk" ? 1 : ms.back() / plain);
    }
    c.step_ms = median_with_interval(ms);
    c.time_ratio = median_with_interval(ratio);
    return c;
  }

  std::vector<ChosenBand> tuned(const std::string& budget, TuneOptions o) {
    o.budget = QualityBudget::parse(budget);
    o.top_k = kTopK;
    o.moe_layer = {false, true, true, true, true};
    return tune(o, [&](int batch, const std::vector<std::string>& specs, int tokens) {
      std::vector<CompareCell> cells = {cell("topk", batch)};
      for (const std::string& spec : specs) {
        asked.emplace_back(spec, tokens);
        cells.push_back(cell(spec, batch));
      }
      return cells;
    });
  }
};

std::vector<std::string> every(const std::string& method) {
  std::vector<std::string> specs;
  for (int k0 = 1; k0 < kTopK; ++k0) specs.push_back(method + ":k0=" + std::to_string(k0));
  return specs;
}

TuneOptions uniform(std::vector<int> batches = {8}) {
  return {.candidates = every("oea"), .batches = std::move(batches), .by_layer = false};
}

TEST(Tune, TheFastestWithinTheBudgetIsChosenByBatch) {
  FakeModel model;
  const std::vector<ChosenBand> bands = model.tuned("kl=0.0095", uniform({4, 16}));
  ASSERT_EQ(bands.size(), 2u);
  EXPECT_EQ(bands[0].from, 4);
  EXPECT_EQ(bands[0].to, 15);
  EXPECT_EQ(bands[1].from, 16);
  EXPECT_EQ(bands[1].to, 31);
  EXPECT_EQ(bands[0].policy, "oea:k0=4") << "4 * 1e-4 * 16 is within 0.0095, 25 is not";
  EXPECT_NEAR(bands[0].tuning.value, 0.0064, 0.0002);
  EXPECT_FALSE(bands[0].by_layer);
  EXPECT_EQ(bands_spec(bands), "bands:4=oea:k0=4;32=topk");
  EXPECT_EQ(model.tuned("kl=1e-6", uniform())[0].policy, "topk");
  EXPECT_EQ(model.tuned("ce=0.0064", uniform())[0].policy, "oea:k0=3") << "half of KL is its cross-entropy here";
  model.slope = 0;
  const ChosenBand flat = model.tuned("kl=0.0095", uniform())[0];
  EXPECT_EQ(flat.policy, "topk");
  EXPECT_NE(flat.reason.find("does not follow"), std::string::npos) << flat.reason;
}

TEST(Tune, WhatMayCostMoreWithMoreRowsHoldsOnlyAsFarAsItWasMeasured) {
  FakeModel model;
  TuneOptions options{.candidates = every("prune"), .batches = {8, 16}, .by_layer = false};
  std::vector<ChosenBand> bands = model.tuned("kl=0.0095", options);
  EXPECT_EQ(bands[0].policy, "prune:k0=6");
  EXPECT_EQ(bands[0].to, 15) << "within the budget at 16, too";
  EXPECT_EQ(bands[1].to, 16) << "nothing is known beyond";
  EXPECT_NE(bands[1].reason.find("may cost more"), std::string::npos) << bands[1].reason;
  model.growth = 3;
  bands = model.tuned("kl=0.0095", options);
  EXPECT_EQ(bands[0].to, 8);
  EXPECT_EQ(bands_spec(bands), "bands:8=prune:k0=6;9=topk;16=prune:k0=7;17=topk");
}

TEST(Tune, WhatBreaksTheBudgetOnHeldOutTextIsNotChosen) {
  FakeModel model;
  model.bad_held_out = "oea:k0=4";
  const ChosenBand band = model.tuned("kl=0.0095", uniform())[0];
  EXPECT_EQ(band.policy, "oea:k0=5");
  EXPECT_NE(band.reason.find("oea:k0=4 is faster, but costs 0.06"), std::string::npos) << band.reason;
  EXPECT_LE(band.held_out.value, 0.01);
  model.held_out = 1000;
  const ChosenBand none = model.tuned("kl=0.0095", uniform())[0];
  EXPECT_EQ(none.policy, "topk");
  EXPECT_NE(none.reason.find("no setting keeps the budget on held-out text"), std::string::npos) << none.reason;
}

TEST(Tune, EveryMethodStandsForElection) {
  FakeModel model;
  TuneOptions o = uniform();
  for (const std::string& spec : every("prune")) o.candidates.push_back(spec);
  EXPECT_EQ(model.tuned("kl=0.0095", o)[0].policy, "oea:k0=4") << "prune costs four times as much";
  o.candidates = every("prune");
  EXPECT_EQ(model.tuned("kl=0.0095", o)[0].policy, "prune:k0=6");
}

TEST(Tune, ScreeningLeavesFewToMeasureInFull) {
  FakeModel model;
  TuneOptions o = uniform();
  for (const std::string& spec : every("prune")) o.candidates.push_back(spec);
  o.screen_tokens = 64;
  EXPECT_EQ(model.tuned("kl=0.0095", o)[0].policy, "oea:k0=4");
  const auto full = [&](const std::string& spec) {
    return std::count(model.asked.begin(), model.asked.end(), std::pair(spec, 0));
  };
  EXPECT_EQ(std::count_if(model.asked.begin(), model.asked.end(), [](const auto& a) { return a.second == 64; }), 14);
  EXPECT_LE(std::count_if(model.asked.begin(), model.asked.end(), [](const auto& a) { return a.second == 0; }), 8);
  EXPECT_EQ(full("oea:k0=1"), 0) << "far above the budget";
  EXPECT_EQ(full("oea:k0=4"), 1);
}

TEST(Tune, AK0ForEachLayerIsKeptWhereItIsSurelyFaster) {
  FakeModel model;
  model.sensitivity = {0, 1e-5, 1e-5, 2e-4, 2e-4};  // lowering the first two with experts is nearly free
  TuneOptions o = uniform();
  const ChosenBand one = model.tuned("kl=0.01", o)[0];
  EXPECT_EQ(one.policy, "oea:k0=4");
  o.by_layer = true;
  const ChosenBand band = model.tuned("kl=0.01", o)[0];
  ASSERT_TRUE(band.by_layer);
  EXPECT_TRUE(band.by_layer->kept);
  EXPECT_EQ(band.by_layer->policy, band.policy);
  EXPECT_EQ(band.by_layer->against, "oea:k0=4");
  EXPECT_LT(band.by_layer->time_ratio.hi, 1);
  EXPECT_TRUE(band.policy.starts_with("oea:k0=0/1/1/")) << band.policy;
  EXPECT_LT(band.cell.time_ratio.value, one.cell.time_ratio.value);
  EXPECT_LE(band.tuning.hi, 0.01);

  FakeModel even;  // nothing to be won by telling layers apart, but edges of the budget may be filled
  even.slope = 0.05;
  const ChosenBand same = even.tuned("kl=0.0066", o)[0];
  ASSERT_TRUE(same.by_layer);
  EXPECT_FALSE(same.by_layer->kept) << same.policy;
  EXPECT_EQ(same.policy, "oea:k0=4");
}

TEST(LayerK0, GoesFirstWhereAnExpertCostsLeast) {
  FakeModel model;
  model.sensitivity = {0, 4e-4, 1e-4, 1e-5, 1e-4};
  std::vector<K0Effect> uniform;
  for (int k0 = 1; k0 < kTopK; ++k0) {
    const CompareCell c = model.cell("oea:k0=" + std::to_string(k0), 8);
    uniform.push_back({k0, c.document_kl[0], (c.distinct_plain - c.distinct) * 4});
  }
  LayerK0 by_layer(uniform, kTopK, {false, true, true, true, true});
  const std::vector<std::string> probes = by_layer.probes(5);
  EXPECT_EQ(probes.size(), 8u) << "two of each layer";
  EXPECT_EQ(probes[0], "oea:k0=0/4/8/8/8") << "the dense layer has none";
  EXPECT_EQ(probes[1], "oea:k0=0/6/8/8/8");
  std::vector<CompareCell> cells;
  for (const std::string& spec : probes) cells.push_back(model.cell(spec, 8));
  by_layer.learn(cells, [](const CompareCell& c) { return c.document_kl[0]; });
  double last = 0;
  for (const double budget : {1e-4, 1e-3, 5e-3, 1e-2}) {
    const std::string spec = by_layer.assign(budget);
    ASSERT_FALSE(spec.empty()) << budget;
    const CompareCell c = model.cell(spec, 8);
    EXPECT_LE(c.document_kl[0], budget * 1.05) << spec;
    EXPECT_GE(c.document_kl[0], budget * 0.4) << spec << ": the budget is used";
    EXPECT_GE(c.distinct_plain - c.distinct, last);
    last = c.distinct_plain - c.distinct;
    EXPECT_LT(spec[13], spec[9]) << spec << ": the third layer with experts costs least, the first most";
  }
  EXPECT_EQ(by_layer.assign(1e-9), "") << "plain routing in all layers is no assignment";
  EXPECT_EQ(by_layer.assign(1), "") << "the same k0 in all layers is none either";
}

}  // namespace
}  // namespace carpool
