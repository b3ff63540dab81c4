// Fronts, equal shares, blocks and the file of cells, on numbers that can be checked by hand.
#include "measure/compare.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "measure/compare_report.h"

namespace carpool {
namespace {

CompareCell cell(const std::string& policy, double distinct, double kl, double time) {
  CompareCell c;
  c.policy = policy;
  c.batch = 4;
  c.distinct = distinct;
  c.distinct_plain = 20;
  c.kl_mean = {kl, kl, kl};
  c.time_ratio = {time, time, time};
  c.step_ms = {time * 2, time * 2, time * 2};
  c.blocks = {{distinct, time * 2, 2}};
  return c;
}

TEST(Compare, AFrontIsWhatNoOtherPointBeatsInBoth) {
  using Points = std::vector<std::pair<double, double>>;
  EXPECT_EQ(pareto_front(Points{{3, 1}, {1, 3}, {2, 2}, {2, 3}, {4, 1}}), (std::vector<size_t>{1, 2, 0}));
  EXPECT_EQ(pareto_front(Points{{1, 1}, {1, 1}}), (std::vector<size_t>{0})) << "of equal points the first";
  EXPECT_TRUE(pareto_front({}).empty());
  const std::vector<CompareCell> cells = {cell("topk", 20, 0, 1), cell("oea:k0=3", 10, 0.01, 0.7),
                                          cell("prune:k0=3", 10, 0.05, 0.6), cell("lynx:drop=50%", 11, 0.06, 0.8)};
  EXPECT_EQ(fronts_of(cells, cells[0]), (std::vector<std::string>{"experts", "time"}));
  EXPECT_EQ(fronts_of(cells, cells[1]), (std::vector<std::string>{"experts", "time"}));
  EXPECT_EQ(fronts_of(cells, cells[2]), (std::vector<std::string>{"time"}));
  EXPECT_TRUE(fronts_of(cells, cells[3]).empty());
}

TEST(Compare, EqualSharesTakeTheNearestCellOfEachMethod) {
  const std::vector<CompareCell> cells = {cell("topk", 20, 0, 1), cell("oea:k0=3", 9, 0.01, 1),
                                          cell("oea:k0=4", 11, 0, 1), cell("oea:k0=5", 10.5, 0, 1),
                                          cell("prune:k0=3", 14, 0, 1)};
  const auto near = cells_near(cells, 4, 0.5, 0.08);
  ASSERT_EQ(near.size(), 1u) << "pruning's cell is 20 points off, topk is no method";
  EXPECT_EQ(near[0]->policy, "oea:k0=5");
  EXPECT_TRUE(cells_near(cells, 8, 0.5, 0.08).empty());
}

TEST(Compare, TheKlAtAShareLiesOnTheLineOfLogarithms) {
  const std::vector<CompareCell> cells = {cell("oea:k0=3", 8, 0.1, 1), cell("oea:k0=2", 4, 0.2, 1),
                                          cell("oea:k0=5", 12, 0.001, 1), cell("topk", 20, 0, 1)};
  EXPECT_NEAR(*kl_at_share(cells, 4, "oea", 0.5), 0.01, 1e-12) << "half way between 0.1 and 0.001";
  EXPECT_NEAR(*kl_at_share(cells, 4, "oea", 0.6), 0.001, 1e-12) << "a cell of its own";
  EXPECT_FALSE(kl_at_share(cells, 4, "oea", 0.7)) << "nothing above";
  EXPECT_FALSE(kl_at_share(cells, 4, "topk", 1)) << "no logarithm of nothing";
  EXPECT_FALSE(kl_at_share(cells, 8, "oea", 0.5));
}

TEST(Compare, BlocksAreMediansOfConsecutiveStepsWithinABatchOfDocuments) {
  LockstepRun run, plain;
  for (int i = 0; i < 40; ++i) {  // two batches of 20 steps
    run.steps.push_back({static_cast<float>(i), static_cast<float>(i < 20 ? 4 : 6)});
    plain.steps.push_back({static_cast<float>(2 * i), 8});
  }
  const std::vector<StepBlock> blocks = step_blocks(run, plain, 20);
  ASSERT_EQ(blocks.size(), 4u) << "16 and 4 steps, twice";
  EXPECT_DOUBLE_EQ(blocks[0].ms, 7.5);
  EXPECT_DOUBLE_EQ(blocks[0].plain_ms, 15);
  EXPECT_DOUBLE_EQ(blocks[1].ms, 17.5);
  EXPECT_NEAR(blocks[2].distinct, 6, 1e-12);
}

TEST(Compare, CellsSurviveTheirFileAndAnotherKeyIsAnotherCell) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("carpool_cells_" + std::to_string(::getpid()))).string();
  const json::object key{{"model", "a"}, {"documents", 4}}, other{{"model", "b"}, {"documents", 4}};
  CompareCell c = cell("oea:k0=3", 1.0 / 3, 0.1, 0.7);
  c.cross_entropy = {3.25, 3, 3.5};
  c.kl_p99 = 0.4;
  c.document_kl = {0.125, 0.25};
  c.document_delta = {-0.5, 0.1};
  std::ofstream(path) << json::serialize(cell_json(c, key)) << "\n"
                      << json::serialize(cell_json(cell("oea:k0=4", 3, 0, 1), other)) << "\n"
                      << json::serialize(cell_json(cell("oea:k0=5", 3, 0, 1), key)) << "\n"  // without documents
                      << json::serialize(cell_json(c, key)).substr(0, 50);
  const std::vector<CompareCell> read = read_cells(path, key);
  std::filesystem::remove(path);
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(json::value(cell_json(read[0], key)), json::value(cell_json(c, key)));
  EXPECT_TRUE(read_cells(path, key).empty()) << "an absent file holds none";
}

TEST(Compare, TheBuiltInGridFitsModelsOfAllSizes) {
  for (const auto& [experts, k] : {std::pair(64, 8), {128, 8}, {256, 8}, {8, 2}, {32, 4}, {512, 22}, {16, 1}}) {
    const std::vector<std::string> grid = default_grid(experts, k, false);
    EXPECT_GE(grid.size(), 15u) << experts << " " << k;
    EXPECT_LE(grid.size(), 45u) << experts << " " << k;
  }
  const std::vector<std::string> sigmoid = default_grid(64, 8, true);
  EXPECT_NE(std::find(sigmoid.begin(), sigmoid.end(), "lynx_bins:m=50%,scores=sigmoid"), sigmoid.end());
}

}  // namespace
}  // namespace carpool
