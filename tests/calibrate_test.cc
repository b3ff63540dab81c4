// `carpool calibrate` on the embedded model, and the commands that route by what it makes.
#include <cmath>

#include "end_to_end_util.h"

namespace carpool::end_to_end {
namespace {

const std::string kText = kBooks + "/eval.txt";

double value(const json::object& row, const char* key) { return row.at(key).to_number<double>(); }

// One calibration for all tests of this file, made by the first.
class CalibrateRuns : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder();
    report_ = carpool_json("calibrate " + kBooks + " " + kText + " --out " + table() +
                           " --documents 8 --tokens 32 --batch 4 --probe-documents 4 --k0 1,3,5 --mean-k0 4 "
                           "--resident 12 --quiet --json -");
  }
  static void TearDownTestSuite() { delete folder_; }
  static std::string table() { return *folder_ / "books.tables"; }
  static const json::value& report() { return report_; }

  static json::object perplexity(const std::string& policy) {
    const json::value v = carpool_json("eval " + kBooks + " " + kText +
                                       " --perplexity --context 32 --chunks 8 --batch 8 "
                                       "--quiet --json - --policy " +
                                       policy);
    return v.at("results").at(0).as_object();
  }

 private:
  static inline TemporaryFolder* folder_ = nullptr;
  static inline json::value report_;
};

TEST_F(CalibrateRuns, ReportsEveryLayerAndLeavesNoProgressBehind) {
  ASSERT_TRUE(fs::exists(table()));
  EXPECT_FALSE(fs::exists(table() + ".part"));
  EXPECT_EQ(report().at("tokens").to_number<int>(), 256);
  EXPECT_EQ(report().at("model_hash").as_string().size(), 16u);
  const json::array& layers = report().at("results").as_array();
  ASSERT_EQ(layers.size(), 5u);
  double k0 = 0;
  for (const json::value& v : layers) {
    const json::object& layer = v.as_object();
    EXPECT_GT(value(layer, "mean_best_similarity"), value(layer, "mean_similarity"));
    EXPECT_GT(value(layer, "mean_best_fold_loss"), 0);
    EXPECT_LE(value(layer, "mean_best_fold_loss"), 1);
    const json::array& probes = layer.at("sensitivity").as_array();
    ASSERT_EQ(probes.size(), 3u);
    EXPECT_GT(value(probes[0].as_object(), "kl_mean"), value(probes[2].as_object(), "kl_mean")) << "k0 1 against 5";
    k0 += value(layer, "k0") / 5;
  }
  EXPECT_LE(k0, 4);
  EXPECT_GE(k0, 3);
}

TEST_F(CalibrateRuns, EveryPolicyWithTablesRoutesByThem) {
  const json::object plain = perplexity("topk");
  const auto t = [&](const std::string& spec) { return perplexity(spec + table() + "\""); };
  const json::object sere = t("\"sere:k0=4,rho=0,table="), critical = t("\"sere:k0=4,rho=1,table=");
  EXPECT_LT(value(sere, "distinct_experts"), value(plain, "distinct_experts"));
  EXPECT_NE(value(sere, "perplexity"), value(plain, "perplexity"));
  EXPECT_EQ(value(critical, "perplexity"), value(plain, "perplexity")) << "nothing is so similar: the same bits";
  const json::object exfold = t("\"exfold:m=50%,table=");
  EXPECT_LT(value(exfold, "distinct_experts"), 0.6 * value(plain, "distinct_experts"));
  const json::object fixed = t("\"exfold:m=16,pool=static,table=");
  EXPECT_LE(value(fixed, "distinct_experts"), 16);
  const json::object oea = t("\"oea:k0=table,table=");
  EXPECT_LT(value(oea, "distinct_experts"), value(plain, "distinct_experts"));
  EXPECT_GT(value(oea, "distinct_experts"), value(perplexity("oea:k0=1,guard=off"), "distinct_experts"));
  const json::object cached = t("\"cache_prior:lambda=0.5,table=");
  EXPECT_GT(value(cached, "rerouted_tokens"), 0);
}

TEST_F(CalibrateRuns, AbAndRunTakeThemToo) {
  const std::string spec = "sere:table=" + table() + ",k0=3,rho=0";
  const json::value ab = carpool_json("ab " + kBooks +
                                      " --quiet --json - --repeats 2 --new-tokens 8 --documents 8 "
                                      "--document-tokens 24 --cold-copies 0 --concurrency 8 --b " +
                                      spec);
  bool found = false;
  for (const json::value& r : ab.at("results").as_array()) {
    if (r.at("policy").as_string() != spec || r.at("steps") != "decode") continue;
    found = true;
    EXPECT_LT(value(r.as_object(), "distinct_experts"), value(r.as_object(), "distinct_experts_plain"));
    EXPECT_GT(value(r.as_object(), "kl_mean"), 0);
  }
  EXPECT_TRUE(found);
  const std::string run = "run " + kBooks +
                          " \"The old lighthouse keeper\" \"It was a dark night\" \"She said\" "
                          "--max-tokens 12 --temperature 0 --quiet --policy ";
  const Outcome plain = carpool(run + "topk"), routed = carpool(run + spec);
  EXPECT_EQ(routed.code, 0) << routed.err;
  EXPECT_NE(routed.out, plain.out);
}

TEST_F(CalibrateRuns, TablesOfAnotherModelAndDamagedOnesAreRefused) {
  const std::string glm = kSource + "/models/books-glm";
  expect_refused("eval " + glm + " " + kText + " --perplexity --chunks 16 --quiet --policy sere:k0=2,table=" + table(),
                 78, "tables of another model");
  const TemporaryFolder folder;
  std::string bytes = slurp(table());
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  std::ofstream(folder / "bad", std::ios::binary) << bytes;
  expect_refused("run " + kBooks + " x --quiet --policy sere:k0=2,table=" + (folder / "bad"), 65, "damaged");
  expect_refused("run " + kBooks + " x --quiet --policy sere:k0=2,table=" + (folder / "absent"), 66, "absent");
  expect_refused("calibrate " + kBooks + " " + kText + " --quiet --out " + kBooks + "/config.json", 73,
                 "no file of routing tables");
}

TEST_F(CalibrateRuns, AnotherCalibrationsProgressNeedsARestart) {
  const TemporaryFolder folder;
  const std::string out = folder / "t", run = "calibrate " + kBooks + " " + kText +
                                              " --quiet --documents 2 --tokens 8 "
                                              "--no-sensitivity --out " +
                                              out;
  std::ofstream(out + ".part") << "something else";
  EXPECT_NE(carpool(run).code, 0);
  EXPECT_EQ(carpool(run + " --restart").code, 0);
  expect_refused(run + " --mean-k0 2", 64, "no effect");
  const Outcome text = carpool(run);
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("lost by folding"), std::string::npos) << text.out;
  expect_refused(
      "eval " + kBooks + " " + kText + " --perplexity --chunks 16 --quiet --policy oea:k0=table,table=" + out, 78,
      "has no table \"k0\"");
}

}  // namespace
}  // namespace carpool::end_to_end
