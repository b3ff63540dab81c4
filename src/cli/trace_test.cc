// carpool trace through the command line, and the published counts of real traces where the data is at hand.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "base/source_dir_test_util.h"
#include "cli/command_test_util.h"

namespace carpool {
namespace {

// Two sequences of two tokens, one layer, four experts, two per token.
std::string small_trace() {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("carpool_trace_cli_" + std::to_string(::getpid()) + ".jsonl"))
          .string();
  std::ofstream(path) << R"({"carpool_trace":1,"model":"tiny","n_experts":4,"top_k":2,"layers":[0],"ranked":true}
{"sequence":"a","position":0,"experts":[[0,1]],"weights":[[0.75,0.25]]}
{"sequence":"a","position":1,"experts":[[0,1]],"weights":[[0.75,0.25]]}
{"sequence":"b","position":0,"experts":[[2,3]],"weights":[[0.75,0.25]]}
{"sequence":"b","position":1,"experts":[[2,3]],"weights":[[0.75,0.25]]}
)";
  return path;
}

TEST(TraceCommand, ReplayPrintsATableAndJsonWithTheSameNumbers) {
  const std::string file = small_trace();
  const Output text =
      run_command({"trace", "replay", file, "--policy", "topk", "--policy", "oea:k0=1,guard=off", "--batch", "2",
                   "--batches", "20", "--ranks", "2", "--placement", "greedy", "--base-us", "5", "--expert-us", "2"});
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("oea:k0=1,guard=off"), std::string::npos) << text.out;
  const Output json =
      run_command({"trace",   "replay",    file,        "--policy",    "topk",    "--policy", "oea:k0=1,guard=off",
                   "--batch", "2",         "--batches", "20",          "--ranks", "2",        "--placement",
                   "greedy",  "--base-us", "5",         "--expert-us", "2",       "--json",   "-"});
  ASSERT_EQ(json.code, 0) << json.err;
  const json::value root = parse_json(json.out, "--json -");
  const json::array& rows = root.at("results").as_array();
  ASSERT_EQ(rows.size(), 4u) << "two policies, each on one rank and on two";
  EXPECT_EQ(rows[0].at("distinct_experts").to_number<double>(), 4);
  EXPECT_EQ(rows[2].at("distinct_experts").to_number<double>(), 2);
  EXPECT_EQ(rows[2].at("kept_mass").to_number<double>(), 0.75);
  // Greedy puts 0 and 2 on one rank, since all four experts are used alike: the two that OEA loads meet there.
  EXPECT_EQ(rows[3].at("busiest_rank").to_number<double>(), 2);
  EXPECT_EQ(rows[3].at("layer_us").to_number<double>(), 9);
  std::filesystem::remove(file);
}

TEST(TraceCommand, OptionsThatContradictEachOtherAreUsageErrors) {
  const std::string file = small_trace();
  EXPECT_EQ(run_command({"trace", "replay", file, "--batch", "2", "--base-us", "5"}).code, 64);
  EXPECT_EQ(run_command({"trace", "replay", file, "--batch", "2", "--placement", "greedy"}).code, 64);
  EXPECT_EQ(run_command({"trace", "replay", file, "--batch", "2", "--sampling", "random"}).code, 64);
  const Output many = run_command({"trace", "replay", file, "--batch", "3"});
  EXPECT_NE(many.err.find("--with-replacement"), std::string::npos) << many.err;
  EXPECT_EQ(run_command({"trace", "replay", file, "--batch", "3", "--with-replacement", "--batches", "9", "--seed", "3",
                         "--experts", "0", "--sampling", "aligned"})
                .code,
            0);
  std::filesystem::remove(file);
}

TEST(TraceCommand, StatsAndConvert) {
  const std::string file = small_trace(), copy = file + ".copy.jsonl";
  const Output stats = run_command({"trace", "stats", file, "--json", "-"});
  ASSERT_EQ(stats.code, 0) << stats.err;
  const json::value root = parse_json(stats.out, "--json -");
  EXPECT_EQ(root.at("reuse").to_number<double>(), 1);
  EXPECT_EQ(root.at("results").as_array().size(), 2u) << "batches of 1 and 2; more sequences there are not";
  ASSERT_EQ(run_command({"trace", "convert", file, "--out", copy}).code, 0);
  std::ifstream a(file), b(copy);
  const std::string left{std::istreambuf_iterator<char>(a), {}}, right{std::istreambuf_iterator<char>(b), {}};
  EXPECT_EQ(left, right);
  std::filesystem::remove(file);
  std::filesystem::remove(copy);
}

// Counts that were computed apart from this project from the same public traces.
TEST(TraceCommand, PublishedTracesGiveTheirPublishedCounts) {
  const std::string traces = source_dir() + "/../shared/data/traces";
  if (!std::filesystem::exists(traces)) GTEST_SKIP() << traces << " is absent";
  const auto counts = [&](const std::string& folder, const char* batch, const char* policy) {
    const Output o = run_command({"trace", "replay", traces + "/" + folder, "--policy", "topk", "--policy", policy,
                                  "--batch", batch, "--json", "-"});
    EXPECT_EQ(o.code, 0) << o.err;
    const json::value root = parse_json(o.out, "--json -");
    const json::array& rows = root.at("results").as_array();
    return std::pair(rows[0].at("distinct_experts").to_number<double>(),
                     rows[1].at("distinct_experts").to_number<double>());
  };
  const auto [gpt, gpt_oea] = counts("gpt-oss-20b", "8", "oea:k0=2");
  EXPECT_NEAR(gpt, 17.9, 0.4);
  EXPECT_NEAR(gpt_oea, 10.9, 0.4);
  const auto [lite, lite_oea] = counts("deepseek-v2-lite", "16", "oea:k0=3");
  EXPECT_NEAR(lite, 43.7, 0.4);
  EXPECT_NEAR(lite_oea, 28.0, 0.4);
  const Output unranked = run_command({"trace", "replay", traces + "/decode-ids/olmoe-1b-7b.jsonl", "--policy",
                                       "oea:k0=3", "--batch", "8", "--with-replacement"});
  EXPECT_NE(unranked.code, 0);
  EXPECT_NE(unranked.err.find("not in the order of their scores"), std::string::npos) << unranked.err;
}

}  // namespace
}  // namespace carpool
