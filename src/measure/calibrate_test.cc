// Calibration against its definitions on tiny models, and a stopped one that ends as one that was not.
#include "measure/calibrate.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "model/golden_test_util.h"

namespace carpool {
namespace {

Documents some_documents(int count, int tokens) {
  Documents out(static_cast<size_t>(count));
  unsigned seed = 5;
  for (auto& d : out) {
    for (int i = 0; i < tokens; ++i) d.push_back(static_cast<int>((seed = seed * 1664525u + 1013904223u) >> 16) % 96);
  }
  return out;
}

CalibrateOptions options_for(const Documents& documents) {
  CalibrateOptions o;
  o.documents = static_cast<int>(documents.size());
  o.save_every_s = 0;
  o.resident = 2;
  return o;
}

// Every expert's output for every token of a layer, from a pass of its own: [tokens][E][D], with the weight that plain
// routing gives each expert, 0 for none.
struct Outputs {
  std::vector<std::vector<std::vector<float>>> of;
  std::vector<std::vector<double>> weight;
};

Outputs outputs_of(Model& model, int layer, const Documents& documents) {
  const ModelConfig& c = model.config();
  Outputs out;
  golden::Watcher watcher([&](const RoutedLayer& v) {
    if (v.in.layer != layer) return;
    const auto first = out.of.size(), E = static_cast<size_t>(c.n_experts);
    out.of.resize(first + static_cast<size_t>(v.normed.rows), std::vector<std::vector<float>>(E));
    out.weight.resize(out.of.size(), std::vector<double>(E, 0));
    std::vector<float> one(static_cast<size_t>(v.normed.rows * c.width));
    for (int e = 0; e < c.n_experts; ++e) {
      model.expert_output(layer, e, v.normed, {one.data(), v.normed.rows, c.width, c.width});
      for (int t = 0; t < v.normed.rows; ++t) {
        out.of[first + static_cast<size_t>(t)][static_cast<size_t>(e)].assign(one.begin() + t * c.width,
                                                                              one.begin() + (t + 1) * c.width);
      }
    }
    for (int t = 0; t < v.normed.rows; ++t) {
      for (int i = v.chosen.begin(t); i < v.chosen.end(t); ++i) {
        out.weight[first + static_cast<size_t>(t)][static_cast<size_t>(v.chosen.experts()[static_cast<size_t>(i)])] =
            static_cast<double>(v.weights[static_cast<size_t>(i)]);
      }
    }
  });
  for (const auto& d : documents) {
    KvCache kv(c, 64);
    golden::Place place(kv, 64);
    golden::prefill(model, kv, place, d, 64, {.observer = &watcher});
  }
  return out;
}

// sum over tokens of w^2 |a - S b|^2; w of expert s, or 1.
double squares(const Outputs& o, size_t s, size_t t, double scale, bool weighted) {
  double sum = 0;
  for (size_t x = 0; x < o.of.size(); ++x) {
    double square = 0;
    for (size_t d = 0; d < o.of[x][s].size(); ++d) {
      const double difference = static_cast<double>(o.of[x][s][d]) - scale * static_cast<double>(o.of[x][t][d]);
      square += difference * difference;
    }
    sum += (weighted ? o.weight[x][s] * o.weight[x][s] : 1) * square;
  }
  return sum;
}

TEST(Calibrate, TheTablesAreWhatTheirDefinitionsSay) {
  Model model = golden::load("float32_untied");
  const Documents documents = some_documents(3, 20);
  const Calibration found = calibrate(model, documents, options_for(documents));
  EXPECT_EQ(found.tokens, 60);
  const auto E = static_cast<size_t>(model.config().n_experts);
  for (const int layer : {0, 1}) {
    const LayerTables& t = found.tables.layers[static_cast<size_t>(layer)];
    const Outputs o = outputs_of(model, layer, documents);
    ASSERT_EQ(o.of.size(), 60u);
    double farthest = 0;
    for (size_t a = 0; a < E; ++a) {
      for (size_t b = 0; b < E; ++b) farthest = std::max(farthest, std::sqrt(squares(o, a, b, 1, false)));
    }
    for (size_t s = 0; s < E; ++s) {
      const double own = squares(o, s, s, 0, true);
      const bool met = own > 0;
      double norm = 0, contribution = 0, slots = 0;
      for (size_t x = 0; x < o.of.size(); ++x) {
        double square = 0;
        for (const float v : o.of[x][s]) square += static_cast<double>(v) * static_cast<double>(v);
        const bool routed = o.weight[x][s] > 0;
        norm += routed || !met ? std::sqrt(square) : 0;
        contribution += o.weight[x][s] * std::sqrt(square);
        slots += routed || !met ? 1 : 0;
      }
      EXPECT_NEAR(t.norm[s], norm / slots, 1e-5 * norm / slots);
      EXPECT_NEAR(t.contribution[s], contribution / 60, 1e-5 * contribution / 60 + 1e-12);
      for (size_t u = 0; u < E; ++u) {
        const size_t at = s * E + u;
        EXPECT_NEAR(t.similarity[at], 1 - std::sqrt(squares(o, s, u, 1, false)) / farthest, 1e-4);
        if (s == u) continue;
        const double base = met ? own : squares(o, s, s, 0, false), scale = static_cast<double>(t.fold_scale[at]);
        const auto cost = [&](double x) { return squares(o, s, u, x, met) + 1e-3 * base * x * x; };
        EXPECT_NEAR(t.fold_loss[at], squares(o, s, u, scale, met) / base, 1e-4);
        EXPECT_LE(cost(scale), cost(scale + 0.01) + 1e-9 * base) << "the best scale";
        EXPECT_LE(cost(scale), cost(std::max(0.0, scale - 0.01)) + 1e-9 * base);
      }
    }
    EXPECT_EQ(std::count(t.resident.begin(), t.resident.end(), 1), 2);
    EXPECT_GT(t.rank_range, 0);
    EXPECT_EQ(t.k0, 0) << "no probes";
  }
}

TEST(Calibrate, DenseLayersHaveNoTables) {
  Model model = golden::load("dense_layers");
  const Documents documents = some_documents(1, 8);
  const Calibration found = calibrate(model, documents, options_for(documents));
  const ModelConfig& c = model.config();
  ASSERT_EQ(found.tables.layers.size(), c.moe_layer.size());
  for (size_t l = 0; l < c.moe_layer.size(); ++l) EXPECT_EQ(found.tables.layers[l].empty(), !c.moe_layer[l]) << l;
  EXPECT_EQ(std::ssize(found.layers), c.moe_layers());
}

CalibrateOptions with_probes(const Documents& documents) {
  CalibrateOptions o = options_for(documents);
  o.probe_documents = 4;
  o.batch = 4;
  o.k0 = {1, 2};
  o.mean_k0 = 2;
  return o;
}

TEST(Calibrate, SensitivityIsTheCostOfReroutingOneLayerAlone) {
  Model model = golden::load("bf16_tied");
  const Documents documents = some_documents(4, 16);
  const Calibration found = calibrate(model, documents, with_probes(documents));
  ASSERT_EQ(found.layers.size(), 3u);
  double sum = 0;
  for (const LayerCalibration& l : found.layers) {
    ASSERT_EQ(l.probes.size(), 2u);
    EXPECT_GT(l.probes[0].kl, 0);
    sum += l.probes[0].kl;
    EXPECT_GE(found.tables.layers[static_cast<size_t>(l.layer)].k0, 1);
  }
  // The last layer, by a pass of its own: re-routing it changes nothing before it, so an independent run of all layers
  // must cost more than any one of them.
  const auto all = make_policy("oea:k0=1,guard=off");
  const QualityRun whole = teacher_forced(model, {all.get()}, documents, 4);
  for (const LayerCalibration& l : found.layers) EXPECT_LT(l.probes[0].kl, whole.quality[0].kl_mean);
  EXPECT_GT(sum, 0.1 * whole.quality[0].kl_mean);
}

std::string progress_path(const char* name) {
  return testing::TempDir() + "calibrate_" + std::to_string(getpid()) + "_" + name;
}

struct Stopped {};

TEST(Calibrate, AStoppedCalibrationEndsAsOneThatWasNot) {
  const Documents documents = some_documents(4, 16);
  Model model = golden::load("bf16_tied");
  const Calibration whole = calibrate(model, documents, with_probes(documents));
  for (const char* where : {"running every expert", "re-routing one layer at a time"}) {
    CalibrateOptions o = with_probes(documents);
    o.progress_file = progress_path("part");
    o.progress = [where](const std::string& stage, double share) {
      if (stage == where && share > 0.5) throw Stopped{};
    };
    EXPECT_THROW(calibrate(model, documents, o), Stopped) << where;
    o.progress = {};
    const Calibration rest = calibrate(model, documents, o);
    EXPECT_GT(rest.resumed_documents, 0) << where;
    EXPECT_EQ(rest.resumed_layers > 0, std::string(where) != "running every expert");
    for (size_t l = 0; l < whole.tables.layers.size(); ++l) {
      const LayerTables &a = whole.tables.layers[l], &b = rest.tables.layers[l];
      EXPECT_TRUE(a.similarity == b.similarity && a.fold_scale == b.fold_scale && a.fold_loss == b.fold_loss) << where;
      EXPECT_TRUE(a.norm == b.norm && a.contribution == b.contribution && a.resident == b.resident) << where;
      EXPECT_TRUE(a.rank_range == b.rank_range && a.k0 == b.k0) << where;
      EXPECT_EQ(whole.layers[l].probes[1].kl, rest.layers[l].probes[1].kl);
    }
    std::filesystem::remove(o.progress_file);
  }
}

TEST(Calibrate, TheProgressOfAnotherCalibrationIsRefusedUnlessItIsToBeForgotten) {
  const Documents documents = some_documents(4, 16);
  Model model = golden::load("bf16_tied");
  CalibrateOptions o = options_for(documents);
  o.progress_file = progress_path("other");
  calibrate(model, documents, o);
  const auto refused = [&](ErrorKind kind) {
    try {
      calibrate(model, documents, o);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), kind) << e.what();
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  o.inputs = "another text";
  EXPECT_NE(refused(ErrorKind::kConfig).find("--restart"), std::string::npos);
  o.restart = true;
  EXPECT_EQ(calibrate(model, documents, o).resumed_documents, 0);
  o.restart = false;
  EXPECT_EQ(calibrate(model, documents, o).resumed_documents, 4);
  std::string bytes = read_text_file(o.progress_file);
  bytes[bytes.find("\"sums\"") + 1] = 'z';
  std::ofstream(o.progress_file, std::ios::binary) << bytes;
  EXPECT_NE(refused(ErrorKind::kMalformed).find("without a sound \"sums\""), std::string::npos);
  std::filesystem::remove(o.progress_file);
}

TEST(Calibrate, K0GoesWhereItTakesAwayMostLoss) {
  // K = 4. Layer 0 needs its experts, layer 1 hardly does, layer 2 gains only from all of them.
  const std::vector<std::vector<double>> loss = {{8, 2, 1}, {0.3, 0.2, 0.1}, {6, 6, 6}};
  const std::vector<int> k0 = {1, 2, 3};
  EXPECT_EQ(choose_k0(loss, k0, 4, 1), (std::vector<int>{1, 1, 1}));
  EXPECT_EQ(choose_k0(loss, k0, 4, 4.0 / 3), (std::vector<int>{2, 1, 1})) << "one more: 6 for one expert";
  EXPECT_EQ(choose_k0(loss, k0, 4, 7.0 / 3), (std::vector<int>{2, 1, 4})) << "three more: 2 for each in layer 2";
  EXPECT_EQ(choose_k0(loss, k0, 4, 4), (std::vector<int>{4, 4, 4}));
}

TEST(Calibrate, OptionsThatDoNotFitAreRefused) {
  const ModelConfig c = golden::load("bf16_tied").config();  // 4 of 16 experts
  const Documents documents = some_documents(4, 16);
  const CalibrateOptions good = with_probes(documents);
  EXPECT_NO_THROW(check_calibrate(c, good));
  const auto refused = [&](auto&& change) {
    CalibrateOptions o = good;
    change(o);
    EXPECT_THROW(check_calibrate(c, o), Error);
  };
  refused([](auto& o) { o.documents = 0; });
  refused([](auto& o) { o.probe_documents = 5; });
  refused([](auto& o) { o.probe_documents = 3; });
  refused([](auto& o) { o.batch = 1; });
  refused([](auto& o) { o.k0 = {}; });
  refused([](auto& o) { o.k0 = {2, 1}; });
  refused([](auto& o) { o.k0 = {1, 4}; });
  refused([](auto& o) { o.mean_k0 = 0.5; });
  refused([](auto& o) { o.mean_k0 = 5; });
  refused([](auto& o) { o.resident = 17; });
}

}  // namespace
}  // namespace carpool
