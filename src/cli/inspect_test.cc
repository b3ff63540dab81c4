// carpool inspect through run_cli: every option changes the answer, and a directory with only config.json is enough.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "base/source_dir_test_util.h"
#include "cli/commands.h"

namespace carpool {
namespace {

namespace fs = std::filesystem;

const std::string kGolden = source_dir() + "/tests/golden/";

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
  // The exit code of `carpool inspect MODEL`, printed.
  static int print(const std::string& model) {
    const char* const argv[] = {"carpool", "inspect", model.c_str(), "--threads", "1", "--quiet"};
    return run_cli(6, argv);
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
  const std::string model = source_dir() + "/models/books-qwen3";
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
  const std::string model = source_dir() + "/models/books-qwen3";
  if (!fs::exists(model + "/model.safetensors")) GTEST_SKIP() << "the embedded model is not there";
  std::ofstream(folder_ / "short.txt") << "It was late when";
  EXPECT_EQ(run(model, {"--text", (folder_ / "short.txt").string()}), static_cast<int>(ErrorKind::kUsage));
  ASSERT_EQ(run(model, {"--text", model + "/eval.txt", "--batch", "8"}), 0);
  EXPECT_EQ(row(0).at("distinct_experts_from").as_string(), "text");
  EXPECT_NE(row(0).at("distinct_experts").as_double(), row(0).at("distinct_experts_uniform").as_double());
  EXPECT_LT(row(2).at("distinct_experts").as_double(), row(0).at("distinct_experts").as_double());
}

// GLM-5 by the numbers of its published configuration.
json::object glm5() {
  return parse_json(R"({"model_type": "glm_moe_dsa", "architectures": ["GlmMoeDsaForCausalLM"], "vocab_size": 154880,
    "hidden_size": 6144, "intermediate_size": 12288, "moe_intermediate_size": 2048, "num_hidden_layers": 78,
    "first_k_dense_replace": 3, "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 2048,
    "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "head_dim": 64,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1,
    "norm_topk_prob": true, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "rms_norm_eps": 1e-5, "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "max_position_embeddings": 202752, "rope_interleave": true, "indexer_rope_interleave": true,
    "attention_bias": false, "tie_word_embeddings": false, "hidden_act": "silu", "num_nextn_predict_layers": 1,
    "index_topk": 2048, "index_n_heads": 32, "index_head_dim": 128,
    "eos_token_id": [154820, 154827, 154829]})",
                    "config.json")
      .as_object();
}

// As ModelOpt writes it for experts in NVFP4 beside 16 bits.
json::value experts_in_nvfp4() {
  return parse_json(R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "producer": {"name": "modelopt"},
    "config_groups": {"group_0": {"targets": ["Linear"],
      "weights": {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": false},
      "input_activations": {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": false}}},
    "ignore": ["lm_head", "model.layers.*.self_attn*", "model.layers.*.mlp.gate", "model.layers.*.mlp.shared_experts*",
      "model.layers.0.*", "model.layers.1.*", "model.layers.2.*", "model.layers.78*"]})",
                    "config.json");
}

constexpr double kMiB = 1 << 20;

TEST_F(InspectCommand, Glm5HasThePublishedSizesWithoutItsPredictionLayer) {
  json::object config = glm5();
  const auto inspect = [&] {
    std::ofstream(folder_ / "bare/config.json") << json::serialize(config);
    ASSERT_EQ(run(bare(), {"--batch", "1,4,16,64"}), 0);
  };
  inspect();
  EXPECT_NEAR(number("parameters", "total"), 743.9e9, 0.05e9);
  EXPECT_NEAR(number("parameters", "experts"), 724.8e9, 0.05e9);
  EXPECT_NEAR(number("parameters", "active"), 40e9, 2e9);
  EXPECT_NEAR(number("parameters", "unused"), 10e9, 0.1e9) << "an MoE layer and a projection, apart";
  EXPECT_EQ(number("bytes", "per_expert"), 72.0 * kMiB);
  EXPECT_NEAR(number("bytes", "weights"), 2 * 743.9e9, 0.1e9);
  const double expected[] = {8, 30.5, 102.0, 222.4};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(row(3 * i).at("policy").as_string(), "topk");
    EXPECT_NEAR(row(3 * i).at("distinct_experts").to_number<double>(), expected[i], 0.05);
  }
  config["quantization_config"] = experts_in_nvfp4();
  inspect();
  EXPECT_EQ(number("bytes", "per_expert"), 20.25 * kMiB);
  EXPECT_EQ(answer_.at("bytes").at("source").as_string(), "assumed nvfp4 routed experts, bf16 the rest");
  EXPECT_NEAR(number("bytes", "weights"), 724.8e9 * 4.5 / 8 + 2 * (743.9e9 - 724.8e9), 0.2e9);
  testing::internal::CaptureStdout();
  EXPECT_EQ(print(bare()), 0);
  const std::string shown = testing::internal::GetCapturedStdout();
  for (const char* part : {"743.91 billion", "20.25 MiB", "1 multi-token prediction layer, 9.95 billion", "30.5"})
    EXPECT_NE(shown.find(part), std::string::npos) << part << "\n" << shown;
}

// The same model as older exports describe it: config.json without a word, and a file beside it.
TEST_F(InspectCommand, AFileBesideTheConfigGivesTheSameSizesAndTheConfigCountsWhereBothSpeak) {
  json::object config = glm5();
  const auto inspect = [&] {
    std::ofstream(folder_ / "bare/config.json") << json::serialize(config);
    ASSERT_EQ(run(bare(), {"--batch", "1"}), 0);
  };
  std::ofstream(folder_ / "bare/hf_quant_config.json") << R"({"producer": {"name": "modelopt", "version": "0.39.0"},
    "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": null, "group_size": 16,
      "exclude_modules": ["lm_head", "model.layers.*.self_attn*", "model.layers.*.mlp.gate",
        "model.layers.*.mlp.shared_experts*", "model.layers.0.*", "model.layers.1.*", "model.layers.2.*",
        "model.layers.78*"]}})";
  inspect();
  EXPECT_EQ(number("bytes", "per_expert"), 20.25 * kMiB);
  const double weights = number("bytes", "weights");
  EXPECT_EQ(answer_.at("bytes").at("source").as_string(), "assumed nvfp4 routed experts, bf16 the rest");
  const auto notes = [&] { return answer_.at("notes").as_array(); };
  EXPECT_EQ(notes().size(), 1u) << "of the prediction layer";
  config["quantization_config"] = experts_in_nvfp4();
  inspect();
  EXPECT_EQ(number("bytes", "weights"), weights) << "both styles of one quantisation";
  EXPECT_EQ(notes().size(), 1u);
  config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  inspect();
  EXPECT_EQ(number("bytes", "per_expert"), 36 * 33.0 / 32 * kMiB) << "panels of fp8 hold a scale beside 32 columns";
  ASSERT_EQ(notes().size(), 2u);
  EXPECT_NE(std::string(notes()[1].as_string()).find("config.json fp8, hf_quant_config.json NVFP4 in groups of 16"),
            std::string::npos)
      << notes()[1].as_string();
  config.erase("quantization_config");
  std::ofstream(folder_ / "bare/hf_quant_config.json") << R"({"quantization": {"quant_algo": "W4A8_AWQ"}})";
  std::ofstream(folder_ / "bare/config.json") << json::serialize(config);
  EXPECT_EQ(run(bare()), static_cast<int>(ErrorKind::kConfig));
}

TEST_F(InspectCommand, Glm52HasFewerIndexers) {
  json::object config = glm5();
  json::array types;
  for (int l = 0; l < 78; ++l) types.emplace_back(std::max(l - 2, 0) % 4 == 0 ? "full" : "shared");
  ASSERT_EQ(std::count(types.begin(), types.end(), json::value("full")), 21);
  config["indexer_types"] = std::move(types);
  config["max_position_embeddings"] = 1048576;
  config["head_dim"] = 192;
  std::ofstream(folder_ / "bare/config.json") << json::serialize(config);
  ASSERT_EQ(run(bare()), 0);
  EXPECT_NEAR(number("parameters", "total"), 743.4e9, 0.05e9);
}

TEST_F(InspectCommand, WhatAQuantizationConfigLeavesOutKeepsTheFormatAskedFor) {
  json::object config = glm5();
  const auto source = [&](const char* quantization) {
    config["quantization_config"] = parse_json(quantization, "test");
    std::ofstream(folder_ / "bare/config.json") << json::serialize(config);
    EXPECT_EQ(run(bare(), {"--batch", "1", "--format", "f32"}), 0);
    return std::string(answer_.at("bytes").at("source").as_string());
  };
  EXPECT_EQ(source(R"({"quant_method": "fp8", "weight_block_size": [128, 128]})"),
            "assumed fp8 routed experts, fp8 shared experts, fp8 dense blocks, fp8 attention, f32 embedding and head");
  EXPECT_EQ(source(R"({"quant_method": "fp8", "weight_block_size": [128, 128],
                       "modules_to_not_convert": ["self_attn", "mlp.shared_experts", "lm_head"]})"),
            "assumed fp8 routed experts, f32 shared experts, fp8 dense blocks, f32 attention, f32 embedding and head");
  EXPECT_EQ(
      source(R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["model.layers.77*"]})"),
      "assumed f32 routed experts, f32 shared experts, nvfp4 dense blocks, f32 attention, f32 embedding and head");
  // Algorithms by their weights, and by module.
  EXPECT_EQ(
      source(R"({"quant_method": "modelopt", "config_groups": {"group_0": {"targets": ["Linear"], "weights":
                       {"num_bits": 4, "type": "float", "group_size": 16}}}, "ignore": ["re:.*self_attn.*"]})"),
      "assumed nvfp4 routed experts, nvfp4 shared experts, nvfp4 dense blocks, f32 attention, f32 embedding and head");
  EXPECT_EQ(
      source(R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {
                       "model.layers.77.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16},
                       "model.layers.77.self_attn.o_proj": {"quant_algo": "FP8"}}})"),
      "assumed nvfp4 routed experts, f32 shared experts, f32 dense blocks, fp8 attention, f32 embedding and head");
  EXPECT_EQ(source(R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head",
                       "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
                       "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int",
                       "group_size": 32}}}})"),
            "assumed int4 routed experts, f32 the rest");
  EXPECT_EQ(
      source(R"({"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": {
                       "a": {"targets": ["re:.*self_attn.*"], "format": "float-quantized", "weights": {"num_bits": 8,
                       "type": "float"}}, "b": {"targets": ["re:.*experts.*"], "format": "mxfp4-pack-quantized",
                       "weights": {"num_bits": 4, "type": "float", "group_size": 32}}}})"),
      "assumed mxfp4 routed experts, mxfp4 shared experts, f32 dense blocks, fp8 attention, f32 embedding and head");
}

}  // namespace
}  // namespace carpool
