// The fit finds the line that made the numbers and refuses where there is none; profiles name their model.
#include "measure/latency.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "base/error.h"
#include "base/source_dir_test_util.h"

namespace carpool {
namespace {

// A cell whose steps take 2 ms + `slope` * experts, and a little noise; topk loads 40 experts.
CompareCell cell(const std::string& policy, int batch, double distinct, double kl, double slope) {
  std::mt19937 random(static_cast<unsigned>(distinct * 100) + 1);
  std::normal_distribution<double> noise(0, 0.01);
  CompareCell c;
  c.policy = policy;
  c.batch = batch;
  c.distinct = distinct;
  c.distinct_plain = 40;
  c.kl_mean = {kl, 0.9 * kl, 1.1 * kl};
  c.cross_entropy_delta = {kl / 2, kl / 2 - 0.001, kl / 2 + 0.001};
  std::vector<double> ms, ratio;
  for (int b = 0; b < 40; ++b) {
    const double plain = 2 + slope * 40 + noise(random);
    const double own = policy == "topk" ? plain : 2 + slope * distinct + noise(random);
    c.blocks.push_back({distinct, own, plain});
    ms.push_back(own);
    ratio.push_back(own / plain);
  }
  c.step_ms = median_with_interval(ms);
  c.time_ratio = median_with_interval(ratio);
  return c;
}

std::vector<CompareCell> grid(int batch, double slope) {
  std::vector<CompareCell> cells = {cell("topk", batch, 40, 0, slope)};
  for (int k0 = 1; k0 <= 7; ++k0)
    cells.push_back(cell("oea:k0=" + std::to_string(k0), batch, 5.0 * k0 + 2, 0.08 / (k0 * k0), slope));
  return cells;
}

TEST(Latency, TheFitFindsTheLineOfTheNumbers) {
  std::vector<CompareCell> cells = grid(16, 0.05);
  cells.push_back(cell("prune:k0=3", 16, 5, 0.3, 1.0));  // off the line, and not OEA's
  const LatencyFit fit = fit_latency(cells, 16);
  EXPECT_EQ(fit.cells, 8) << "topk and OEA";
  EXPECT_NEAR(fit.slope_ms.value, 0.05, 0.002);
  EXPECT_NEAR(fit.intercept_ms.value, 2, 0.05);
  EXPECT_GT(fit.r2, 0.99);
  EXPECT_LE(fit.slope_ms.lo, 0.05);
  EXPECT_GE(fit.slope_ms.hi, 0.05);
  EXPECT_TRUE(fit.usable());
}

TEST(Latency, ASlopeThatMayBeZeroIsRefused) {
  const LatencyFit flat = fit_latency(grid(16, 0), 16);
  EXPECT_LE(flat.slope_ms.lo, 0);
  EXPECT_FALSE(flat.usable());
  EXPECT_FALSE(fit_latency(grid(16, -0.05), 16).usable()) << "more time for fewer experts";
  EXPECT_FALSE(fit_latency(grid(16, 0.05), 8).usable()) << "nothing measured at this batch";
  std::vector<CompareCell> scattered = grid(16, 0.001);
  for (size_t i = 0; i < scattered.size(); ++i) {
    for (StepBlock& block : scattered[i].blocks) block.ms *= i % 2 ? 1.2 : 1;
  }
  EXPECT_FALSE(fit_latency(scattered, 16).usable()) << "cells far off any line, however steady each";
  std::vector<CompareCell> brief = grid(16, 0.05);
  EXPECT_TRUE(fit_latency(brief, 16).enough());
  for (CompareCell& cell : brief) cell.blocks.resize(2);
  EXPECT_FALSE(fit_latency(brief, 16).enough()) << "two blocks say nothing of the third";
  EXPECT_FALSE(fit_latency({brief[0], brief[1]}, 16).enough()) << "two points are no fit";
}

TEST(Latency, BandsBecomeOneSpec) {
  const auto band = [](int from, int to, const char* policy) {
    ChosenBand b;
    b.from = from;
    b.to = to;
    b.policy = policy;
    return b;
  };
  EXPECT_EQ(bands_spec({band(4, 15, "oea:k0=3"), band(16, 31, "topk")}), "bands:4=oea:k0=3;16=topk");
  EXPECT_EQ(bands_spec({band(4, 7, "oea:k0=3"), band(8, 15, "oea:k0=3")}), "bands:4=oea:k0=3;16=topk");
  EXPECT_EQ(bands_spec({band(4, 7, "topk")}), "topk");
  EXPECT_EQ(bands_spec({band(4, 4, "des_vote:m=4"), band(8, 15, "oea:k0=3")}),
            "bands:4=des_vote:m=4;5=topk;8=oea:k0=3;16=topk")
      << "nothing is said of 5 to 7 rows";
}

TEST(Latency, ABudgetIsOneOfTwoQuantities) {
  EXPECT_EQ(QualityBudget::parse("kl=0.01").text(), "kl=0.01");
  EXPECT_TRUE(QualityBudget::parse("ce=0.5").cross_entropy);
  for (const char* bad : {"", "kl", "kl=", "kl=x", "kl=-1", "kl=0", "kl=inf", "kl=0.1x", "accuracy=1", "0.01"})
    EXPECT_THROW(QualityBudget::parse(bad), Error) << bad;
}

TEST(Latency, AProfileReadsBackAndRefusesAnotherModel) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("carpool_profile_" + std::to_string(::getpid()))).string();
  const std::string model = source_dir() + "/models/books-qwen3";
  const QualityBudget budget = QualityBudget::parse("kl=0.01");
  ChosenBand band;
  band.from = 4;
  band.to = 7;
  band.policy = "oea:k0=3";
  band.by_layer = LayerTrial{"oea:k0=3/3/2/3/3", "oea:k0=3", {0.99, 0.98, 1.01}, {0.009, 0.008, 0.01}, false};
  const json::value written = profile_json({}, model, "0123456789abcdef", budget, {band});
  EXPECT_EQ(written.at("bands").at(0).at("by_layer").at("policy"), "oea:k0=3/3/2/3/3");
  EXPECT_EQ(written.at("bands").at(0).at("by_layer").at("kept"), false);
  std::ofstream(path) << pretty(written);
  const Profile profile = read_profile(path);
  EXPECT_EQ(profile.spec, "bands:4=oea:k0=3;8=topk");
  try {
    check_profile(profile, model);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kConfig);
    EXPECT_NE(std::string(e.what()).find("was made for"), std::string::npos) << e.what();
  }
  std::ofstream(path) << R"({"carpool_profile":2})";
  EXPECT_THROW(read_profile(path), Error);
  std::ofstream(path) << R"({"carpool_profile":1,"model":"m","model_hash":"0","policy":"nonsense"})";
  EXPECT_THROW(read_profile(path), Error);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace carpool
