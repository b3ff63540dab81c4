// Every family as GGUF: files that the gguf package wrote, and files that carpool writes itself, give the logits of the
// checkpoints they were made of, and what a file cannot say is refused.
//
// Golden files: python/golden/make_gguf_families.py.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

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
  EXPECT_GE(files.size(), 16u);
  std::set<std::string> families_with_files;
  for (const std::string& file : files) {
    expect_same_model(kFiles + "/" + file, checkpoint_of(file));
    families_with_files.insert(checkpoint_of(file).substr(0, checkpoint_of(file).find('/')));
  }
  families_with_files.insert({"qwen3_moe", "llama_moefied"});  // gguf_model_test.cc; a family that GGUF does not have
  for (const std::string& family : families()) EXPECT_TRUE(families_with_files.contains(family)) << family;
}

// What of the files above the gguf package has in more than one form.
TEST(GgufFamilies, KeysAndValuesApartOrTogetherAndPredictionLayersAreRead) {
  const auto has = [](const char* file, const char* name) {
    return open_weights(kFiles + "/" + file).find(std::string("model.layers.") + name) != nullptr;
  };
  for (const char* file : {"deepseek_v3-v3.gguf", "deepseek_v2-v2.gguf", "glm4_moe_lite-flash.gguf"}) {
    EXPECT_TRUE(has(file, "0.self_attn.k_b_proj.weight") && has(file, "0.self_attn.v_b_proj.weight")) << file;
    EXPECT_FALSE(has(file, "0.self_attn.kv_b_proj.weight")) << file;
  }
  EXPECT_TRUE(has("deepseek_v2-lite.gguf", "0.self_attn.kv_b_proj.weight"));
  EXPECT_FALSE(has("deepseek_v2-lite.gguf", "0.self_attn.k_b_proj.weight"));
  for (const char* name : {"glm_moe_dsa-glm5", "glm4_moe-glm45"}) {
    const std::string path = kFiles + "/" + name + ".gguf";
    const ModelConfig config = read_model_config(path), original = read_model_config(folder(checkpoint_of(name)));
    EXPECT_EQ(config.layers, original.layers) << name;
    EXPECT_EQ(config.unused_layers, 1) << name;
    ASSERT_FALSE(config.notes.empty()) << name;
    EXPECT_NE(config.notes[0].find("1 multi-token prediction layer is not run"), std::string::npos) << config.notes[0];
    EXPECT_TRUE(has((std::string(name) + ".gguf").c_str(), fmt::format("{}.eh_proj.weight", config.layers).c_str()));
  }
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
    const QuantizeReport report = quantize(same_format(folder(name), path));
    const bool said = std::any_of(report.notes.begin(), report.notes.end(),
                                  [](const auto& n) { return contains(n, "multi-token prediction"); });
    EXPECT_EQ(said, config.unused_layers > 0) << name;
    EXPECT_EQ(read_model_config(path).family, config.family) << name;
    expect_same_model(path, name);
    ++written;
  }
  EXPECT_GE(written, 15);
}

// Experts of a layer in one tensor, as transformers 5 has them, are a tensor each in what carpool writes; the form of
// gpt-oss, with biases, goes into GGUF alone, which the test behind this one holds to its sentence.
TEST(GgufFamilies, ExpertsThatShareATensorBecomeADirectoryOfTheSameModel) {
  ScratchFolder scratch;
  for (const char* name : {"mixtral/fused_by_transformers5", "minimax_m2/fused_by_transformers5"}) {
    const WeightSource fused = open_weights(folder(name));
    ASSERT_TRUE(std::any_of(fused.tensors().begin(), fused.tensors().end(), [](const TensorInfo& t) {
      return t.name.ends_with(".experts.gate_up_proj") && t.shape.size() == 3;
    })) << name;
    const std::string path = scratch.path() + "/" + fs::path(name).parent_path().string();
    quantize(same_format(folder(name), path));
    const WeightSource apart = open_weights(path);
    for (const TensorInfo& t : apart.tensors()) EXPECT_LE(t.shape.size(), 2u) << t.name;
    EXPECT_NE(apart.find("model.layers.0.block_sparse_moe.experts.1.w2.weight"), nullptr) << "as it was published";
    Model made = load_path(path), original = load(name);
    const std::vector<int> tokens = prompts(folder(name)).back().tokens;
    EXPECT_EQ(logits_of(made, tokens), logits_of(original, tokens)) << name;
  }
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
