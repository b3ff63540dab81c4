// Files of routing tables: what is written comes back, and everything that is wrong with one is said in a sentence.
#include "model/routing_tables.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "model/golden_test_util.h"

namespace carpool {
namespace {

// A file name of this test process alone.
std::string temporary(const std::string& name) {
  return testing::TempDir() + "routing_tables_" + std::to_string(getpid()) + "_" + name;
}

// Tables of every kind for each MoE layer of a model.
RoutingTables full_tables(const ModelConfig& c) {
  RoutingTables tables{.n_experts = c.n_experts, .top_k = c.top_k, .layers = {}};
  const auto E = static_cast<size_t>(c.n_experts);
  for (size_t l = 0; l < c.moe_layer.size(); ++l) {
    LayerTables& t = tables.layers.emplace_back();
    if (!c.moe_layer[l]) continue;
    float next = 0.001f * static_cast<float>(l + 1);
    const auto fill = [&](std::vector<float>& values, size_t n) {
      for (size_t i = 0; i < n; ++i) values.push_back(next += 0.0001f);
    };
    fill(t.similarity, E * E);
    fill(t.fold_scale, E * E);
    fill(t.fold_loss, E * E);
    fill(t.norm, E);
    fill(t.contribution, E);
    for (size_t e = 0; e < E; ++e) t.resident.push_back(static_cast<uint8_t>((e + l) % 2));
    t.rank_range = next;
    t.k0 = 1 + static_cast<int>(l) % c.top_k;
  }
  return tables;
}

void expect_same(const RoutingTables& a, const RoutingTables& b) {
  EXPECT_EQ(a.n_experts, b.n_experts);
  EXPECT_EQ(a.top_k, b.top_k);
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (size_t l = 0; l < a.layers.size(); ++l) {
    const LayerTables &x = a.layers[l], &y = b.layers[l];
    EXPECT_TRUE(x.similarity == y.similarity && x.fold_scale == y.fold_scale && x.fold_loss == y.fold_loss) << l;
    EXPECT_TRUE(x.norm == y.norm && x.contribution == y.contribution && x.resident == y.resident) << l;
    EXPECT_TRUE(x.rank_range == y.rank_range && x.k0 == y.k0) << l;
  }
}

std::string slurp(const std::string& path) { return read_text_file(path); }
void spill(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

template <class Call>
std::string error(Call&& call, ErrorKind kind = ErrorKind::kMalformed) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    return e.what();
  }
  return "accepted";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  EXPECT_EQ(from.size(), to.size()) << "offsets would change";
  return text.replace(at, from.size(), to);
}

class RoutingTablesFiles : public testing::Test {
 protected:
  RoutingTablesFiles() { write_routing_tables(path_, {router_hash(model_), "a test", full_tables(model_.config())}); }
  ~RoutingTablesFiles() override { std::filesystem::remove(path_); }
  std::string read_error(const std::string& bytes) {
    spill(path_, bytes);
    return error([&] { read_routing_tables(path_); });
  }

  Model model_ = golden::load("float32_untied");
  std::string path_ = temporary("file");
};

TEST_F(RoutingTablesFiles, WhatIsWrittenComesBack) {
  const RoutingTablesFile file = read_routing_tables(path_);
  EXPECT_EQ(file.model, router_hash(model_));
  EXPECT_EQ(file.made_by, "a test");
  expect_same(file.tables, full_tables(model_.config()));
}

TEST_F(RoutingTablesFiles, TablesMayBeAbsent) {
  RoutingTables some = full_tables(model_.config());
  for (LayerTables& t : some.layers) {
    t.fold_scale.clear();
    t.resident.clear();
    t.rank_range = 0;
    t.k0 = 0;
  }
  write_routing_tables(path_, {router_hash(model_), "", some});
  expect_same(read_routing_tables(path_).tables, some);
  error([&] { make_policy("oea:k0=table,table=" + path_, model_)->check(8, 4); }, ErrorKind::kConfig);
}

TEST_F(RoutingTablesFiles, AListOfLayersIsOfAsManyAsTheModelHas) {
  std::string list = "oea:k0=1";
  for (int l = 1; l < model_.config().layers; ++l) list += "/1";
  EXPECT_EQ(make_policy(list, model_)->layers(), model_.config().layers);
  check_spec(list, model_.config());
  error([&] { make_policy(list + "/1", model_); }, ErrorKind::kConfig);
  error([&] { check_spec(list + "/1", model_.config()); }, ErrorKind::kConfig);
}

TEST_F(RoutingTablesFiles, DamageIsFound) {
  const std::string good = slurp(path_);
  for (const size_t at : {good.size() / 3, good.size() / 2}) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    EXPECT_NE(read_error(bad).find("damaged"), std::string::npos) << at;
  }
  EXPECT_NE(read_error(good.substr(0, good.size() - 9)), "accepted") << "cut";
  EXPECT_NE(read_error(""), "accepted");
}

TEST_F(RoutingTablesFiles, EveryWrongFileIsSaidInASentence) {
  const std::string good = slurp(path_);
  EXPECT_NE(read_error(replaced(good, "\"version\":1", "\"version\":7")).find("version 7, this build reads 1"),
            std::string::npos);
  EXPECT_NE(
      read_error(replaced(good, "\"carpool routing tables\"", "\"another routing tables\"")).find("the format is"),
      std::string::npos);
  EXPECT_NE(read_error(replaced(good, "\"norm\"", "\"nosy\"")).find("none of a file of routing tables"),
            std::string::npos);
  EXPECT_NE(read_error(replaced(good, "carpool_routing_tables", "carpool_routing_tabled")).find("carpool calibrate"),
            std::string::npos);
  std::filesystem::remove(path_);
  EXPECT_NE(error([&] { read_routing_tables(path_); }, ErrorKind::kMissing), "accepted");
}

TEST_F(RoutingTablesFiles, NumbersThatAreNoneAreNotWritten) {
  RoutingTables bad = full_tables(model_.config());
  bad.layers.back().similarity[3] = NAN;
  const std::string before = slurp(path_);
  EXPECT_NE(error([&] { write_routing_tables(path_, {"x", "", bad}); }).find("entry 3 of similarity is nan"),
            std::string::npos);
  EXPECT_EQ(slurp(path_), before);
}

TEST_F(RoutingTablesFiles, OnlyFilesOfTablesAreReplaced) {
  const std::string other = temporary("other");
  spill(other, "precious");
  EXPECT_NE(
      error([&] { write_routing_tables(other, {"x", "", full_tables(model_.config())}); }, ErrorKind::kCannotCreate),
      "accepted");
  EXPECT_EQ(slurp(other), "precious");
  std::filesystem::remove(other);
}

TEST_F(RoutingTablesFiles, APolicyGetsTheTablesOfItsModelAndNoOther) {
  const ModelConfig& c = model_.config();
  EXPECT_NO_THROW(make_policy("sere:table=" + path_ + ",k0=1", model_)->check(c.n_experts, c.top_k));
  const std::string bands = "bands:2=oea:k0=1;4=sere:table=" + path_ + ",k0=1";
  EXPECT_NO_THROW(make_policy(bands, model_)->check(c.n_experts, c.top_k));
  EXPECT_NO_THROW(make_policy("oea:k0=2", model_)->check(c.n_experts, c.top_k));
  EXPECT_NO_THROW(check_spec("sere:table=/nowhere,k0=1", c)) << "not read yet";
  EXPECT_THROW(check_spec("oea:k0=99", c), Error);
  const Model other = golden::load("bf16_tied");
  EXPECT_NE(error([&] { make_policy("sere:table=" + path_ + ",k0=1", other); }, ErrorKind::kConfig)
                .find("tables of another model (routers " + router_hash(model_)),
            std::string::npos);
  error([&] { make_policy("sere:table=" + path_ + ".absent,k0=1", model_); }, ErrorKind::kMissing);
  RoutingTables partial = full_tables(c);
  partial.layers.back() = {};
  write_routing_tables(path_, {router_hash(model_), "", partial});
  EXPECT_NE(error([&] { make_policy("sere:table=" + path_ + ",k0=1", model_); }, ErrorKind::kConfig)
                .find("no tables of layer"),
            std::string::npos);
}

TEST(RouterHash, NamesTheRoutersWhateverTheThreads) {
  EXPECT_EQ(router_hash(golden::load("float32_untied", "auto", 1)), router_hash(golden::load("float32_untied")));
  EXPECT_NE(router_hash(golden::load("float32_untied")), router_hash(golden::load("bf16_tied")));
  EXPECT_EQ(router_hash(golden::load("float32_untied")).size(), 16u);
}

TEST(StepObserver, SeesEveryMoeLayerAndItsExpertsMakeUpTheStep) {
  Model model = golden::load("float32_untied");
  const ModelConfig& c = model.config();
  std::vector<int> seen;
  double worst = 0;
  golden::Watcher watcher([&](const RoutedLayer& v) {
    seen.push_back(v.in.layer);
    std::vector<float> whole(static_cast<size_t>(v.normed.rows * c.width)), one(whole.size());
    for (int e = 0; e < c.n_experts; ++e) {
      model.expert_output(v.in.layer, e, v.normed, {one.data(), v.normed.rows, c.width, c.width});
      for (int t = 0; t < v.normed.rows; ++t) {
        for (int i = v.chosen.begin(t); i < v.chosen.end(t); ++i) {
          if (v.chosen.experts()[static_cast<size_t>(i)] != e) continue;
          for (int d = 0; d < c.width; ++d) {
            whole[static_cast<size_t>(t * c.width + d)] +=
                v.weights[static_cast<size_t>(i)] * one[static_cast<size_t>(t * c.width + d)];
          }
        }
      }
    }
    ASSERT_GT(v.chosen.size(), 0);
    // The step's own output, once more: the same sums in the same order.
    std::vector<float> again(whole.size());
    const auto& set = model.weights().layers[static_cast<size_t>(v.in.layer)].experts;
    model.ops().experts(v.normed,
                        {set.gate_up, set.down, set.gate_up_bias, set.down_bias, c.activation, c.activation_limit},
                        v.chosen, v.weights, {again.data(), v.normed.rows, c.width, c.width});
    for (size_t i = 0; i < whole.size(); ++i)
      worst = std::max(worst, std::abs(static_cast<double>(whole[i] - again[i])));
  });
  KvCache kv(c, 64);
  golden::Place place(kv, 64);
  golden::prefill(model, kv, place, {1, 2, 3, 4, 5}, 5, {.observer = &watcher});
  EXPECT_EQ(std::ssize(seen), c.moe_layers());
  EXPECT_LT(worst, 1e-6);
  golden::prefill(model, kv, place, {1}, 1);
  EXPECT_EQ(std::ssize(seen), c.moe_layers()) << "no visits any more";
}

}  // namespace
}  // namespace carpool
