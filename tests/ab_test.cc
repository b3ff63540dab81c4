// `carpool ab` and the embedded model: the numbers that promises rest on, small enough to run in a test.
#include <cmath>

#include "end_to_end_util.h"

namespace carpool::end_to_end {
namespace {

const std::string kSmall =
    "ab " + kBooks +
    " --quiet --json - --repeats 2 --new-tokens 12 --documents 32 --document-tokens 48 --cold-copies 2 ";

const json::object& row(const json::value& v, const std::string& policy, const std::string& steps = "decode") {
  for (const json::value& r : v.at("results").as_array()) {
    if (r.at("policy").as_string() == policy && r.at("steps").as_string() == steps) return r.as_object();
  }
  throw std::runtime_error("no row for " + policy);
}

double number(const json::object& r, const char* key) { return r.at(key).to_number<double>(); }

TEST(Ab, OeaLoadsWhatPhaseOnePredictsAndCostsLessQualityThanPruning) {
  const json::value v =
      carpool_json(kSmall + "--concurrency 16 --a topk --b oea:k0=5 --b oea:k0=3 --b prune:k0=3 --b prune:k0=5");
  const auto& topk = row(v, "topk");
  EXPECT_EQ(number(topk, "distinct_experts"), number(topk, "distinct_experts_plain"));
  EXPECT_EQ(number(topk, "kl_mean"), 0);
  EXPECT_EQ(number(topk, "top1_agreement"), 1);
  double before = number(topk, "distinct_experts");
  for (const char* k0 : {"5", "3"}) {
    const auto& oea = row(v, std::string("oea:k0=") + k0);
    const auto& prune = row(v, std::string("prune:k0=") + k0);
    EXPECT_LT(number(oea, "distinct_experts"), before) << "fewer experts with a smaller k0";
    before = number(oea, "distinct_experts");
    EXPECT_LT(number(oea, "distinct_experts"), number(oea, "distinct_experts_plain"));
    EXPECT_GT(number(oea, "rerouted_tokens"), 0);
    EXPECT_GT(number(oea, "kl_mean"), 0);
    EXPECT_LT(number(oea, "kl_mean"), number(prune, "kl_mean")) << "pruning costs more at equal experts";
    EXPECT_LT(number(oea, "cross_entropy_delta"), number(prune, "cross_entropy_delta"));
    EXPECT_LT(number(oea, "bytes_per_step"), number(topk, "bytes_per_step"));
  }
}

TEST(Ab, RowsHaveEveryKeyOfTheContract) {
  const json::value v = carpool_json(kSmall + "--concurrency 4,8 --documents 8 --b oea:k0=4");
  for (const char* key : {"command", "commit", "machine", "results"}) EXPECT_TRUE(v.as_object().contains(key)) << key;
  int decode = 0, mixed = 0;
  for (const json::value& r : v.at("results").as_array()) {
    (r.at("steps") == "decode" ? decode : mixed) += 1;
    for (const char* key : {"policy", "batch", "steps", "steps_measured", "repeats", "step_ms", "step_ms_lo",
                            "step_ms_hi", "distinct_experts", "distinct_experts_plain", "read_gbps", "rerouted_tokens",
                            "underfilled_tokens", "plain_steps"}) {
      EXPECT_TRUE(r.as_object().contains(key)) << key;
    }
    for (const char* key : {"tokens_per_second", "speedup", "bytes_per_step", "floor_share", "cross_entropy",
                            "cross_entropy_delta", "kl_mean", "top1_agreement"}) {
      EXPECT_EQ(r.as_object().contains(key), r.at("steps") == "decode") << key << ": mixed steps claim no speed";
    }
    if (r.at("steps") != "decode") continue;
    EXPECT_GT(number(r.as_object(), "step_ms"), 0);
    EXPECT_LE(number(r.as_object(), "step_ms_lo"), number(r.as_object(), "step_ms"));
    EXPECT_TRUE(std::isfinite(number(r.as_object(), "cross_entropy")));
  }
  EXPECT_EQ(decode, 4);
  EXPECT_EQ(mixed, 4);
}

TEST(Ab, K0EqualToKAndABatchOfOneAreBitIdenticalToTopk) {
  const json::value v = carpool_json(kSmall + "--concurrency 1,8 --documents 8 --b oea:k0=8 --b oea:k0=3");
  for (const json::value& r : v.at("results").as_array()) {
    const bool plain = r.at("policy") == "oea:k0=8" || r.at("batch") == 1;
    if (!plain || r.at("steps") != "decode") continue;
    EXPECT_EQ(number(r.as_object(), "kl_mean"), 0) << r;
    EXPECT_EQ(number(r.as_object(), "cross_entropy_delta"), 0) << r;
    EXPECT_EQ(number(r.as_object(), "rerouted_tokens"), 0) << r;
  }
}

TEST(Ab, OptionsChangeWhatTheySay) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 12; ++i)
    text += "The boat came in at " + std::to_string(i) +
            " and the men sang. They had been away for a long, long time.\n---\n";
  std::ofstream(folder / "text.txt") << text;
  std::ofstream(folder / "prompts.txt") << "A short prompt\nAnother one\n";
  const std::string base = "ab " + kBooks + " --quiet --repeats 1 --concurrency 4 --document-tokens 20 --b oea:k0=3 ";
  const json::value v =
      carpool_json(base + "--documents 8 --new-tokens 24 --chunk 3 --cold-copies 0 --a prune:k0=2 --text " +
                   (folder / "text.txt") + " --prompts " + (folder / "prompts.txt") + " --json -");
  EXPECT_EQ(v.at("results").at(0).at("policy"), "prune:k0=2");
  EXPECT_EQ(v.at("results").at(0).at("quality_documents"), 8);
  EXPECT_EQ(v.at("results").at(0).at("repeats"), 1);
  EXPECT_EQ(v.at("settings").at("cold_copies"), "0");
  EXPECT_EQ(v.at("settings").at("distinct_prompts"), "4") << "two lines, and two starts of documents";
  EXPECT_GT(row(v, "oea:k0=3", "mixed").at("steps_measured").as_int64(), 3)
      << "a chunk of 3 needs several steps for the prompts";
  const Outcome o = carpool(base + "--documents 4 --new-tokens 8 --html " + (folder / "report.html") + " --json " +
                            (folder / "report.json"));
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("oea:k0=3"), std::string::npos);
  EXPECT_NE(slurp(folder / "report.html").find("<svg"), std::string::npos);
  EXPECT_EQ(parse_json(slurp(folder / "report.json"), "report").at("results").at(0).at("quality_documents"), 4);
}

TEST(Ab, RepeatIsTheSameOptionAsRepeats) {
  const std::string base = "ab " + kBooks +
                           " --quiet --concurrency 2 --documents 2 --document-tokens 16 --new-tokens 8 --cold-copies 0 "
                           "--b oea:k0=3 --json - ";
  for (const char* spelling : {"--repeat 3", "--repeats 3"}) {
    const json::value v = carpool_json(base + spelling);
    EXPECT_EQ(v.at("results").at(0).at("repeats"), 3) << spelling;
    EXPECT_EQ(v.at("settings").at("repeats"), "3") << spelling;
  }
}

TEST(Ab, ManyRequestsNeedAsManyDifferentPrompts) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 4; ++i)
    text +=
        "---\r\nNumber " + std::to_string(i) + " of the stories that the old man told us by the fire that night.\r\n";
  std::ofstream(folder / "text.txt") << text;
  std::ofstream(folder / "prompts.txt") << "The same\nThe same\n\nAnother\n";
  const std::string base = "ab " + kBooks + " --quiet --b oea:k0=3 --document-tokens 8 --new-tokens 8 --repeat 1 " +
                           "--cold-copies 0 --json - --text " + (folder / "text.txt") + " --prompts " +
                           (folder / "prompts.txt");
  EXPECT_EQ(carpool_json(base + " --documents 4 --concurrency 4").at("settings").at("distinct_prompts"), "4");
  const std::string twice = " --text " + (folder / "text.txt");  // the same documents again are not different prompts
  expect_refused(base + twice + " --documents 8 --concurrency 8", 64,
                 "concurrency 8 needs as many different prompts, there are 6");
}

TEST(Ab, OutputsThatCannotBeWrittenAreRefusedBeforeAnythingRuns) {
  const TemporaryFolder folder;
  const std::string base = "ab " + kBooks + " --quiet --b oea:k0=3 ";
  expect_refused(base + "--json " + (folder / "absent/x.json"), 73, "absent/x.json: cannot be written");
  expect_refused(base + "--html " + folder.path(), 73, "cannot be written");
  expect_refused(base + "--json " + (folder / "x") + " --html " + folder.path() + "/./x", 64, "name the same file");
  expect_refused(base + "--json - --html -", 64, "name the same file");
  std::ofstream(folder / "kept.json") << "kept";
  expect_refused(base + "--concurrency 0 --json " + (folder / "kept.json") + " --html " + (folder / "new.html"), 64,
                 "concurrency");
  EXPECT_EQ(slurp(folder / "kept.json"), "kept") << "looking whether a file can be written does not empty it";
  EXPECT_FALSE(fs::exists(folder / "new.html")) << "nor leave an empty one";
}

TEST(Ab, WhatDoesNotFitTheModelIsRefused) {
  const TemporaryFolder folder;
  expect_refused("ab " + kBooks + " --quiet --b oea:k0=3 --document-tokens 100000", 64,
                 "documents of 100000 tokens do not fit the model's context of");
  std::ofstream(folder / "prompts.txt") << "Short\n\n" << std::string(40000, '!') + " a b c" << "\n";
  expect_refused("ab " + kBooks + " --quiet --b oea:k0=3 --concurrency 2 --prompts " + (folder / "prompts.txt"), 64,
                 "prompts.txt line 3: the prompt's");
  fs::create_directory(folder / "dense");
  std::string config = slurp(kSource + "/tests/golden/qwen3_moe/dense_layers/config.json");
  json::object dense = parse_json(config, "config").as_object();
  dense["mlp_only_layers"] = json::array{0, 1, 2, 3, 4, 5};
  std::ofstream(folder / "dense/config.json") << json::serialize(dense);
  expect_refused("ab " + (folder / "dense") + " --quiet --b oea:k0=3", 78, "the model has no routed experts");
}

TEST(Ab, WhatCannotBeMeasuredIsRefused) {
  expect_refused("ab " + kBooks, 64, "--b is required");
  expect_refused("ab " + kBooks + " --quiet --b oea:k0=99", 78, "k0");
  expect_refused("ab " + kBooks + " --quiet --b oea:k0=3 --concurrency 0", 64, "concurrency must be 1 to 1024");
  expect_refused("ab " + kBooks + " --quiet --b oea:k0=3 --repeats 0", 64, "repeats");
  expect_refused("ab " + kBooks + " --quiet --b oea:k0=3 --documents 4800", 64, "4800 are needed");
  expect_refused("ab " + kBooks + " --quiet --b oea:k0=3 --cold-copies -1", 64, "--cold-copies");
  expect_refused("ab " + kBooks + " --quiet --b oea:k0=3 --chunk 0", 64, "chunk must be 1 to 65536");
  expect_refused("ab " + kBooks + " --quiet --b oea:k0=3 --documents 64 --concurrency 16,24", 64,
                 "64 documents do not fill batches of 24: the next number that does is 96");
  expect_refused("ab " + kBooks + " --quiet --b oea:k0=3 --concurrency 16,24", 64,
                 "76 documents of 256 tokens, 96 are needed");
  expect_refused("ab " + kBooks + " --quiet --b oea:k0=3 --documents 8 --concurrency 16 --repeats 1", 64,
                 "do not fill batches of 16: the next number that does is 16");
  expect_refused("ab " + kBooks + " --quiet --b oea:k0=3 --text /nowhere.txt", 66, "/nowhere.txt");
  expect_refused("ab " + kBooks + " --quiet --b oea:k0=3 --chunk 1 --new-tokens 8 --repeats 1", 64,
                 "no step decoded all 16 requests together");
}

}  // namespace
}  // namespace carpool::end_to_end
