// Routing tables: what they refuse, and each layer's own k0 under OEA.
#include "routing/tables.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "routing/policy_run_test_util.h"
#include "routing/tables_test_util.h"

namespace carpool {
namespace {

std::string error(const RoutingTables& tables) {
  try {
    tables.check("f");
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kMalformed);
    return e.what();
  }
  return "";
}

TEST(RoutingTables, EveryWrongEntryIsNamedInOneSentence) {
  const RoutingTables good = *test::random_tables(4, 2, 3);
  EXPECT_EQ(error(good), "");
  const auto with = [&](auto&& change) {
    RoutingTables tables = good;
    change(tables, tables.layers[0]);
    return error(tables);
  };
  EXPECT_EQ(with([](auto&, auto& l) { l.similarity[5] = test::kNan; }),
            "f: layer 0: entry 5 of similarity is nan, it must be at least -1 and at most 1");
  EXPECT_EQ(with([](auto&, auto& l) { l.fold_scale[1] = -1; }),
            "f: layer 0: entry 1 of fold_scale is -1, it must be at least 0 and finite");
  EXPECT_EQ(with([](auto&, auto& l) { l.fold_loss[1] = test::kInf; }),
            "f: layer 0: entry 1 of fold_loss is inf, it must be at least 0 and finite");
  EXPECT_EQ(with([](auto&, auto& l) { l.norm.pop_back(); }), "f: layer 0: norm has 3 entries, not 4");
  EXPECT_EQ(with([](auto&, auto& l) { l.resident[2] = 2; }),
            "f: layer 0: entry 2 of resident is 2, it must be at least 0 and at most 1");
  EXPECT_EQ(with([](auto&, auto& l) { l.k0 = 3; }), "f: layer 0: k0 is 3, it must be 1 to 2");
  EXPECT_EQ(with([](auto& t, auto&) { t.n_experts = 0; }), "f: 0 experts, it must be 1 to 4096");
  EXPECT_EQ(with([](auto& t, auto&) { t.top_k = 5; }), "f: 5 experts per token of 4: must be 1 to 4");
  EXPECT_EQ(with([](auto& t, auto&) { t.layers.clear(); }), "f: 0 layers, it must be 1 to 1024");
  EXPECT_EQ(with([](auto& t, auto&) { t.layers.emplace_back().k0 = 1; }),
            "f: 1 of 2 layers with tables have \"similarity\"");
}

TEST(RoutingTables, OeaTakesEachLayersOwnK0) {
  const test::Case c = test::hand_checked();
  auto tables = std::make_shared<RoutingTables>(RoutingTables{.n_experts = 8, .top_k = 3, .layers = {}});
  for (const int k0 : {2, 1, 3}) tables->layers.emplace_back().k0 = k0;
  const auto policy = make_policy("oea:k0=table,table=t,guard=off");
  policy->use_tables(tables);
  policy->check(8, 3);
  Scratch scratch;
  Selection got, want;
  for (const auto& [layer, spec] : {std::pair(0, "oea:k0=2,guard=off"), {1, "oea:k0=1,guard=off"}, {2, "topk"}}) {
    RouterInput in = c.input();
    in.layer = layer;
    policy->select(in, scratch, got);
    make_policy(spec)->select(in, scratch, want);
    EXPECT_TRUE(std::equal(got.experts().begin(), got.experts().end(), want.experts().begin(), want.experts().end()))
        << spec;
  }
  EXPECT_THROW(policy->check(8, 2), Error) << "a k0 of 3";
}

}  // namespace
}  // namespace carpool
