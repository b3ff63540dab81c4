// carpool eval through run_cli: the answer is a perplexity, and every option changes it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "base/source_dir_test_util.h"
#include "cli/command_test_util.h"

namespace carpool {
namespace {

const std::string kSource = source_dir();

Output run(std::vector<std::string> words, const std::string& model = kSource + "/models/books-qwen3",
           const std::string& text = kSource + "/models/books-qwen3/prompts.txt") {
  words.insert(words.begin(), {"eval", model, text, "--threads", "2", "--quiet"});
  return run_command(words);
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
  EXPECT_EQ(run({}).code, 64) << "the text is too short for the default number of documents";
  EXPECT_EQ(run({"--perplexity", "--context", "1"}).code, 64);
  EXPECT_NE(run({"--perplexity", "--policy", "oea:k0=9"}).code, 0);
  const Output absent = run({"--perplexity"}, kSource + "/models/books-qwen3", kSource + "/absent.txt");
  EXPECT_NE(absent.err.find("absent.txt"), std::string::npos) << absent.err;
}

// A file of this test that disappears with it.
class TextFile {
 public:
  TextFile(const std::string& name, const std::string& text)
      : path_((std::filesystem::temp_directory_path() / ("carpool_eval_" + std::to_string(::getpid()) + "_" + name))
                  .string()) {
    if (!text.empty()) std::ofstream(path_) << text;
  }
  ~TextFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }
  std::string text() const {
    std::ifstream in(path_);
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  std::string path_;
};

const std::string kEvalText = kSource + "/models/books-qwen3/eval.txt";

json::array documents(std::vector<std::string> words, const std::string& text = kEvalText) {
  words.insert(words.end(), {"--json", "-", "--document-tokens", "12"});
  const Output o = run(std::move(words), kSource + "/models/books-qwen3", text);
  EXPECT_EQ(o.code, 0) << o.err;
  if (o.code != 0) return {};
  return parse_json(o.out, "--json -").at("results").as_array();
}

double number(const json::value& row, const char* key) { return row.at(key).to_number<double>(); }

TEST(EvalCommand, DocumentsInStepGiveEveryPolicyAndBatchItsCostAgainstTopk) {
  const json::array rows =
      documents({"--policy", "oea:k0=2,guard=off", "--policy", "prune:k0=2", "--policy", "oea:k0=8", "--batch", "4,8"});
  ASSERT_EQ(rows.size(), 8u) << "topk and three policies at two batches";
  for (const json::value& r : rows) {
    EXPECT_EQ(r.at("quality_documents"), 64);
    EXPECT_EQ(r.at("quality_tokens"), 64 * 11);
    for (const char* key : {"cross_entropy", "cross_entropy_delta", "kl_mean", "top1_agreement", "perplexity"}) {
      EXPECT_LE(number(r, (std::string(key) + "_lo").c_str()), number(r, key)) << key;
      EXPECT_GE(number(r, (std::string(key) + "_hi").c_str()), number(r, key)) << key;
    }
    EXPECT_NEAR(std::log(number(r, "perplexity")), number(r, "cross_entropy"), 1e-9);
    EXPECT_LE(number(r, "kl_median"), number(r, "kl_p99"));
    const bool plain = r.at("policy") == "topk" || r.at("policy") == "oea:k0=8";
    EXPECT_EQ(number(r, "kl_mean") == 0 && number(r, "cross_entropy_delta") == 0, plain) << r;
    EXPECT_EQ(number(r, "top1_agreement") == 1, plain) << r;
  }
  EXPECT_EQ(number(rows[0], "cross_entropy"), number(rows[4], "cross_entropy")) << "topk, whatever the batch";
  EXPECT_NEAR(number(rows[1], "distinct_experts") / number(rows[2], "distinct_experts"), 1, 0.1)
      << "OEA loads what pruning to the same k0 loads, but for what layers before have changed";
  EXPECT_LT(number(rows[1], "kl_mean"), number(rows[2], "kl_mean")) << "and costs less";
  EXPECT_LT(number(rows[5], "kl_mean"), number(rows[1], "kl_mean")) << "the more, the larger the batch";
}

TEST(EvalCommand, DocumentsComeFromListsAndJsonLinesAndSeedsRegroupThem) {
  std::string list, lines;
  for (int i = 0; i < 8; ++i) {
    const std::string text =
        "In the year " + std::to_string(i) + " the boat came home and all the men were glad of it.";
    list += text + "\n---\n";
    lines += json::serialize(json::object{{"text", text}, {"id", i}}) + "\n";
  }
  const TextFile txt("list.txt", list), jsonl("list.jsonl", lines), out("out.jsonl", "");
  const std::vector<std::string> words = {"--policy", "oea:k0=2,guard=off", "--batch", "4", "--documents", "8"};
  const json::array a = documents(words, txt.path()), b = documents(words, jsonl.path());
  EXPECT_EQ(a, b);
  std::vector<std::string> seeded = words;
  seeded.insert(seeded.end(), {"--seed", "3", "--jsonl", out.path()});
  const json::array c = documents(seeded, txt.path());
  EXPECT_NEAR(number(a[0], "cross_entropy"), number(c[0], "cross_entropy"), 1e-12)
      << "topk does not see its neighbours";
  EXPECT_NE(number(a[1], "cross_entropy"), number(c[1], "cross_entropy")) << "OEA does";
  seeded = words;
  seeded.insert(seeded.end(), {"--seed", "0,3"});
  const json::array both = documents(seeded, txt.path());
  EXPECT_NEAR(number(both[1], "kl_mean"), (number(a[1], "kl_mean") + number(c[1], "kl_mean")) / 2, 1e-12);
  const std::string per_document = out.text();
  EXPECT_EQ(std::count(per_document.begin(), per_document.end(), '\n'), 16) << "two policies, eight documents";
  double sum = 0;
  for (size_t at = 0; at < per_document.size();) {
    const size_t end = per_document.find('\n', at);
    const json::value line = parse_json(per_document.substr(at, end - at), "--jsonl");
    if (line.at("policy") == "oea:k0=2,guard=off") sum += number(line, "kl_mean") / 8;
    at = end + 1;
  }
  EXPECT_NEAR(sum, number(c[1], "kl_mean"), 1e-12);
}

TEST(EvalCommand, TheTextIsTheModelsOwnUnlessOneIsGiven) {
  std::vector<const char*> argv = {"carpool", "eval", nullptr, "--quiet", "--document-tokens", "4", "--json", "-"};
  const std::string model = kSource + "/models/books-qwen3";
  argv[2] = model.c_str();
  testing::internal::CaptureStdout();
  EXPECT_EQ(run_cli(static_cast<int>(argv.size()), argv.data()), 0);
  const json::value own = parse_json(testing::internal::GetCapturedStdout(), "--json -");
  EXPECT_EQ(own.at("settings").at("text").as_string(), kEvalText);
  argv.insert(argv.end(), {"--text", kEvalText.c_str()});
  testing::internal::CaptureStdout();
  EXPECT_EQ(run_cli(static_cast<int>(argv.size()), argv.data()), 0);
  EXPECT_EQ(parse_json(testing::internal::GetCapturedStdout(), "--json -").at("results"), own.at("results"));
}

json::array task(const std::string& file, std::vector<std::string> words) {
  words.insert(words.begin(), {"eval", kSource + "/models/books-qwen3", "--quiet", "--json", "-", "--task", file});
  std::vector<const char*> argv = {"carpool"};
  for (const std::string& w : words) argv.push_back(w.c_str());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int code = run_cli(static_cast<int>(argv.size()), argv.data());
  const std::string out = testing::internal::GetCapturedStdout(), err = testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, 0) << err;
  return code == 0 ? parse_json(out, "--json -").at("results").as_array() : json::array();
}

TEST(EvalCommand, QuestionsAreAnsweredByLogLikelihoodPlainlyAndUnderAPolicy) {
  std::string text;
  for (const char* line : {R"({"context":"He opened the","choices":[" door"," of"],"answer":0})",
                           R"({"context":"She looked at","choices":[" him"," was"],"answer":1})",
                           R"({"context":"It was a long","choices":[" time"," and of"],"answer":0})",
                           R"({"context":"They went to the","choices":[" is"," house"],"answer":1})",
                           R"({"context":"Once upon a","completion":" time"})"}) {
    text += std::string(line) + "\n";
  }
  const TextFile file("task.jsonl", text), out("task_out.jsonl", "");
  const json::array rows =
      task(file.path(), {"--policy", "prune:k0=1", "--policy", "oea:k0=8", "--batch", "2,4", "--jsonl", out.path()});
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(number(rows[0], "questions"), 5);
  EXPECT_GE(number(rows[0], "acc"), 0.6) << "three of the five answers are what the books would say";
  EXPECT_LE(number(rows[0], "acc"), 0.8) << "and one is what they would not";
  EXPECT_EQ(number(rows[0], "acc"), number(rows[3], "acc")) << "topk at another batch";
  EXPECT_EQ(number(rows[3], "log_likelihood_delta"), 0) << "to the bit";
  EXPECT_NE(number(rows[1], "log_likelihood_delta"), 0) << "a pruned model";
  EXPECT_EQ(number(rows[2], "log_likelihood_delta"), 0) << "k0 = K is plain";
  EXPECT_EQ(number(rows[2], "changed"), 0);
  const std::string lines = out.text();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 6 * 9) << "nine continuations";
}

TEST(EvalCommand, BadQuestionsAndNeedlessOptionsAreOneSentence) {
  const auto refused = [](const std::string& text, const std::string& part, std::vector<std::string> more = {}) {
    const TextFile file("bad.jsonl", text);
    std::vector<std::string> words = {"eval", kSource + "/models/books-qwen3", "--quiet", "--task", file.path()};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<const char*> argv = {"carpool"};
    for (const std::string& w : words) argv.push_back(w.c_str());
    testing::internal::CaptureStderr();
    EXPECT_NE(run_cli(static_cast<int>(argv.size()), argv.data()), 0) << text;
    const std::string err = testing::internal::GetCapturedStderr();
    EXPECT_NE(err.find(part), std::string::npos) << err;
    EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
  };
  const std::string good = R"({"context":"a","choices":[" b"," c"],"answer":0})";
  refused(good + "\n{\"context\":\"a\"}\n", "line 2");
  refused(R"({"context":"a","choices":[" b"],"answer":0})", "must have 2 to");
  refused(R"({"context":"a","choices":[" b"," c"],"answer":2})", "answer");
  refused(R"({"context":"a","choices":[" b"," c"],"completion":" d"})", "one of them");
  refused(R"({"context":"a","completion":""})", "no token of its own");
  refused("\n", "no questions");
  refused(good, "no effect", {"--seed", "1"});
  refused(good, "--perplexity or --task", {"--perplexity"});
  EXPECT_NE(run({"--perplexity", "--policy", "topk", "--policy", "oea:k0=2"}).err.find("one --policy"),
            std::string::npos);
  EXPECT_NE(run({"--documents", "6", "--batch", "4"}).err.find("do not fill batches of 4"), std::string::npos);
}

TEST(EvalCommand, TheGlmShapedModelIsMeasuredToo) {
  EXPECT_GT(perplexity(row({"--context", "32", "--chunks", "2"}, kSource + "/models/books-glm")), 5);
}

}  // namespace
}  // namespace carpool
