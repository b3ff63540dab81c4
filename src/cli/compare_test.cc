// carpool compare through run_cli: every cell measured once, finished cells not again, and a page that needs no
// network.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "base/source_dir_test_util.h"
#include "cli/command_test_util.h"

namespace carpool {
namespace {

namespace fs = std::filesystem;

const std::string kBooks = source_dir() + "/models/books-qwen3";

Output run(std::vector<std::string> words) {
  words.insert(words.begin(), {"compare", kBooks, "--quiet", "--threads", "2"});
  return run_command(words);
}

std::string slurp(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

double number(const json::value& row, const char* key) { return row.at(key).to_number<double>(); }

std::vector<std::string> small(std::vector<std::string> more) {
  more.insert(more.begin(), {"--documents", "8", "--document-tokens", "10", "--cold-copies", "0"});
  return more;
}

TEST(CompareCommand, MeasuresEveryCellAndGoesOnWhereItWas) {
  const Folder folder;
  const std::string cells = folder / "cells.jsonl", html = folder / "compare.html";
  std::vector<std::string> words = small({"--policy", "oea:k0=3", "--policy", "xshare:m=50%", "--batch", "4,8",
                                          "--cells", cells, "--json", "-", "--html", html, "--together", "1"});
  const Output first = run(words);
  ASSERT_EQ(first.code, 0) << first.err;
  const json::value report = parse_json(first.out, "--json -");
  const json::array& rows = report.at("results").as_array();
  ASSERT_EQ(rows.size(), 6u) << "topk and two policies, two batches";
  EXPECT_EQ(rows[0].at("policy"), "topk");
  EXPECT_EQ(number(rows[0], "kl_mean"), 0);
  EXPECT_EQ(number(rows[0], "time_ratio"), 1);
  EXPECT_EQ(number(rows[0], "distinct_experts"), number(rows[0], "distinct_experts_plain"));
  for (size_t r : {size_t{1}, size_t{2}}) {
    EXPECT_GT(number(rows[r], "kl_mean"), 0);
    EXPECT_LT(number(rows[r], "distinct_experts"), number(rows[r], "distinct_experts_plain"));
    EXPECT_GT(number(rows[r], "step_ms"), 0);
    EXPECT_LE(number(rows[r], "time_ratio_lo"), number(rows[r], "time_ratio"));
  }
  EXPECT_EQ(report.at("settings").at("cells"), "6 measured, 0 from an earlier run");

  // An interrupted run: two whole lines, half of a third.
  const std::string text = slurp(cells);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 6);
  const size_t second_end = text.find('\n', text.find('\n') + 1) + 1;
  std::ofstream(cells) << text.substr(0, second_end + 40);
  const Output again = run(words);
  ASSERT_EQ(again.code, 0) << again.err;
  const json::value resumed = parse_json(again.out, "--json -");
  EXPECT_EQ(resumed.at("settings").at("cells"), "4 measured, 2 from an earlier run");
  for (size_t r = 0; r < 6; ++r) {
    EXPECT_EQ(resumed.at("results").at(r).at("policy"), rows[r].at("policy"));
    EXPECT_EQ(number(resumed.at("results").at(r), "kl_mean"), number(rows[r], "kl_mean")) << "the same to the bit";
  }
  EXPECT_EQ(resumed.at("results").at(0), rows[0]) << "times, too, of a cell that was kept";
  EXPECT_EQ(parse_json(run(words).out, "--json -").at("settings").at("cells"), "0 measured, 6 from an earlier run");
  words.insert(words.end(), {"--seed", "5"});
  EXPECT_EQ(parse_json(run(words).out, "--json -").at("settings").at("cells"), "6 measured, 0 from an earlier run")
      << "other settings, other cells";

  const std::string page = slurp(html);
  EXPECT_NE(page.find("<svg"), std::string::npos);
  EXPECT_NE(page.find("xshare:m=50%"), std::string::npos);
  EXPECT_NE(page.find("carpool compare"), std::string::npos) << "its own command";
  for (const char* outside : {"http://", "https://", "<script", "<link", "url("})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
}

TEST(CompareCommand, TheGridComesFromAFileOrIsBuiltIn) {
  const Folder folder;
  const std::string grid = folder / "grid.json";
  std::ofstream(grid) << R"({"policies": ["prune:k0=2", "topk", "prune:k0=2"], "batch": [4]})";
  const Output o = run(small({"--grid", grid}));
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("prune:k0=2"), std::string::npos);
  EXPECT_NE(o.out.find("Batch 4: all cells"), std::string::npos);
  EXPECT_EQ(o.out.find("Batch 8"), std::string::npos);
  const Output built_in = run({"--documents", "4", "--batch", "4", "--document-tokens", "3", "--cold-copies", "0"});
  ASSERT_EQ(built_in.code, 0) << built_in.err;
  for (const char* method : {"oea:k0=7", "oea:k0=auto,t=50%", "prune:k0=4", "xshare:m=25%", "des_vote:m=75%",
                             "lynx:drop=50%", "lynx_bins:m=50%", "top_p:p=0.7", "ser:"}) {
    EXPECT_NE(built_in.out.find(method), std::string::npos) << method;
  }
  EXPECT_NE(built_in.out.find("methods at about 50 % of plain"), std::string::npos);
}

TEST(CompareCommand, TablesBringTheirPoliciesIntoTheGrid) {
  const Folder folder;
  const std::string tables = folder / "t.tables";
  ASSERT_EQ(run_command({"calibrate", kBooks, kBooks + "/eval.txt", "--quiet", "--documents", "8", "--tokens", "8",
                         "--k0", "2,4", "--mean-k0", "3", "--out", tables})
                .code,
            0);
  const std::vector<std::string> tiny = {"--documents",   "4", "--batch", "4", "--document-tokens", "3",
                                         "--cold-copies", "0", "--json",  "-"};
  const auto policies = [&](std::vector<std::string> more) {
    more.insert(more.end(), tiny.begin(), tiny.end());
    const Output o = run(more);
    EXPECT_EQ(o.code, 0) << o.err;
    std::vector<std::string> out;
    const json::value report = parse_json(o.out, "--json -");
    for (const json::value& row : report.at("results").as_array()) {
      out.emplace_back(row.at("policy").as_string());
      if (out.back().find("table=") != std::string::npos) {
        EXPECT_GT(number(row, "kl_mean"), 0) << out.back();
      }
    }
    return out;
  };
  const auto has = [](const std::vector<std::string>& list, const std::string& spec) {
    return std::find(list.begin(), list.end(), spec) != list.end();
  };
  const std::vector<std::string> grid = policies({"--tables", tables});
  for (const std::string& spec :
       {"sere:table=" + tables + ",k0=1", "sere:table=" + tables + ",k0=7", "exfold:table=" + tables + ",m=25%",
        "exfold:table=" + tables + ",m=75%", "oea:k0=table,table=" + tables, std::string("oea:k0=3")}) {
    EXPECT_TRUE(has(grid, spec)) << spec;
  }
  const std::string sere = "sere:table=" + tables + ",k0=2";
  EXPECT_TRUE(has(policies({"--policy", sere}), sere));
  const std::vector<std::string> list = policies({"--policy", "oea:k0=2/8/3/0/5"});
  EXPECT_TRUE(has(list, "oea:k0=2/8/3/0/5"));
  const Output both = run({"--policy", sere, "--tables", tables, "--batch", "4"});
  EXPECT_EQ(both.code, 64) << both.err;
  EXPECT_NE(both.err.find("--tables is for the built-in grid"), std::string::npos) << both.err;
  const Output layers = run({"--policy", "oea:k0=2/8/3", "--batch", "4"});
  EXPECT_EQ(layers.code, 78) << layers.err;
  EXPECT_NE(layers.err.find("values for 3 layers, the model has 5"), std::string::npos) << layers.err;
}

TEST(CompareCommand, WhatIsNoGridAndNoCellIsOneSentence) {
  const Folder folder;
  const auto refused = [](const Output& o, int code, const std::string& part) {
    EXPECT_EQ(o.code, code) << o.err;
    EXPECT_NE(o.err.find(part), std::string::npos) << o.err;
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  };
  const std::string grid = folder / "grid.json", cells = folder / "cells.jsonl";
  std::ofstream(grid) << R"({"policy": ["prune:k0=2"]})";
  refused(run(small({"--grid", grid})), 65, "is not known");
  std::ofstream(cells) << "{\"carpool_trace\":1}\n";
  refused(run(small({"--policy", "prune:k0=2", "--batch", "4", "--cells", cells})), 65, "line 1");
  refused(run(small({"--policy", "oea:k0=99", "--batch", "4"})), 78, "k0");
  refused(run(small({"--batch", "16"})), 64, "do not fill batches of 16");
  refused(run(small({"--cells", folder / "x", "--html", folder / "x"})), 64, "different files");
}

}  // namespace
}  // namespace carpool
