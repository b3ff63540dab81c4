// What of a model is not used, or is said twice and differently, is said to whoever loads or inspects it; --quiet
// silences it where it is not a part of the answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "base/source_dir_test_util.h"
#include "cli/command_test_util.h"
#include "io/test_files.h"

namespace carpool {
namespace {

namespace fs = std::filesystem;

const std::string kSource = source_dir(), kGolden = kSource + "/tests/golden/";
constexpr const char* kNotRun = "1 multi-token prediction layer is not run";
constexpr const char* kNoTensors = "for multi-token prediction, the files have no tensors of it";

bool says(const std::string& text, const std::string& part) { return text.find("note: " + part) != text.npos; }

// The lines of `text` that are notes.
int64_t notes(const std::string& text) {
  int64_t n = 0;
  for (size_t at = 0; (at = text.find("note: ", at)) != text.npos; ++at) n += at == 0 || text[at - 1] == '\n';
  return n;
}

TEST(Notes, InspectSaysWhatOfTheFilesIsNotUsedInTextAndJson) {
  const auto inspect = [](const std::string& model) {
    return run_command({"inspect", model, "--batch", "1", "--quiet"});
  };
  const Output with = inspect(kGolden + "glm_moe_dsa/glm5"), without = inspect(kGolden + "glm_moe_dsa/glm52");
  ASSERT_EQ(with.code, 0) << with.err;
  EXPECT_TRUE(says(with.out, kNotRun)) << with.out;
  EXPECT_EQ(notes(with.out), 1) << with.out;
  EXPECT_TRUE(says(without.out, kNotRun)) << without.out;
  EXPECT_NE(without.out.find(kNoTensors), std::string::npos) << without.out;
  EXPECT_EQ(notes(without.out), 2) << without.out;
  EXPECT_TRUE(says(inspect(kGolden + "gguf/glm_moe_dsa-glm5.gguf").out, kNotRun));
  EXPECT_EQ(notes(inspect(kGolden + "glm4_moe/air").out), 0);
  const Output json = run_command({"inspect", kGolden + "glm_moe_dsa/glm52", "--batch", "1", "--quiet", "--json", "-"});
  EXPECT_EQ(parse_json(json.out, "--json -").at("notes").as_array().size(), 2u);
}

// A note of two files that say different things about one quantised model.
TEST(Notes, InspectSaysWhereTheTwoQuantizationFilesDiffer) {
  const test::ScratchFolder folder;
  fs::copy(kGolden + "nvfp4/glm5", folder.file("model"));
  const auto inspect = [&] { return run_command({"inspect", folder.file("model"), "--batch", "1", "--quiet"}).out; };
  EXPECT_EQ(notes(inspect()), 0);
  std::ofstream(folder.file("model") + "/hf_quant_config.json")
      << R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": []}})";
  const std::string said = inspect();
  EXPECT_TRUE(says(said,
                   "config.json and hf_quant_config.json say different things about quantisation (config.json NVFP4 in "
                   "groups of 16, hf_quant_config.json FP8): config.json counts, and the tensors themselves"))
      << said;
  EXPECT_NE(said.find("U8"), std::string::npos) << "what is on disk is what is counted: " << said;
}

TEST(Notes, EveryCommandThatLoadsAModelSaysThemUnlessQuiet) {
  const std::string books = kSource + "/models/books-glm";
  if (!fs::exists(books + "/model.safetensors")) GTEST_SKIP() << "the embedded model is not there";
  const test::ScratchFolder folder;
  const std::string model = folder.file("model");
  fs::create_directory(model);
  for (const auto& entry : fs::directory_iterator(books)) {
    if (entry.path().filename() != "config.json")
      fs::create_symlink(entry.path(), fs::path(model) / entry.path().filename());
  }
  json::object config = parse_json(read_text_file(books + "/config.json"), "config.json").as_object();
  config["num_nextn_predict_layers"] = 1;  // without its tensors
  std::ofstream(model + "/config.json") << json::serialize(config);
  const std::string text =
      folder.write("text.txt", "The boat came home at last, and all the men were glad of it. So it was.");
  const std::vector<std::vector<std::string>> commands = {
      {"run", model, "The boat", "--max-tokens", "2"},
      {"eval", model, text, "--perplexity", "--context", "8", "--chunks", "1"},
      {"bench", "decode", model, "--batch", "1", "--prompt", "2", "--steps", "2", "--repeats", "1", "--cold-copies",
       "0"},
      {"bench", "prefill", model, "--tokens", "4", "--repeats", "1"},
      {"ab", model, "--b", "oea:k0=3", "--concurrency", "2", "--new-tokens", "8", "--repeats", "1", "--cold-copies",
       "0", "--text", books + "/eval.txt", "--document-tokens", "16"},
  };
  for (std::vector<std::string> words : commands) {
    words.insert(words.end(), {"--threads", "1"});
    const Output said = run_command(words);
    EXPECT_EQ(said.code, 0) << words[0] << "\n" << said.err;
    EXPECT_TRUE(says(said.err, kNotRun)) << words[0] << "\n" << said.err;
    EXPECT_NE(said.err.find(kNoTensors), std::string::npos) << words[0] << "\n" << said.err;
    words.emplace_back("--quiet");
    EXPECT_EQ(run_command(words).err, "") << words[0];
  }
}

}  // namespace
}  // namespace carpool
