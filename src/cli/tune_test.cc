// carpool tune and --policy auto through run_cli: what was chosen is written, read and run, for this model alone.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "base/json.h"
#include "base/source_dir_test_util.h"
#include "cli/command_test_util.h"

namespace carpool {
namespace {

namespace fs = std::filesystem;

const std::string kModels = source_dir() + "/models/";
const std::string kBooks = kModels + "books-qwen3";

void refused(const Output& o, int code, const std::string& part) {
  EXPECT_EQ(o.code, code) << o.err;
  EXPECT_NE(o.err.find(part), std::string::npos) << o.err;
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
}

std::string slurp(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A profile for books-qwen3 as tune would write it, with a policy of the test's choice.
std::string profile_for_books(const Folder& folder, const std::string& policy) {
  // compare names the model's hash beside its family.
  const Output o = run_command({"compare", kBooks, "--quiet", "--documents", "2", "--document-tokens", "3", "--batch",
                                "2", "--policy", "prune:k0=1", "--cold-copies", "0", "--json", "-"});
  EXPECT_EQ(o.code, 0) << o.err;
  const std::string model(parse_json(o.out, "--json -").at("model").as_string());
  const std::string hash = model.substr(model.size() - 17, 16);
  const std::string path = folder / "books.profile.json";
  std::ofstream(path) << pretty(
      json::object{{"carpool_profile", 1}, {"model", "books-qwen3"}, {"model_hash", hash}, {"policy", policy}});
  return path;
}

TEST(TuneCommand, WritesTheProfileOrRefusesToRecommend) {
  const Folder folder;
  const std::string out = folder / "profile.json";
  // Documents of 40 tokens: three blocks a batch. Whether time follows experts is up to the machine, so both ends are
  // right; what each must say is not.
  std::vector<std::string> words = {"tune", kBooks,        "--quiet", "--budget",          "kl=5", "--out",
                                    out,    "--documents", "8",       "--document-tokens", "40",   "--batch",
                                    "8",    "--json",      "-",       "--together",        "8"};
  for (const char* spec : {"oea:k0=1", "oea:k0=3", "oea:k0=5", "des_vote:m=50%"})
    words.insert(words.end(), {"--policy", spec});
  const Output o = run_command(words);
  const json::value report = parse_json(o.out, "--json -");
  const json::array& bands = report.at("results").as_array();
  ASSERT_EQ(bands.size(), 1u);
  EXPECT_EQ(bands[0].at("from"), 8);
  // Times decide which of the four it is. What DES costs with more rows nobody has measured here.
  const std::string policy(bands[0].at("policy").as_string());
  EXPECT_EQ(bands[0].at("to"), policy.starts_with("des_vote") ? 8 : 15) << policy;
  EXPECT_EQ(report.at("settings").at("budget"), "kl=5");
  EXPECT_EQ(report.at("settings").at("screened"), "no: all 4 candidates in full");
  const bool usable = bands[0].at("slope_ms_lo").to_number<double>() > 0;
  if (usable) {
    EXPECT_EQ(o.code, 0) << o.err;
    const std::string text = slurp(out);
    EXPECT_EQ(parse_json(text, out).at("policy"), report.at("policy"));
    const Output used =
        run_command({"run", kBooks, "The sea", "--quiet", "--max-tokens", "2", "--policy", "auto:" + out});
    EXPECT_EQ(used.code, 0) << used.err;
  } else {
    refused({o.code, "", o.err}, 69, "nothing to recommend");
    EXPECT_FALSE(fs::exists(out));
  }
}

// The settings that tune measures, as its file of cells has them, by the tokens of each document.
std::map<int, std::set<std::string>> measured(const std::string& cells) {
  std::map<int, std::set<std::string>> out;
  std::ifstream in(cells);
  for (std::string line; std::getline(in, line);) {
    const json::value cell = parse_json(line, cells);
    out[cell.at("key").at("document_tokens").to_number<int>()].insert(std::string(cell.at("policy").as_string()));
  }
  return out;
}

TEST(TuneCommand, ScreensTheGridAndTriesAK0ForEachLayerUnlessToldNotTo) {
  // Whether time follows experts is up to the machine: where it does not, not even in full, nothing but the screening
  // can be asked for. What is left out of the full measurement is asked of made-up models, in measure/tune_test.cc.
  for (const char* by_layer : {"on", "off"}) {
    const Folder folder;
    const std::string cells = folder / "cells.jsonl";
    // One thread: with as many as CPUs, each operation would wait for neighbours of this test.
    std::vector<std::string> words = {"tune",       kBooks,
                                      "--quiet",    "--budget",
                                      "kl=0.05",    "--out",
                                      folder / "p", "--documents",
                                      "8",          "--document-tokens",
                                      "256",        "--batch",
                                      "8",          "--cells",
                                      cells,        "--together",
                                      "12",         "--by-layer",
                                      by_layer,     "--threads",
                                      "1",          "--json",
                                      "-"};
    const std::vector<std::string> specs = {"oea:k0=1", "oea:k0=2", "oea:k0=3",       "oea:k0=4",        "oea:k0=5",
                                            "oea:k0=6", "oea:k0=7", "des_vote:m=75%", "lynx_bins:m=25%", "prune:k0=4"};
    for (const std::string& spec : specs) words.insert(words.end(), {"--policy", spec});
    const Output o = run_command(words);
    const json::value report = parse_json(o.out, "--json -");
    EXPECT_EQ(report.at("settings").at("by_layer"), by_layer);
    EXPECT_EQ(report.at("settings").at("screened"), "10 candidates on 64 tokens of each document");
    const std::map<int, std::set<std::string>> seen = measured(cells);
    for (const std::string& spec : specs) EXPECT_TRUE(seen.at(64).contains(spec)) << spec;
    const auto lists = [&](int tokens) {
      const auto at = seen.find(tokens);
      if (at == seen.end()) return std::ptrdiff_t{0};
      return std::count_if(at->second.begin(), at->second.end(), [](auto& s) { return s.find('/') != s.npos; });
    };
    const bool usable = report.at("results").at(0).at("slope_ms_lo").to_number<double>() > 0;
    if (std::string(by_layer) == "off") {
      EXPECT_EQ(lists(64) + lists(256), 0);
    } else if (usable) {
      EXPECT_EQ(lists(64), 10) << "two probes of each of five layers";
      EXPECT_LE(lists(256), 3);
    }
  }
}

TEST(TuneCommand, AProfileMayHoldAK0ForEachLayer) {
  const Folder folder;
  const std::string profile = profile_for_books(folder, "bands:2=oea:k0=2/1/8/0/3");
  const auto experts = [&](const std::string& policy) {
    const Output o = run_command({"eval", kBooks, "--quiet", "--documents", "4", "--document-tokens", "6", "--batch",
                                  "4", "--policy", policy, "--json", "-"});
    EXPECT_EQ(o.code, 0) << o.err;
    return parse_json(o.out, "").at("results").at(1).at("distinct_experts").to_number<double>();
  };
  EXPECT_EQ(experts("auto:" + profile), experts("oea:k0=2/1/8/0/3"));
  EXPECT_LT(experts("oea:k0=2/1/8/0/3"), experts("oea:k0=8/8/8/0/3"));
  refused(run_command({"tune", kBooks, "--quiet", "--budget", "kl=1", "--documents", "2", "--out", folder / "x"}), 64,
          "at least 4 documents");
}

TEST(TuneCommand, AutoRunsWhatTheProfileSaysByTheNumberOfRows) {
  const Folder folder;
  const std::string profile = profile_for_books(folder, "bands:3=prune:k0=1");
  const auto rerouted = [&](std::vector<std::string> prompts, std::vector<std::string> more) {
    std::vector<std::string> words = {"run", kBooks, "--quiet", "--max-tokens", "4", "--ignore-eos", "--json", "-"};
    words.insert(words.end(), more.begin(), more.end());
    words.insert(words.end(), prompts.begin(), prompts.end());
    const Output o = run_command(words);
    EXPECT_EQ(o.code, 0) << o.err;
    const json::value v = parse_json(o.out, "--json -");
    EXPECT_EQ(v.at("policy"), "bands:3=prune:k0=1");
    return v.at("routing").at("rerouted_tokens").to_number<int64_t>();
  };
  EXPECT_EQ(rerouted({"One", "Two"}, {"--policy", "auto", "--profile", profile}), 0) << "two rows stay plain";
  EXPECT_GT(rerouted({"One", "Two", "Three"}, {"--policy", "auto", "--profile", profile}), 0);
  EXPECT_GT(rerouted({"One", "Two", "Three"}, {"--policy", "auto:" + profile}), 0);
}

TEST(TuneCommand, EveryCommandWithAModelReadsTheProfile) {
  const Folder folder;
  const std::string profile = profile_for_books(folder, "bands:2=prune:k0=1");
  const Output eval = run_command({"eval", kBooks, "--quiet", "--documents", "2", "--document-tokens", "6", "--batch",
                                   "2", "--policy", "auto", "--profile", profile, "--json", "-"});
  ASSERT_EQ(eval.code, 0) << eval.err;
  EXPECT_EQ(parse_json(eval.out, "").at("results").at(1).at("policy"), "bands:2=prune:k0=1");
  const Output ab = run_command(
      {"ab", kBooks,          "--quiet", "--b",          "auto", "--profile",   profile, "--concurrency",
       "2",  "--repeat",      "1",       "--new-tokens", "8",    "--documents", "2",     "--document-tokens",
       "6",  "--cold-copies", "0",       "--json",       "-"});
  ASSERT_EQ(ab.code, 0) << ab.err;
  EXPECT_EQ(parse_json(ab.out, "").at("results").at(1).at("policy"), "bands:2=prune:k0=1");
  const Output bench = run_command(
      {"bench",    "decode", kBooks,    "--quiet", "--policy", "auto", "--profile",     profile, "--batch", "2",
       "--repeat", "1",      "--steps", "2",       "--prompt", "4",    "--cold-copies", "0",     "--json",  "-"});
  ASSERT_EQ(bench.code, 0) << bench.err;
  EXPECT_NE(bench.out.find("bands:2=prune:k0=1"), std::string::npos);
  // serve refuses the address only after it has read the profile of its model.
  refused(run_command({"serve", kModels + "books-glm", "--policy", "auto", "--profile", profile}), 78, "was made for");
}

TEST(TuneCommand, AnotherModelAndAMissingProfileAreOneSentence) {
  const Folder folder;
  const std::string profile = profile_for_books(folder, "topk");
  refused(run_command({"run", kModels + "books-glm", "x", "--quiet", "--policy", "auto", "--profile", profile}), 78,
          "the profile was made for books-qwen3");
  refused(run_command({"run", kBooks, "x", "--quiet", "--policy", "auto"}), 78, "needs a profile");
  refused(run_command({"run", kBooks, "x", "--quiet", "--policy", "oea:k0=5", "--profile", profile}), 78, "no effect");
  refused(run_command({"run", kBooks, "x", "--quiet", "--policy", "auto:" + (folder / "absent")}), 66, "absent");
  refused(run_command({"tune", kBooks, "--quiet", "--budget", "quality", "--out", folder / "x"}), 64,
          "kl=NATS or ce=NATS");
}

}  // namespace
}  // namespace carpool
