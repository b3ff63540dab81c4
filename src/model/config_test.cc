// config.json and the tensors it asks for: every refused file ends in one sentence that names the field or the tensor.
//
// Works on copies of the tiny golden models in a temporary folder, changed in one place each.
#include "model/config.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "model/model_copy_test_util.h"

namespace carpool {
namespace {

using golden::ModelCopy;

LoadOptions load_options(bool check_finite) {
  LoadOptions options;
  options.threads = 1;
  options.isa = "scalar";
  options.check_finite = check_finite;
  return options;
}

void expect_refused(const std::string& directory, ErrorKind kind, const std::string& part) {
  try {
    Model::load(directory, load_options(true));
    ADD_FAILURE() << "loaded; expected a sentence with: " << part;
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), static_cast<int>(kind)) << e.what();
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << "one line";
  }
}

void expect_config_refused(const std::string& key, const std::string& value, const std::string& part,
                           ErrorKind kind = ErrorKind::kMalformed, const std::string& model = "float32_untied") {
  SCOPED_TRACE(key + " = " + value);
  const ModelCopy copy(model);
  copy.set(key, value);
  expect_refused(copy.path(), kind, part);
}

// K1, K2, K3, K4 of the catalogue of bad inputs.
TEST(ModelConfig, ValuesOutOfRangeAreRefusedWithTheirKey) {
  expect_config_refused("num_experts_per_tok", "0", "\"num_experts_per_tok\": must be 1 to 8, got 0");
  expect_config_refused("num_experts_per_tok", "-1", "\"num_experts_per_tok\"");
  expect_config_refused("num_experts_per_tok", "9", "must be 1 to 8, got 9");
  expect_config_refused("num_experts", "0", "\"num_experts\"");
  expect_config_refused("num_experts", "1000000", "\"num_experts\"");
  expect_config_refused("num_hidden_layers", "1000000", "\"num_hidden_layers\"");
  expect_config_refused("num_hidden_layers", "0", "\"num_hidden_layers\"");
  expect_config_refused("num_attention_heads", "0", "\"num_attention_heads\"");
  expect_config_refused("num_key_value_heads", "3", "3 does not divide num_attention_heads 4");
  expect_config_refused("head_dim", "15", "\"head_dim\": must be even");
  expect_config_refused("head_dim", "0", "\"head_dim\"");
  expect_config_refused("vocab_size", "-5", "\"vocab_size\"");
  expect_config_refused("hidden_size", "4294967296", "\"hidden_size\"");
  expect_config_refused("decoder_sparse_step", "0", "\"decoder_sparse_step\"");
  expect_config_refused("mlp_only_layers", "[7]", "\"mlp_only_layers\": must be layers of 0 to 1, found 7");
  expect_config_refused("mlp_only_layers", "[\"a\"]", "\"mlp_only_layers\"");
  expect_config_refused("eos_token_id", "96", "\"eos_token_id\": must be ids of 0 to 95, found 96");
  expect_config_refused("eos_token_id", "[1, -2]", "\"eos_token_id\"");
  expect_config_refused("rms_norm_eps", "0", "\"rms_norm_eps\"");
  expect_config_refused("rope_theta", "-1", "\"rope_theta\"");
}

TEST(ModelConfig, AHeadWidthThatFollowsFromOtherValuesIsCheckedToo) {
  const ModelCopy copy("float32_untied");
  copy.set("head_dim", "");
  copy.set("hidden_size", "96");
  for (const auto& [heads, derived] : {std::pair{"128", "0"}, std::pair{"96", "1"}, std::pair{"32", "3"}}) {
    copy.set("num_attention_heads", heads);
    copy.set("num_key_value_heads", heads);
    expect_refused(copy.path(), ErrorKind::kMalformed,
                   std::string("\"head_dim\": must be even for rotary embedding, 2 to 4096, got ") + derived +
                       " (hidden_size / num_attention_heads)");
  }
  copy.set("num_attention_heads", "1");
  copy.set("num_key_value_heads", "1");
  copy.set("hidden_size", "131072");
  expect_refused(copy.path(), ErrorKind::kMalformed, "2 to 4096, got 131072");
}

TEST(ModelConfig, SamplingDefaultsOutOfRangeAreRefusedAtLoadAndMinusOneMeansAll) {
  const auto refused = [](const char* key, const char* value) {
    const ModelCopy copy("float32_untied");
    copy.set(key, value, "generation_config.json");
    expect_refused(copy.path(), ErrorKind::kMalformed,
                   std::string("generation_config.json: \"") + key + "\": must be ");
  };
  refused("top_p", "0");
  refused("top_p", "1e-60");  // zero as float32
  refused("top_p", "1.5");
  refused("top_p", "-0.1");
  refused("top_k", "-2");
  const ModelCopy copy("float32_untied");
  copy.set("top_k", "-1", "generation_config.json");
  EXPECT_EQ(read_model_config(copy.path()).sampling.top_k, 0);
}

TEST(ModelConfig, FilesThatCannotBeFollowedAreMissingAndNotIgnored) {
  const ModelCopy copy("float32_untied");
  std::filesystem::remove(copy.path() + "/generation_config.json");
  std::filesystem::create_symlink("generation_config.json", copy.path() + "/generation_config.json");  // to itself
  expect_refused(copy.path(), ErrorKind::kMissing, "generation_config.json");
  std::filesystem::remove(copy.path() + "/config.json");
  std::filesystem::create_directory(copy.path() + "/config.json");
  expect_refused(copy.path(), ErrorKind::kMissing, "config.json: not a regular file");
}

TEST(ModelConfig, WrongTypesAndMissingKeysAreRefusedWithTheirKey) {
  expect_config_refused("hidden_size", "\"48\"", "\"hidden_size\": expected an integer, found a string");
  expect_config_refused("hidden_size", "48.5", "\"hidden_size\": expected an integer");
  expect_config_refused("hidden_size", "", "\"hidden_size\": missing");
  expect_config_refused("num_experts", "", "\"num_local_experts\": missing");
  expect_config_refused("norm_topk_prob", "1", "\"norm_topk_prob\": expected true or false");
  expect_config_refused("vocab_size", "null", "\"vocab_size\": expected an integer, found null");
}

TEST(ModelConfig, UnsupportedFeaturesAreRefusedWithWhatIsSupported) {
  expect_config_refused("model_type", "\"mamba\"", "supported: qwen3_moe (Qwen3MoeForCausalLM)", ErrorKind::kConfig);
  expect_config_refused("hidden_act", "\"gelu\"", "supported: silu", ErrorKind::kConfig);
  expect_config_refused("use_sliding_window", "true", "\"use_sliding_window\"", ErrorKind::kConfig);
  expect_config_refused("rope_scaling", "{\"rope_type\": \"dynamic\", \"factor\": 4}",
                        "type \"dynamic\" is not supported; supported: default, linear, yarn, llama3",
                        ErrorKind::kConfig);
  expect_config_refused("quantization_config", "{\"quant_method\": \"gptq\"}", "\"quantization_config\"",
                        ErrorKind::kConfig);
}

TEST(ModelConfig, BrokenJsonIsRefusedWithItsByte) {
  const ModelCopy copy("float32_untied");
  const std::string good = copy.read("config.json");
  for (size_t n = 0; n < good.size() - 2; n += 7) {
    copy.write("config.json", good.substr(0, n));
    expect_refused(copy.path(), ErrorKind::kMalformed, "config.json");
  }
  copy.write("config.json", good + "{}");
  expect_refused(copy.path(), ErrorKind::kMalformed, "byte");
  copy.write("config.json", "{\"hidden_size\": 1, \"hidden_size\": 2}");
  expect_refused(copy.path(), ErrorKind::kMalformed, "duplicate key \"hidden_size\"");
  copy.write("config.json", std::string(2000, '['));
  expect_refused(copy.path(), ErrorKind::kMalformed, "nested deeper than 64");
  std::filesystem::remove(copy.path() + "/config.json");
  expect_refused(copy.path(), ErrorKind::kMissing, "config.json: no such file");
}

TEST(ModelConfig, EndTokensAreTheUnionOfBothFilesAndSamplingDefaultsAreRead) {
  const ModelCopy copy("float32_untied");
  copy.set("eos_token_id", "[3, 5]");
  copy.set("eos_token_id", "[5, 9]", "generation_config.json");
  copy.set("temperature", "0.7", "generation_config.json");
  copy.set("top_p", "0.9", "generation_config.json");
  copy.set("top_k", "20", "generation_config.json");
  const ModelConfig config = read_model_config(copy.path());
  EXPECT_EQ(config.eos_ids, (std::vector<int>{3, 5, 9}));
  EXPECT_FLOAT_EQ(config.sampling.temperature, 0.7f);
  EXPECT_FLOAT_EQ(config.sampling.top_p, 0.9f);
  EXPECT_EQ(config.sampling.top_k, 20);
  copy.set("do_sample", "false", "generation_config.json");
  EXPECT_EQ(read_model_config(copy.path()).sampling.temperature, 0);
}

// S9: shapes that the config does not expect, tensors that are missing or left over, all listed at once.
TEST(ModelTensors, MissingMisshapenAndUnexpectedTensorsAreListed) {
  {
    const ModelCopy copy("float32_untied");
    copy.set("moe_intermediate_size", "24");
    expect_refused(copy.path(), ErrorKind::kMalformed,
                   "gate_proj.weight\" has shape [20, 32], the config needs [24, 32]");
  }
  {
    const ModelCopy copy("float32_untied");
    copy.set("num_hidden_layers", "3");
    expect_refused(copy.path(), ErrorKind::kMalformed, "\"model.layers.2.input_layernorm.weight\" is missing");
  }
  {
    const ModelCopy copy("float32_untied");
    copy.set("num_hidden_layers", "1");
    expect_refused(copy.path(), ErrorKind::kMalformed, "is not part of this model");
  }
  {
    const ModelCopy copy("float32_untied");
    copy.set("tie_word_embeddings", "true");
    expect_refused(copy.path(), ErrorKind::kMalformed,
                   "1 tensor cannot be used: \"lm_head.weight\" is not part of this model");
  }
}

// N1: one non-finite value anywhere.
TEST(ModelTensors, ASingleNanIsFoundNamedAndAcceptedOnlyOnRequest) {
  const ModelCopy copy("float32_untied");
  std::string file = copy.read("model.safetensors");
  const float nan = NAN;
  std::memcpy(file.data() + file.size() - 4 * 5, &nan, 4);
  copy.write("model.safetensors", file);
  expect_refused(copy.path(), ErrorKind::kMalformed, "has 1 values that are NaN or infinite");
  EXPECT_NO_THROW(Model::load(copy.path(), load_options(false)));
}

TEST(ModelTensors, AnUnsupportedDtypeIsRefusedAndNeverReinterpreted) {
  const ModelCopy copy("float32_untied");
  std::string file = copy.read("model.safetensors");
  for (size_t at = 0; (at = file.find("\"F32\"", at)) != std::string::npos; ++at) file.replace(at, 5, "\"I32\"");
  copy.write("model.safetensors", file);
  expect_refused(copy.path(), ErrorKind::kMalformed, "has dtype I32, supported: f32, bf16");
}

}  // namespace
}  // namespace carpool
