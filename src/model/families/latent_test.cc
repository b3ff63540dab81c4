// Configurations of DeepSeek and GLM models: what they say in several ways, and what is refused.
#include "model/families/latent.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/model_copy_test_util.h"

namespace carpool {
namespace {

using golden::ModelCopy;

using Change = std::pair<const char*, const char*>;

ModelConfig changed(const std::string& name, const std::vector<Change>& changes) {
  const ModelCopy copy(name);
  for (const auto& [key, value] : changes) copy.set(key, value);
  return read_model_config(copy.path());
}

void expect_refused(const std::string& name, const std::vector<Change>& changes, ErrorKind kind,
                    const std::string& part) {
  try {
    changed(name, changes);
    ADD_FAILURE() << "accepted; expected a sentence with: " << part;
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), static_cast<int>(kind)) << e.what();
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

constexpr const char* kGlm = "glm_moe_dsa/glm5";

TEST(LatentConfig, SizesFollowFromTheParts) {
  const ModelConfig c = changed(kGlm, {{"head_dim", "1000"}});
  EXPECT_EQ(c.head_dim, 32 + 8) << "head_dim of the file is not read";
  EXPECT_EQ(c.value_dim, 32);
  EXPECT_EQ(c.kv_heads, 1);
  EXPECT_EQ(c.rope.dims, 8);
  EXPECT_TRUE(c.rope.interleaved);
  EXPECT_FLOAT_EQ(c.attention_scale, 1 / std::sqrt(20.0f));
  EXPECT_FLOAT_EQ(c.indexer->scale, 1 / std::sqrt(16.0f * 6));
  EXPECT_TRUE(c.indexer->interleaved);
  EXPECT_EQ(c.unused_layers, 1);
}

TEST(LatentConfig, RanksAndValuesThatAreNoWholePanelsAreRefused) {
  expect_refused(kGlm, {{"kv_lora_rank", "24"}}, ErrorKind::kConfig,
                 "\"kv_lora_rank\": 24 is not supported; supported: multiples of 16");
  expect_refused(kGlm, {{"v_head_dim", "20"}}, ErrorKind::kConfig, "\"v_head_dim\": 20 is not supported");
  expect_refused(kGlm, {{"qk_rope_head_dim", "7"}}, ErrorKind::kMalformed, "must be even");
  expect_refused(kGlm, {{"index_head_dim", "6"}}, ErrorKind::kMalformed, "less than qk_rope_head_dim 8");
  expect_refused(kGlm, {{"attention_bias", "true"}}, ErrorKind::kConfig, "\"attention_bias\"");
  expect_refused(kGlm, {{"q_lora_rank", "null"}}, ErrorKind::kMalformed, "the indexer reads what it makes");
}

TEST(LatentConfig, LayersThatShareAChoiceAreNamedByTypesThenPatternThenFrequency) {
  const auto own = [](const std::vector<Change>& changes) {
    std::vector<Change> all = {{"num_hidden_layers", "8"}};
    all.insert(all.end(), changes.begin(), changes.end());
    std::string text;
    const ModelConfig c = changed(kGlm, all);
    for (const bool full : c.indexer->own) text += full ? 'F' : 'S';
    return text;
  };
  const Change pattern{"index_topk_pattern", "\"FSSFFSFS\""}, every{"index_topk_freq", "4"};
  EXPECT_EQ(own({}), "FFFFFFFF");
  EXPECT_EQ(own({every}), "FFSSSFSS") << "without an offset it is 2";
  EXPECT_EQ(own({every, {"index_skip_topk_offset", "3"}}), "FFFSSSFS");
  EXPECT_EQ(own({every, pattern}), "FSSFFSFS");
  EXPECT_EQ(own({every, {"index_topk_pattern", "null"}}), "FFSSSFSS");
  EXPECT_EQ(own({every, pattern, {"indexer_types", R"(["full","full","shared","full","full","full","full","full"])"}}),
            "FFSFFFFF");
  expect_refused(kGlm, {{"indexer_types", R"(["shared","full","full"])"}}, ErrorKind::kMalformed,
                 "the first layer has no earlier layer");
  expect_refused(kGlm, {{"indexer_types", R"(["full"])"}}, ErrorKind::kMalformed, "each of 3 layers, has 1");
  expect_refused(kGlm, {{"indexer_types", R"(["full","half","full"])"}}, ErrorKind::kMalformed,
                 "must be \"full\" or \"shared\", found");
  expect_refused(kGlm, {{"index_topk_pattern", "\"FXF\""}}, ErrorKind::kMalformed, "an F or S for each of 3 layers");
}

TEST(LatentConfig, DenseLayersAreNamedByTypesOrComeFirst) {
  EXPECT_EQ(changed(kGlm, {}).moe_layer, (std::vector<bool>{false, true, true}));
  EXPECT_EQ(changed(kGlm, {{"first_k_dense_replace", "2"}}).moe_layer, (std::vector<bool>{false, false, true}));
  EXPECT_EQ(changed(kGlm, {{"mlp_layer_types", R"(["sparse","dense","sparse"])"}}).moe_layer,
            (std::vector<bool>{true, false, true}));
  EXPECT_EQ(changed("deepseek_v3/v3", {{"moe_layer_freq", "2"}}).moe_layer, (std::vector<bool>{false, false, true}));
  expect_refused(kGlm, {{"mlp_layer_types", R"(["dense"])"}}, ErrorKind::kMalformed, "each of 3 layers, has 1");
}

TEST(LatentConfig, RulesOfChoosingThatAreNotThisFamilysAreRefused) {
  expect_refused(kGlm, {{"scoring_func", "\"softmax\""}}, ErrorKind::kConfig, "supported: sigmoid");
  expect_refused(kGlm, {{"topk_method", "\"greedy\""}}, ErrorKind::kConfig, "supported: noaux_tc");
  expect_refused("deepseek_v3/v3", {{"n_group", "3"}}, ErrorKind::kMalformed, "does not divide 16 experts");
  expect_refused("deepseek_v2/v2", {{"norm_topk_prob", "true"}}, ErrorKind::kConfig, "\"norm_topk_prob\"");
  expect_refused("deepseek_v2/v2", {{"scoring_func", "\"sigmoid\""}}, ErrorKind::kConfig, "supported: softmax");
}

TEST(LatentConfig, YarnScalesAttentionByTheSquareOfItsMagnitude) {
  const ModelConfig v3 = changed("deepseek_v3/v3", {});
  const double magnitude = 0.1 * std::log(8.0) + 1;
  EXPECT_FLOAT_EQ(v3.attention_scale, static_cast<float>(magnitude * magnitude / std::sqrt(20.0)));
  EXPECT_EQ(v3.rope.attention_factor, 1);
  const ModelConfig plain = changed("deepseek_v3/v3", {{"rope_scaling", "null"}});
  EXPECT_FLOAT_EQ(plain.attention_scale, 1 / std::sqrt(20.0f));
  EXPECT_FALSE(changed("deepseek_v3/direct_queries", {}).rope.interleaved);
}

TEST(LatentConfig, KimiK2IsTheSameArchitecture) {
  const ModelConfig c = changed("kimi_k2/kimi_k2", {});
  EXPECT_EQ(c.family, "kimi_k2");
  EXPECT_FLOAT_EQ(c.scoring.routed_scaling_factor, 2.827f);
  EXPECT_EQ(c.scoring.n_group, 1);
}

TEST(LatentConfig, NotesAreForWhoeverLoadsTheModel) {
  const ModelConfig c = changed("deepseek_v3/v3", {{"num_nextn_predict_layers", "2"}});
  ASSERT_EQ(c.notes.size(), 1u);
  EXPECT_EQ(c.notes[0], "2 multi-token prediction layers are not run");
}

}  // namespace
}  // namespace carpool
