// Every family as GGUF: files that the gguf package wrote, and files that carpool writes itself, give the logits of the
// checkpoints they were made of, and what a file cannot say is refused.
//
// Golden files: python/golden/make_gguf_families.py.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "io/test_files.h"
#include "model/gguf_config.h"
#include "model/gguf_names.h"
#include "model/golden_test_util.h"
#include "model/quantize.h"

namespace carpool {
namespace {

namespace fs = std::filesystem;
using namespace golden;  // NOLINT(google-build-using-namespace)
using namespace test;    // NOLINT(google-build-using-namespace)

const std::string kFiles = kGolden + "/gguf";

// "family-case.gguf" -> "family/case"; other files have no checkpoint.
std::string checkpoint_of(const std::string& file) {
  const size_t at = file.find('-');
  if (at == file.npos) return file;
  return file.substr(0, at) + "/" + fs::path(file.substr(at + 1)).stem().string();
}

// The files whose checkpoints are families of this build.
std::vector<std::string> family_files() {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(kFiles)) {
    const std::string file = entry.path().filename().string();
    if (file.ends_with(".gguf") && fs::is_directory(kGolden + "/" + checkpoint_of(file))) out.push_back(file);
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<std::vector<float>> logits_of(Model& model, const std::vector<int>& tokens) {
  KvCache kv(model.config(), 256, model.kv_format());
  Place place(kv, static_cast<int>(tokens.size()));
  return prefill(model, kv, place, tokens, 7);
}

// Rows of queries and keys in another order give other sums of the same products; else all bits are the same.
void expect_same_model(const std::string& path, const std::string& checkpoint) {
  Model made = load_path(path), original = load(checkpoint);
  const GgufArchitecture* architecture = gguf_architecture_of_file(path);
  const std::vector<GoldenPrompt> texts = prompts(folder(checkpoint));
  for (const GoldenPrompt& g : {texts.front(), texts.back()}) {
    const auto a = logits_of(made, g.tokens), b = logits_of(original, g.tokens);
    ASSERT_EQ(a.size(), b.size());
    for (size_t p = 0; p < a.size(); ++p) {
      if (!architecture->paired_rows) {
        ASSERT_EQ(a[p], b[p]) << path << " position " << p;
        continue;
      }
      for (size_t i = 0; i < a[p].size(); ++i) ASSERT_NEAR(a[p][i], b[p][i], 1e-3) << path << " position " << p;
    }
  }
}

TEST(GgufFamilies, FilesOfTheGgufPackageAreTheModelsTheyWereMadeOf) {
  const std::vector<std::string> files = family_files();
  EXPECT_GE(files.size(), 7u);
  for (const std::string& file : files) expect_same_model(kFiles + "/" + file, checkpoint_of(file));
}

TEST(GgufFamilies, GreedyTokensFromPairedRowsAreThoseOfTransformers) {
  const auto topk = make_policy("topk");
  for (const char* file : {"llama-plain.gguf", "llama-llama3_tied.gguf", "mixtral-published.gguf"}) {
    Model model = load_path(kFiles + "/" + file);
    EXPECT_TRUE(model.config().rope.interleaved);
    KvCache kv(model.config(), 1024, model.kv_format());
    for (const GoldenPrompt& g : prompts(folder(checkpoint_of(file)))) {
      Place place(kv, 128);
      std::vector<int> got{argmax(prefill(model, kv, place, g.tokens, 16).back())};
      for (int p = static_cast<int>(g.tokens.size()); got.size() < g.greedy.size(); ++p) {
        got.push_back(argmax(decode(model, kv, place, got.back(), p, *topk)));
      }
      EXPECT_EQ(got, g.greedy) << file;
      kv.give_back(place.blocks);
    }
  }
}

// The format of the checkpoint's own matrices, so that nothing is rounded.
QuantizeOptions same_format(const std::string& input, const std::string& output) {
  QuantizeOptions options;
  options.input = input;
  options.output = output;
  options.format = Format::kF32;
  const WeightSource source = open_weights(input);
  if (source.find("model.embed_tokens.weight")->dtype == "BF16") options.format = Format::kBF16;
  for (const TensorInfo& t : source.tensors()) {
    if (!t.name.ends_with("_blocks")) continue;
    options.exceptions = {{"*.experts.*.weight", Format::kMXFP4}};
    break;
  }
  return options;
}

// A checkpoint in formats that GGUF does not have becomes another model there.
bool is_plain(const std::string& directory) {
  const WeightSource source = open_weights(directory);
  return std::none_of(source.tensors().begin(), source.tensors().end(), [](const TensorInfo& t) {
    return t.name.ends_with("weight_scale") || t.name.ends_with("weight_scale_inv") || t.name.ends_with("_packed");
  });
}

TEST(GgufFamilies, WhatCarpoolWritesIsTheModelOrIsRefusedWithTheReason) {
  ScratchFolder scratch;
  int written = 0;
  for (const std::string& name : all_cases()) {
    if (!is_plain(folder(name))) continue;
    const std::string path = scratch.path() + "/" + std::to_string(written) + ".gguf";
    const ModelConfig config = read_model_config(folder(name));
    const GgufArchitecture* architecture = gguf_architecture_of(config.family);
    if (!architecture || !not_in_gguf(config, *architecture).empty()) {
      const std::string what = error_of(ErrorKind::kConfig, [&] { quantize(same_format(folder(name), path)); });
      EXPECT_TRUE(contains(what, "cannot be written as GGUF: ")) << what;
      EXPECT_TRUE(contains(what, config.family)) << what;
      continue;
    }
    quantize(same_format(folder(name), path));
    EXPECT_EQ(read_model_config(path).family, config.family) << name;
    expect_same_model(path, name);
    ++written;
  }
  EXPECT_GE(written, 15);
}

TEST(GgufFamilies, AFileBecomesADirectoryAgainWhereOneCanSayIt) {
  ScratchFolder scratch;
  for (const char* file :
       {"llama-plain.gguf", "mixtral-published.gguf", "olmoe-whole_norms.gguf", "qwen3-dense_tied.gguf"}) {
    const std::string path = scratch.path() + "/" + fs::path(file).stem().string();
    quantize(same_format(kFiles + "/" + file, path));
    Model made = load_path(path), original = load(checkpoint_of(file));
    EXPECT_FALSE(made.config().rope.interleaved);
    const std::vector<int> tokens = prompts(folder(checkpoint_of(file))).back().tokens;
    EXPECT_EQ(logits_of(made, tokens), logits_of(original, tokens)) << file;
  }
  for (const auto& [file, why] : {std::pair{"llama-llama3_tied.gguf", "divides single frequencies"},
                                  {"gpt_oss-mxfp4.gguf", "experts with biases"}}) {
    const std::string what =
        error_of(ErrorKind::kConfig, [&] { quantize(same_format(kFiles + "/" + file, scratch.path() + "/refused")); });
    EXPECT_TRUE(contains(what, why)) << what;
  }
  const std::string what = error_of(
      ErrorKind::kConfig, [&] { quantize(same_format(folder("gpt_oss/bf16_export"), scratch.path() + "/refused")); });
  EXPECT_TRUE(contains(what, "name an output that ends in .gguf")) << what;
}

}  // namespace
}  // namespace carpool
