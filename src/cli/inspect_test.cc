// carpool inspect through run_cli: every option changes the answer, and a directory with only config.json is enough.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "cli/commands.h"

namespace carpool {
namespace {

namespace fs = std::filesystem;

const std::string kGolden = std::string(CARPOOL_SOURCE_DIR) + "/tests/golden/";

class InspectCommand : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("carpool_inspect_" + std::to_string(getpid()));
    fs::create_directories(folder_ / "bare");
    fs::copy_file(kGolden + "qwen3_moe/bf16_tied/config.json", folder_ / "bare/config.json");
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string bare() const { return (folder_ / "bare").string(); }
  static std::string whole() { return kGolden + "qwen3_moe/bf16_tied"; }

  // The exit code of `carpool inspect MODEL --json FILE WORDS`; `answer_` is what the file then holds.
  int run(const std::string& model, std::vector<std::string> words = {}) {
    const std::string out = (folder_ / "out.json").string();
    fs::remove(out);
    words.insert(words.begin(), {"inspect", model, "--threads", "1", "--quiet", "--json", out});
    std::vector<const char*> argv = {"carpool"};
    for (const std::string& w : words) argv.push_back(w.c_str());
    const int code = run_cli(static_cast<int>(argv.size()), argv.data());
    answer_ = fs::exists(out) ? parse_json(read_text_file(out), out) : json::value();
    return code;
  }
  double number(const char* object, const char* key) const { return answer_.at(object).at(key).to_number<double>(); }
  const json::value& row(size_t i) const { return answer_.at("results").as_array().at(i); }

  fs::path folder_;
  json::value answer_;
};

TEST_F(InspectCommand, AConfigAloneGivesTheSizesThatTheWeightsHave) {
  ASSERT_EQ(run(bare()), 0);
  const double expert = number("bytes", "per_expert"), dense = number("bytes", "dense_per_step");
  EXPECT_EQ(answer_.at("bytes").at("source").as_string(), "assumed bf16");
  EXPECT_TRUE(answer_.at("settings").as_object().contains("weights"));
  ASSERT_EQ(run(whole()), 0);
  EXPECT_EQ(number("bytes", "per_expert"), expert);
  EXPECT_EQ(number("bytes", "dense_per_step"), dense);
  EXPECT_FALSE(answer_.at("settings").as_object().contains("weights"));
}

TEST_F(InspectCommand, FormatBatchAndContextChangeTheBytes) {
  ASSERT_EQ(run(bare(), {"--format", "f32"}), 0);
  const double wide = number("bytes", "per_expert");
  ASSERT_EQ(run(bare(), {"--format", "bf16", "--batch", "2,5", "--context", "0"}), 0);
  EXPECT_EQ(2 * number("bytes", "per_expert"), wide);
  ASSERT_EQ(answer_.at("results").as_array().size(), 4u);  // topk and oea:k0=2 of a model with four per token
  EXPECT_EQ(row(0).at("batch").as_int64(), 2);
  EXPECT_EQ(row(3).at("batch").as_int64(), 5);
  EXPECT_EQ(row(3).at("policy").as_string(), "oea:k0=2");
  const double without = row(0).at("bytes_per_step").as_double();
  ASSERT_EQ(run(bare(), {"--batch", "2", "--context", "100"}), 0);
  EXPECT_EQ(row(0).at("bytes_per_step").as_double(), without + 2 * 100 * number("bytes", "kv_per_token"));
}

TEST_F(InspectCommand, BadOptionsAndMissingPartsEndInTheRightExitCode) {
  EXPECT_EQ(run(bare(), {"--format", "q9"}), static_cast<int>(ErrorKind::kUsage));
  EXPECT_EQ(run(bare(), {"--context", "100000"}), static_cast<int>(ErrorKind::kUsage));
  EXPECT_EQ(run(bare(), {"--batch", "0"}), static_cast<int>(ErrorKind::kUsage));
  EXPECT_EQ(run(bare(), {"--isa", "sse9"}), static_cast<int>(ErrorKind::kConfig));
  EXPECT_EQ(run(bare(), {"--text", bare() + "/config.json"}), static_cast<int>(ErrorKind::kMissing));
  EXPECT_EQ(run((folder_ / "absent").string()), static_cast<int>(ErrorKind::kMissing));
}

TEST_F(InspectCommand, ATextIsRefusedForAModelWithoutRoutedExpertsAndTheReasonSaysSo) {
  json::object config =
      parse_json(read_text_file(kGolden + "qwen3_moe/dense_layers/config.json"), "config").as_object();
  config["mlp_only_layers"] = json::array{0, 1, 2, 3, 4, 5};
  std::ofstream(folder_ / "bare/config.json") << json::serialize(config);
  EXPECT_EQ(run(bare()), 0) << "sizes need no experts";
  testing::internal::CaptureStderr();
  EXPECT_EQ(run(bare(), {"--text", bare() + "/config.json"}), static_cast<int>(ErrorKind::kConfig));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("the model has no routed experts"), std::string::npos) << said;
}

TEST_F(InspectCommand, DocumentsOfATextMayBeSeparatedByCrLfLines) {
  const std::string model = std::string(CARPOOL_SOURCE_DIR) + "/models/books-qwen3";
  if (!fs::exists(model + "/model.safetensors")) GTEST_SKIP() << "the embedded model is not there";
  const std::string a = "The boat came home at last, and all the men were glad of it.",
                    b = "It was late when they sang.";
  std::ofstream(folder_ / "lf.txt") << a << "\n---\n" << b;
  std::ofstream(folder_ / "crlf.txt") << "---\r\n" << a << "\r\n---\r\n" << b;
  ASSERT_EQ(run(model, {"--text", (folder_ / "lf.txt").string(), "--batch", "2"}), 0);
  const double counted = row(0).at("distinct_experts").as_double();
  ASSERT_EQ(run(model, {"--text", (folder_ / "crlf.txt").string(), "--batch", "2"}), 0);
  EXPECT_EQ(row(0).at("distinct_experts").as_double(), counted);
}

TEST_F(InspectCommand, ATextReplacesUniformRouting) {
  const std::string model = std::string(CARPOOL_SOURCE_DIR) + "/models/books-qwen3";
  if (!fs::exists(model + "/model.safetensors")) GTEST_SKIP() << "the embedded model is not there";
  std::ofstream(folder_ / "short.txt") << "It was late when";
  EXPECT_EQ(run(model, {"--text", (folder_ / "short.txt").string()}), static_cast<int>(ErrorKind::kUsage));
  ASSERT_EQ(run(model, {"--text", model + "/eval.txt", "--batch", "8"}), 0);
  EXPECT_EQ(row(0).at("distinct_experts_from").as_string(), "text");
  EXPECT_NE(row(0).at("distinct_experts").as_double(), row(0).at("distinct_experts_uniform").as_double());
  EXPECT_LT(row(2).at("distinct_experts").as_double(), row(0).at("distinct_experts").as_double());
}

}  // namespace
}  // namespace carpool
