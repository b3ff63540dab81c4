// carpool eval through run_cli: the answer is a perplexity, and every option changes it.
#include <gtest/gtest.h>

#include <cmath>

#include "base/json.h"
#include "base/source_dir_test_util.h"
#include "cli/commands.h"

namespace carpool {
namespace {

const std::string kSource = source_dir();

struct Output {
  int code;
  std::string out, err;
};

Output run(std::vector<std::string> words, const std::string& model = kSource + "/models/books-qwen3",
           const std::string& text = kSource + "/models/books-qwen3/prompts.txt") {
  words.insert(words.begin(), {"eval", model, text, "--threads", "2", "--quiet"});
  std::vector<const char*> argv = {"carpool"};
  for (const std::string& w : words) argv.push_back(w.c_str());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int code = run_cli(static_cast<int>(argv.size()), argv.data());
  std::string out = testing::internal::GetCapturedStdout();
  return {code, std::move(out), testing::internal::GetCapturedStderr()};
}

json::object row(std::vector<std::string> words, const std::string& model = kSource + "/models/books-qwen3") {
  words.insert(words.end(), {"--perplexity", "--json", "-"});
  const Output o = run(std::move(words), model);
  EXPECT_EQ(o.code, 0) << o.err;
  if (o.code != 0) return {};
  return parse_json(o.out, "--json -").at("results").at(0).as_object();
}

double perplexity(const json::object& row) { return row.at("perplexity").to_number<double>(); }

TEST(EvalCommand, PrintsThePerplexityOfTheText) {
  const Output text = run({"--perplexity", "--context", "32", "--chunks", "2"});
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("perplexity"), std::string::npos) << text.out;
  const json::object json = row({"--context", "32", "--chunks", "2"});
  EXPECT_EQ(json.at("windows"), 2);
  EXPECT_GT(perplexity(json), 5) << "of 4,096 tokens, by a small model";
  EXPECT_LT(perplexity(json), 1000);
  EXPECT_NEAR(std::log(perplexity(json)), json.at("cross_entropy").to_number<double>(), 1e-9);
}

TEST(EvalCommand, EveryOptionChangesTheAnswer) {
  const json::object plain = row({"--context", "32", "--chunks", "4"});
  EXPECT_NE(perplexity(row({"--context", "16", "--chunks", "4"})), perplexity(plain));
  EXPECT_NE(perplexity(row({"--context", "32", "--chunks", "3"})), perplexity(plain));
  const json::object decoded = row({"--context", "32", "--chunks", "4", "--batch", "4"});
  EXPECT_EQ(perplexity(decoded), perplexity(plain)) << "a row is a row: decoded or in a prompt";
  const json::object pruned = row({"--context", "32", "--chunks", "4", "--policy", "prune:k0=1", "--batch", "4"});
  EXPECT_GT(perplexity(pruned), perplexity(plain));
  EXPECT_LT(pruned.at("distinct_experts").to_number<double>(), decoded.at("distinct_experts").to_number<double>());
}

TEST(EvalCommand, WhatItCannotDoIsOneSentence) {
  EXPECT_EQ(run({}).code, 64) << "nothing asked for";
  EXPECT_EQ(run({"--perplexity", "--context", "1"}).code, 64);
  EXPECT_NE(run({"--perplexity", "--policy", "oea:k0=9"}).code, 0);
  const Output absent = run({"--perplexity"}, kSource + "/models/books-qwen3", kSource + "/absent.txt");
  EXPECT_NE(absent.err.find("absent.txt"), std::string::npos) << absent.err;
}

TEST(EvalCommand, TheGlmShapedModelIsMeasuredToo) {
  EXPECT_GT(perplexity(row({"--context", "32", "--chunks", "2"}, kSource + "/models/books-glm")), 5);
}

}  // namespace
}  // namespace carpool
