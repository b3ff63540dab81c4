// What config.json and hf_quant_config.json may say about quantisation, and what is refused by name.
#include "model/quantization_config.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "io/test_files.h"

namespace carpool {
namespace {

using namespace test;

std::string config_of(const std::string& quantization) { return R"({"quantization_config": )" + quantization + "}"; }

void check(const std::string& text) {
  const json::value root = parse_json(text, "config.json");
  check_quantization_config(JsonObject(root, "config.json"));
}

TEST(QuantizationConfig, WhatPublishedCheckpointsSayIsAccepted) {
  check("{}");
  for (
      const char* q : {
          R"({"quant_method": "fp8", "weight_block_size": [128, 128]})",
          R"({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})",
          R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})",
          R"({"quant_method": "modelopt", "quant_algo": "FP8"})",
          R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": {"num_bits": 8, "type": "float"},
               "ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"], "weights":
               {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": false}}}})",
          R"({"quant_method": "modelopt", "config_groups": {"group_0": {"weights":
               {"num_bits": 4, "type": "float", "group_size": 16}}}})",
          R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {
               "model.layers.0.mlp": {"quant_algo": "NVFP4", "group_size": 16}, "lm_head": {"quant_algo": "FP8"}}})",
          R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights":
               {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group", "symmetric": true}}}})",
          R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {"group_0":
               {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}, "sparsity_config": {}})",
          R"({"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": {
               "group_0": {"format": "float-quantized", "weights": {"num_bits": 8, "type": "float"}},
               "group_1": {"format": "mxfp4-pack-quantized", "weights": {"num_bits": 4, "type": "float",
               "group_size": 32}}}})",
      }) {
    EXPECT_NO_THROW(check(config_of(q))) << q;
  }
}

TEST(QuantizationConfig, OtherLayoutsAreRefusedByNameWithWhatIsSupported) {
  for (
      const auto& [q, what] : {
          std::pair{R"({"quant_method": "awq"})", "the quantisation method \"awq\" is not supported"},
          {R"({})", "the quantisation method \"\" is not supported"},
          {R"({"quant_method": "fp8", "weight_block_size": [64, 64]})", "fp8 in blocks of [64,64]"},
          {R"({"quant_method": "modelopt"})", "modelopt without \"quant_algo\""},
          {R"({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"})", "the algorithm \"NVFP4_AWQ\" of modelopt"},
          {R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32})",
           "NVFP4 in groups of 32 values, not 16, is not supported"},
          {R"({"quant_method": "modelopt", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float",
                "group_size": 32}}}})",
           "NVFP4 in groups of 32"},
          {R"({"quant_method": "modelopt", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}})",
           "\"group_0\" of 4 bits"},
          {R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"x": {"quant_algo":
                "W4A8_AWQ"}}})",
           "the algorithm \"W4A8_AWQ\" of modelopt"},
          {R"({"quant_method": "compressed-tensors", "format": "marlin-24", "config_groups": {"group_0": {"weights":
                {"num_bits": 4}}}})",
           "the format \"marlin-24\" of compressed-tensors"},
          {R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights":
                {"num_bits": 3}}}})",
           "pack-quantized of 3 bits"},
          {R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights":
                {"num_bits": 4, "group_size": 16}}}})",
           "pack-quantized in groups of 16"},
          {R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "transform_config": {"a": 1}})",
           "\"transform_config\" is not supported"},
          {R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "sparsity_config": {"format":
                "sparse-24-bitmask"}})",
           "\"sparsity_config\" is not supported"},
      }) {
    const std::string sentence = error_of(ErrorKind::kConfig, [&] { check(config_of(q)); });
    EXPECT_TRUE(contains(sentence, what)) << sentence;
    EXPECT_TRUE(contains(sentence, "supported: fp8 in blocks of 128 x 128; mxfp4; modelopt NVFP4")) << sentence;
  }
}

class QuantizationFiles : public testing::Test {
 protected:
  std::vector<std::string> notes(const std::string& config, const std::string& beside) {
    folder_.write("hf_quant_config.json", beside);
    const json::value root = parse_json(config, "config.json");
    return check_quantization(JsonObject(root, "config.json"), folder_.path());
  }
  ScratchFolder folder_;
};

constexpr const char* kNvfp4 = R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4",
    "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}})";

TEST_F(QuantizationFiles, TheFileBesideTheConfigCountsWhereTheConfigSaysNothing) {
  EXPECT_TRUE(notes("{}", kNvfp4).empty());
  EXPECT_TRUE(notes("{}", R"({"quantization": {"quant_algo": null, "kv_cache_quant_algo": "FP8"}})").empty());
  const std::string what = error_of(
      ErrorKind::kConfig, [&] { notes("{}", R"({"quantization": {"quant_algo": "W4A8_AWQ", "group_size": 128}})"); });
  EXPECT_TRUE(contains(what, "hf_quant_config.json")) << what;
  EXPECT_TRUE(contains(what, "the algorithm \"W4A8_AWQ\" of modelopt is not supported")) << what;
}

TEST_F(QuantizationFiles, WhereBothSayDifferentThingsTheConfigCountsAndANoteSaysSo) {
  const std::string same = config_of(R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]})");
  EXPECT_TRUE(notes(same, kNvfp4).empty());
  const auto fp8 =
      notes(config_of(R"({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]})"), kNvfp4);
  ASSERT_EQ(fp8.size(), 1u);
  EXPECT_TRUE(contains(fp8[0],
                       "say different things about quantisation (config.json FP8, hf_quant_config.json NVFP4 in "
                       "groups of 16): config.json counts, and the tensors themselves"))
      << fp8[0];
  const auto lists = notes(config_of(R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": []})"), kNvfp4);
  ASSERT_EQ(lists.size(), 1u);
  EXPECT_TRUE(contains(lists[0], "(the modules that they leave out differ): config.json counts"));
  // What the losing file says is not held against the model.
  EXPECT_EQ(notes(same, R"({"quantization": {"quant_algo": "W4A8_AWQ"}})").size(), 1u);
  // Nor is a method held to the words of another.
  const auto packed = notes(config_of(R"({"quant_method": "compressed-tensors", "format": "pack-quantized",
      "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}}})"),
                            kNvfp4);
  ASSERT_EQ(packed.size(), 1u);
  EXPECT_TRUE(contains(packed[0], "(config.json compressed-tensors, hf_quant_config.json NVFP4 in groups of 16)"));
}

TEST_F(QuantizationFiles, WhatIsStatedIsTheConfigsAndElseTheFilesBesideIt) {
  const auto stated = [&](const std::string& config) {
    const json::value root = parse_json(config, "config.json");
    return stated_quantization(JsonObject(root, "config.json"), folder_.path());
  };
  EXPECT_FALSE(stated("{}"));
  folder_.write("hf_quant_config.json", kNvfp4);
  const auto beside = stated("{}");
  ASSERT_TRUE(beside);
  EXPECT_EQ(beside->keys.at("exclude_modules"), (json::array{"lm_head"}));
  EXPECT_TRUE(contains(beside->where, "hf_quant_config.json")) << beside->where;
  const auto own = stated(config_of(R"({"quant_method": "fp8"})"));
  ASSERT_TRUE(own);
  EXPECT_EQ(own->keys, (json::object{{"quant_method", "fp8"}}));
  EXPECT_TRUE(contains(own->where, "config.json: \"quantization_config\"")) << own->where;
  for (const char* broken : {"", "[]", R"({"quantisation": {}})", R"({"quantization": "NVFP4"})"}) {
    folder_.write("hf_quant_config.json", broken);
    const std::string what = error_of(ErrorKind::kMalformed, [&] { stated("{}"); });
    EXPECT_TRUE(contains(what, "hf_quant_config.json: ")) << what;
  }
}

}  // namespace
}  // namespace carpool
