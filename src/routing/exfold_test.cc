// ExFold: pools and folds by hand, and what each argument decides.
#include <gtest/gtest.h>

#include "base/error.h"
#include "routing/policy_run_test_util.h"
#include "routing/tables_test_util.h"

namespace carpool {
namespace {

using test::Case;
using test::hand_checked;
using test::Outcome;
using test::Rows;
using test::run;

struct Fold {
  int from, to;
  float scale, loss;
};

// Eight experts of equal norms, each of which loses everything in any other but for `folds`.
RoutingTables folding(const std::vector<Fold>& folds) {
  RoutingTables tables{.n_experts = 8, .top_k = 3, .layers = {LayerTables{}}};
  LayerTables& t = tables.layers[0];
  t.fold_scale.assign(64, 0);
  t.fold_loss.assign(64, 1);
  t.norm.assign(8, 2);
  t.contribution = {0, 0, 0, 0, 0, 0, 5, 4};
  for (const Fold& f : folds) {
    t.fold_scale[static_cast<size_t>(8 * f.from + f.to)] = f.scale;
    t.fold_loss[static_cast<size_t>(8 * f.from + f.to)] = f.loss;
  }
  tables.check("by hand");
  return tables;
}

std::shared_ptr<const RoutingTables> shared(const RoutingTables& tables) {
  return std::make_shared<const RoutingTables>(tables);
}

// Plain choices are {0 1 2}, {1 4 5}, {3 5 0}. Weights summed over them: 0 .40, 1 .65, 2 .15, 3 .35, 4 .30, 5 .30.
const RoutingTables kTables = folding({{2, 0, .5f, .4f}, {2, 1, .8f, .2f}, {4, 1, .5f, .5f}, {5, 3, 1.2f, .1f}});

void expect_near(const std::vector<float>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6) << "slot " << i;
}

TEST(ExFold, SlotsOutsideThePoolAreFoldedAndMerged) {
  const Outcome o = run("exfold:table=t,m=3", hand_checked(), shared(kTables));
  EXPECT_EQ(o.rows, (Rows{{0, 1}, {1, 3}, {3, 0}})) << "the pool is 0 1 3; 2 and 4 to 1, 5 to 3";
  expect_near(o.weights[0], {.30 / .70, (.25 + .15 * .8) / .70});
  expect_near(o.weights[1], {(.40 + .30 * .5) / .80, .10 * 1.2 / .80});
  expect_near(o.weights[2], {(.35 + .20 * 1.2) / .65, .10 / .65});
}

TEST(ExFold, AFoldThatKeepsNothingIsLeftOut) {
  const Outcome o = run("exfold:table=t,m=3", hand_checked(), shared(folding({{2, 1, .8f, .2f}, {5, 3, 1, .1f}})));
  EXPECT_EQ(o.rows[1], (std::vector<int>{1, 3})) << "4 has nothing that stands in for it";
  expect_near(o.weights[1], {.40 / .80, .10 / .80});
}

TEST(ExFold, ARowOfWhichNothingIsLeftRunsItsBestOfThePool) {
  const Case c = test::with_scores(2, {{.6f, .3f, .1f, 0}, {.6f, .3f, .1f, 0}, {0, .1f, .4f, .5f}});
  RoutingTables tables{.n_experts = 4, .top_k = 2, .layers = {LayerTables{}}};
  LayerTables& t = tables.layers[0];
  t.fold_scale.assign(16, 0);
  t.fold_loss.assign(16, 1);
  t.norm.assign(4, 1);
  t.contribution.assign(4, 1);
  const Outcome o = run("exfold:table=t,m=2", c, shared(tables));
  EXPECT_EQ(o.rows, (Rows{{0, 1}, {0, 1}, {1}})) << "1 is in the pool and the row's best there";
  expect_near(o.weights[2], {.1 / .9});
}

TEST(ExFold, NormsCountInTheVote) {
  RoutingTables loud = kTables;
  loud.layers[0].norm[2] = 100;
  EXPECT_EQ(run("exfold:table=t,m=1,guard=off", hand_checked(), shared(loud)).rows[0], (std::vector<int>{2}));
  EXPECT_EQ(run("exfold:table=t,m=1,guard=off", hand_checked(), shared(kTables)).rows[0], (std::vector<int>{1}));
}

TEST(ExFold, AStaticPoolIsThatOfTheCalibration) {
  RoutingTables tables = folding({{0, 6, .5f, .1f}, {1, 7, .25f, .1f}, {2, 6, .5f, .3f}, {4, 7, 1, .1f}});
  const Outcome o = run("exfold:table=t,m=2,pool=static", hand_checked(), shared(tables));
  EXPECT_EQ(o.rows, (Rows{{6, 7}, {7}, {6}})) << "6 and 7 contributed most";
  expect_near(o.weights[0], {(.30 * .5 + .15 * .5) / .70, .25 * .25 / .70});
}

TEST(ExFold, TheGuardAndKeptExpertsAreThoseOfPools) {
  const Case c = hand_checked();
  EXPECT_EQ(run("exfold:table=t,m=6", c, shared(kTables)).reasons, std::vector<std::string>(3, "budget"));
  EXPECT_EQ(run("exfold:table=t,m=3,always=2", c, shared(kTables)).rows[0], (std::vector<int>{0, 1, 2}));
  const Outcome whole = run("exfold:table=t,m=8,guard=off", c, shared(kTables)), plain = run("topk", c);
  EXPECT_EQ(whole.rows, plain.rows);
  EXPECT_EQ(whole.weights, plain.weights) << "in every bit";
}

TEST(ExFold, WhatDoesNotFitIsRefused) {
  for (const char* bad : {"exfold", "exfold:table=t", "exfold:m=3", "exfold:table=t,m=0",
                          "exfold:table=t,m=3,pool=some", "exfold:table=t,m=50%,pool=static"}) {
    EXPECT_THROW(make_policy(bad), Error) << bad;
  }
  EXPECT_THROW(run("exfold:table=t,m=9", hand_checked(), shared(kTables)), Error) << "of 8 experts";
  RoutingTables half = kTables;
  half.layers[0].norm.clear();
  half.layers[0].k0 = 1;
  EXPECT_THROW(run("exfold:table=t,m=3", hand_checked(), shared(half)), Error) << "no norms";
}

}  // namespace
}  // namespace carpool
