// Recording through run_cli, and problem M16: what ran among others, run again alone from its trace, has the same bits.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/json.h"
#include "base/source_dir_test_util.h"
#include "cli/command_test_util.h"

namespace carpool {
namespace {

namespace fs = std::filesystem;

const std::string kModels = source_dir() + "/models/";
const std::string kBooks = kModels + "books-qwen3";

std::string slurp(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The result of `trace force`: logits compared, and those with the recorded bits.
std::pair<int64_t, int64_t> forced(const std::string& model, const std::string& file, const std::string& chunk = "64") {
  const Output o = run_command({"trace", "force", model, file, "--quiet", "--chunk", chunk, "--json", "-"});
  const json::value v = parse_json(o.out, "--json -");
  const json::value& row = v.at("results").at(0);
  EXPECT_EQ(o.code == 0, row.at("compared") == row.at("equal")) << o.err;
  return {row.at("compared").to_number<int64_t>(), row.at("equal").to_number<int64_t>()};
}

TEST(TraceRecord, M16WhatRanAmongOthersHasTheSameBitsAloneWithItsTrace) {
  const Folder folder;
  for (const char* model : {"books-qwen3", "books-glm"}) {
    const std::string trace = folder / (std::string(model) + ".jsonl");
    const Output o = run_command({"trace", "record", kModels + model, "--quiet", "--policy", "oea:k0=2", "--batch", "8",
                                  "--documents", "8", "--document-tokens", "20", "--out", trace});
    ASSERT_EQ(o.code, 0) << o.err;
    for (const char* chunk : {"1", "64"}) {
      const auto [compared, equal] = forced(kModels + model, trace, chunk);
      EXPECT_EQ(compared, 8 * 19) << model;
      EXPECT_EQ(equal, compared) << model << ": alone, with the recorded experts and weights";
    }
  }
}

TEST(TraceRecord, M16HasPowerAnotherWeightOrExpertIsSeen) {
  const Folder folder;
  const std::string trace = folder / "t.jsonl", other = folder / "other.jsonl";
  ASSERT_EQ(run_command({"trace", "record", kBooks, "--quiet", "--policy", "oea:k0=2", "--batch", "4", "--documents",
                         "4", "--document-tokens", "12", "--out", trace})
                .code,
            0);
  const std::string text = slurp(trace);
  // The same text under plain routing: other experts, so other logits than those that were recorded.
  ASSERT_EQ(run_command({"trace", "record", kBooks, "--quiet", "--batch", "4", "--documents", "4", "--document-tokens",
                         "12", "--out", other})
                .code,
            0);
  const std::string plain = slurp(other);
  std::map<std::string, std::string> checksums;  // of the policy's logits, by sequence and position
  const auto lines = [](const std::string& all) {
    std::vector<json::object> out;
    for (size_t at = all.find('\n') + 1; at < all.size(); at = all.find('\n', at) + 1)
      out.push_back(parse_json(all.substr(at, all.find('\n', at) - at), "trace").as_object());
    return out;
  };
  const auto name = [](const json::object& line) {
    return json::serialize(line.at("sequence")) + json::serialize(line.at("position"));
  };
  for (const json::object& line : lines(text)) checksums[name(line)] = line.at("logits").as_string();
  std::string mixed = plain.substr(0, plain.find('\n') + 1);
  for (json::object line : lines(plain)) {
    line["logits"] = checksums.at(name(line));
    mixed += json::serialize(line) + "\n";
  }
  std::ofstream(other) << mixed;
  const auto [compared, equal] = forced(kBooks, other);
  EXPECT_EQ(compared, 4 * 11);
  EXPECT_LT(equal, compared / 4) << "plain experts do not give the policy's logits";
}

TEST(TraceRecord, RunRecordsPromptsAndGeneratedTokensInTurn) {
  const Folder folder;
  const std::string trace = folder / "run.jsonl";
  const Output o = run_command({"run", kBooks, "The sea", "An old man", "--quiet", "--max-tokens", "6", "--ignore-eos",
                                "--policy", "oea:k0=2", "--trace", trace, "--json", "-"});
  ASSERT_EQ(o.code, 0) << o.err;
  const json::value result = parse_json(o.out, "--json -");
  int64_t rows = 0;
  for (const json::value& r : result.at("results").as_array())
    rows += r.at("prompt_tokens").to_number<int64_t>() + r.at("tokens").as_array().size() - 1;
  const std::string text = slurp(trace);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), rows + 1) << "the last token is not fed back; one header";
  const auto [compared, equal] = forced(kBooks, trace);
  EXPECT_EQ(compared, 12) << "six tokens of two requests";
  EXPECT_EQ(equal, compared);
  const Output stats = run_command({"trace", "stats", trace, "--json", "-", "--batches", "20"});
  ASSERT_EQ(stats.code, 0) << stats.err;
  EXPECT_NE(stats.out.find("recorded under oea:k0=2"), std::string::npos) << "it is not the model's own choice";
}

TEST(TraceRecord, EvalRecordsWithAllScoresAndAnyPolicyReplaysOnThem) {
  const Folder folder;
  const std::string trace = folder / "eval.jsonl", copy = folder / "copy.jsonl";
  const std::vector<std::string> words = {"eval", kBooks,    "--quiet", "--documents", "4",   "--document-tokens",
                                          "8",    "--batch", "4",       "--trace",     trace, "--trace-scores"};
  std::vector<std::string> with = words;
  with.insert(with.end(), {"--policy", "oea:k0=3", "--json", "-"});
  const Output o = run_command(with);
  ASSERT_EQ(o.code, 0) << o.err;
  const double experts = parse_json(o.out, "").at("results").at(1).at("distinct_experts").to_number<double>();
  const Output replay = run_command({"trace", "replay", trace, "--policy", "topk", "--policy", "oea:k0=3", "--batch",
                                     "4", "--sampling", "aligned", "--batches", "400", "--json", "-"});
  ASSERT_EQ(replay.code, 0) << replay.err;
  const json::value rows = parse_json(replay.out, "").at("results");
  // The scores of later layers follow what earlier ones ran, so the replay is of this run, and its count that of this
  // run.
  EXPECT_NEAR(rows.at(1).at("distinct_experts").to_number<double>(), experts, 0.35);
  EXPECT_GT(rows.at(0).at("distinct_experts").to_number<double>(), experts);
  ASSERT_EQ(run_command({"trace", "convert", trace, "--out", copy}).code, 0);
  const auto [compared, equal] = forced(kBooks, copy);
  EXPECT_EQ(compared, 4 * 7);
  EXPECT_EQ(equal, compared) << "a converted trace keeps tokens, weights and checksums";
}

TEST(TraceRecord, TablesOfTheSameModelAreReplayedAndNoOthers) {
  const Folder folder;
  const std::string trace = folder / "books.jsonl", tables = folder / "books.tables", glm = folder / "glm.tables";
  ASSERT_EQ(run_command({"trace", "record", kBooks, "--quiet", "--documents", "4", "--document-tokens", "8", "--batch",
                         "4", "--scores", "--out", trace})
                .code,
            0);
  for (const auto& [model, out] : {std::pair(kBooks, tables), {kModels + "books-glm", glm}}) {
    const Output o = run_command({"calibrate", model, kBooks + "/eval.txt", "--quiet", "--documents", "8", "--tokens",
                                  "8", "--k0", "2,4", "--mean-k0", "3", "--out", out});
    ASSERT_EQ(o.code, 0) << o.err;
  }
  const auto replay = [&](const std::string& file, const std::string& policy) {
    return run_command({"trace", "replay", file, "--policy", "topk", "--policy", policy, "--batch", "4", "--batches",
                        "50", "--json", "-"});
  };
  for (const std::string& policy :
       std::vector<std::string>{"sere:table=" + tables + ",k0=2", "exfold:table=" + tables + ",m=50%",
                                "oea:k0=table,table=" + tables, "bands:4=sere:table=" + tables + ",k0=2"}) {
    const Output o = replay(trace, policy);
    ASSERT_EQ(o.code, 0) << o.err;
    const json::value rows = parse_json(o.out, "").at("results");
    EXPECT_EQ(rows.at(1).at("policy").as_string(), policy);
    EXPECT_LT(rows.at(1).at("ratio").to_number<double>(), 1) << policy;
  }
  const Output other = replay(trace, "sere:table=" + glm + ",k0=2");
  EXPECT_EQ(other.code, 78) << other.err;
  EXPECT_NE(other.err.find("tables of another model"), std::string::npos) << other.err;
  std::string text = slurp(trace);
  const size_t at = text.find("\"routers\""), end = text.find(',', at);
  ASSERT_NE(at, std::string::npos);
  std::ofstream(folder / "anonymous.jsonl") << text.substr(0, at) + text.substr(end + 1);
  const Output anonymous = replay(folder / "anonymous.jsonl", "sere:table=" + tables + ",k0=2");
  EXPECT_EQ(anonymous.code, 78) << anonymous.err;
  EXPECT_NE(anonymous.err.find("does not say of which model"), std::string::npos) << anonymous.err;
}

TEST(TraceRecord, ATornTailAndSequencesComputedAnewAreRead) {
  const Folder folder;
  const std::string trace = folder / "t.jsonl";
  ASSERT_EQ(run_command({"trace", "record", kBooks, "--quiet", "--policy", "oea:k0=2", "--batch", "2", "--documents",
                         "2", "--document-tokens", "10", "--out", trace})
                .code,
            0);
  const std::string text = slurp(trace);
  std::ofstream(trace) << text.substr(0, text.size() - 30);
  const auto [torn, same] = forced(kBooks, trace);
  EXPECT_EQ(torn, 2 * 9 - 1) << "the last line is left out";
  EXPECT_EQ(same, torn);
  // The first sequence again from its start, as after a preemption.
  std::string again = text;
  for (size_t at = text.find('\n') + 1; at < text.size(); at = text.find('\n', at) + 1) {
    const std::string line = text.substr(at, text.find('\n', at) - at + 1);
    if (line.starts_with("{\"sequence\":\"1\"")) again += line;
  }
  std::ofstream(trace) << again;
  const auto [all, equal] = forced(kBooks, trace);
  EXPECT_EQ(all, 2 * 9);
  EXPECT_EQ(equal, all);
}

TEST(TraceRecord, WhatDoesNotFitIsOneSentence) {
  const Folder folder;
  const auto refused = [](const Output& o, int code, const std::string& part) {
    EXPECT_EQ(o.code, code) << o.err;
    EXPECT_NE(o.err.find(part), std::string::npos) << o.err;
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  };
  const std::string trace = folder / "t.jsonl";
  const std::vector<std::string> record = {"trace", "record",      kBooks, "--quiet",           "--batch",
                                           "2",     "--documents", "2",    "--document-tokens", "4",
                                           "--out", trace};
  std::vector<std::string> scores = record;
  scores.insert(scores.end(), {"--scores", "--seed", "4", "--text", kBooks + "/eval.txt"});
  ASSERT_EQ(run_command(scores).code, 0);
  EXPECT_NE(slurp(trace).find("\"mix\""), std::string::npos);
  ASSERT_EQ(run_command(record).code, 0);
  EXPECT_EQ(slurp(trace).find("\"mix\""), std::string::npos);
  refused(run_command({"trace", "force", kModels + "books-glm", trace, "--quiet"}), 78, "was recorded from");
  refused(run_command({"run", kBooks, "x", "--quiet", "--trace-scores"}), 64, "without --trace");
  refused(run_command({"eval", kBooks, "--quiet", "--policy", "oea:k0=2", "--policy", "oea:k0=3", "--trace", trace}),
          64, "one --policy");
  refused(run_command({"serve", kBooks, "--trace", folder / "s.jsonl"}), 78, "--disable-radix-cache");
  std::ofstream(trace) << R"({"carpool_trace":1,"model":"m","n_experts":64,"top_k":8,"layers":[0],"ranked":true})"
                       << "\n"
                       << R"({"sequence":"a","position":0,"experts":[[1]],"token":1,"logits":"12"})" << "\n";
  refused(run_command({"trace", "force", kBooks, trace, "--quiet"}), 65, "sixteen hexadecimal digits");
}

}  // namespace
}  // namespace carpool
