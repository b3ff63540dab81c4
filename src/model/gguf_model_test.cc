// GGUF files as models: names both ways, configuration from metadata, and files that the gguf package wrote.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "base/source_dir_test_util.h"
#include "io/test_files.h"
#include "io/test_gguf.h"
#include "model/config.h"
#include "model/gguf_config.h"
#include "model/gguf_names.h"
#include "model/stored_matrix.h"

namespace carpool {
namespace {

using namespace test;

const std::string kSource = source_dir();
const GgufArchitecture& qwen3moe() { return *gguf_architecture_of("qwen3_moe"); }

TEST(GgufNames, EveryCheckpointNameHasOneInGgufAndComesBack) {
  for (const auto& [checkpoint, gguf, expert] : std::vector<std::tuple<std::string, std::string, int>>{
           {"model.embed_tokens.weight", "token_embd.weight", -1},
           {"model.norm.weight", "output_norm.weight", -1},
           {"lm_head.weight", "output.weight", -1},
           {"model.layers.3.self_attn.q_proj.weight", "blk.3.attn_q.weight", -1},
           {"model.layers.3.self_attn.q_proj.bias", "blk.3.attn_q.bias", -1},
           {"model.layers.47.self_attn.k_norm.weight", "blk.47.attn_k_norm.weight", -1},
           {"model.layers.0.self_attn.o_proj.weight_scale_2", "blk.0.attn_output.scale", -1},
           {"model.layers.0.mlp.gate.weight", "blk.0.ffn_gate_inp.weight", -1},
           {"model.layers.0.mlp.gate_proj.weight", "blk.0.ffn_gate.weight", -1},
           {"model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight", -1},
           {"model.layers.12.mlp.experts.127.down_proj.weight", "blk.12.ffn_down_exps.weight", 127},
           {"model.layers.12.mlp.experts.0.gate_proj.weight_scale_2", "blk.12.ffn_gate_exps.scale", 0}}) {
    const auto name = gguf_name(qwen3moe(), checkpoint);
    ASSERT_TRUE(name) << checkpoint;
    EXPECT_EQ(name->name, gguf);
    EXPECT_EQ(name->expert, expert) << checkpoint;
    const GgufPlace place = checkpoint_place(qwen3moe(), gguf);
    EXPECT_EQ(place.sliced, expert >= 0) << gguf;
    EXPECT_EQ(place.scalar, gguf.ends_with(".scale")) << gguf;
    EXPECT_EQ(place.before + (expert >= 0 ? std::to_string(expert) : "") + place.after, checkpoint);
  }
}

TEST(GgufNames, WhatIsInNoTableKeepsItsName) {
  for (const char* name : {"blk.0.ssm_a", "blk.x.attn_q.weight", "blk.01.attn_q.weight", "attn_q.weight",
                           "blk.0.token_embd.weight", "blk.-1.attn_q.weight", "rope_freqs.weight", ""}) {
    const GgufPlace place = checkpoint_place(qwen3moe(), name);
    EXPECT_EQ(place.before + place.after, name);
    EXPECT_FALSE(place.sliced);
  }
  for (const char* name :
       {"model.layers.0.mlp.experts.x.up_proj.weight", "model.layers.0.mlp.experts.1.up_proj",
        "model.layers.0.mlp.router.weight", "lm_head", "model.layers.0.mlp.experts.01.up_proj.weight"}) {
    EXPECT_FALSE(gguf_name(qwen3moe(), name)) << name;
  }
  EXPECT_EQ(gguf_architecture_of("mamba"), nullptr);
}

uint64_t fnv(const std::vector<float>& values) {
  uint64_t h = 0xCBF29CE484222325ull;
  for (const char c : std::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float))) {
    h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  }
  return h;
}

// Written by python/golden/make_gguf.py with the gguf package, in two parts, as bf16, q8_0 and f32 in turn.
const std::string kFixture = kSource + "/tests/golden/gguf/model-00002-of-00002.gguf";

TEST(GgufFixture, EveryTensorDecodesToTheBitsOfTheReference) {
  const json::value golden = parse_json(read_text_file(kSource + "/tests/golden/gguf/model.json"), "model.json");
  const WeightSource source = open_weights(kFixture);
  const json::object& expected = golden.at("tensors").as_object();
  ASSERT_GT(expected.size(), 60u);
  EXPECT_EQ(source.tensors().size(), expected.size());
  for (const auto& [name, facts] : expected) {
    const TensorInfo* tensor = source.find(std::string(name));
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(tensor->shape, json::value_to<std::vector<int64_t>>(facts.at("shape"))) << name;
    const WeightView view = stored_matrix(source, *tensor).view;
    std::vector<float> values(static_cast<size_t>(view.rows * view.cols));
    for (int64_t r = 0; r < view.rows; ++r) decode_row(view, r, values.data() + r * view.cols);
    EXPECT_EQ(fmt::format("{:016x}", fnv(values)), std::string(facts.at("fnv").as_string())) << name;
    EXPECT_EQ(scan_non_finite(*tensor).count, 0u);
  }
}

TEST(GgufFixture, TheConfigurationIsThatOfTheDirectoryItCameFrom) {
  const ModelConfig a = read_model_config(kFixture);
  const ModelConfig b = read_model_config(kSource + "/tests/golden/qwen3_moe/saved_by_transformers5");
  EXPECT_EQ(a.family, b.family);
  EXPECT_EQ(a.vocab, b.vocab);
  EXPECT_EQ(a.width, b.width);
  EXPECT_EQ(a.layers, b.layers);
  EXPECT_EQ(a.heads, b.heads);
  EXPECT_EQ(a.kv_heads, b.kv_heads);
  EXPECT_EQ(a.head_dim, b.head_dim);
  EXPECT_EQ(a.context, b.context);
  EXPECT_EQ(a.norm_eps, b.norm_eps);
  EXPECT_EQ(a.rope.theta, b.rope.theta);
  EXPECT_EQ(a.tied_head, b.tied_head);
  EXPECT_EQ(a.qkv_bias, b.qkv_bias);
  EXPECT_EQ(a.moe_layer, b.moe_layer);
  EXPECT_EQ(a.expert_width, b.expert_width);
  EXPECT_EQ(a.n_experts, b.n_experts);
  EXPECT_EQ(a.top_k, b.top_k);
  EXPECT_EQ(a.scoring.renormalize, b.scoring.renormalize);
}

// Metadata of a model of two layers, the second dense; keys by name, so that a test can change one.
struct Metadata {
  std::map<std::string, std::string> keys;
  std::vector<GgufPart> tensors;

  Metadata() {
    keys["general.architecture"] = gguf_text("general.architecture", "qwen3moe");
    for (const auto& [key, value] : std::map<std::string, uint32_t>{{"block_count", 2},
                                                                    {"context_length", 64},
                                                                    {"embedding_length", 32},
                                                                    {"feed_forward_length", 48},
                                                                    {"attention.head_count", 4},
                                                                    {"attention.head_count_kv", 2},
                                                                    {"attention.key_length", 8},
                                                                    {"attention.value_length", 8},
                                                                    {"expert_count", 8},
                                                                    {"expert_used_count", 3},
                                                                    {"expert_feed_forward_length", 12}}) {
      set(key, value);
    }
    set_raw("attention.layer_norm_rms_epsilon", 6, raw(1e-5f));
    tensors = {{"token_embd.weight", 0, {1, 10}, std::string(40, '\0'), {}},
               {"blk.0.ffn_gate_inp.weight", 0, {1}, "1234", {}}};
  }
  void set(const std::string& key, uint32_t value) { set_raw(key, 4, raw(value)); }
  void set_raw(const std::string& key, uint32_t type, const std::string& value) {
    const bool whole = key.starts_with("tokenizer") || key.starts_with("general") || key.starts_with("carpool");
    const std::string full = whole ? key : "qwen3moe." + key;
    keys[full] = gguf_key(full, type, value);
  }
  std::string bytes() const {
    GgufParts f;
    for (const auto& [key, bytes] : keys) f.keys.push_back(bytes);
    f.tensors = tensors;
    return f.bytes();
  }
};

class GgufConfig : public testing::Test {
 protected:
  ModelConfig read(const Metadata& m) { return read_model_config(folder_.write("m.gguf", m.bytes())); }
  std::string refusal(const Metadata& m, ErrorKind kind = ErrorKind::kMalformed) {
    const std::string what = error_of(kind, [&] { read(m); });
    EXPECT_TRUE(contains(what, "m.gguf")) << what;
    return what;
  }
  std::string refusal(const std::string& key, uint32_t value, ErrorKind kind = ErrorKind::kMalformed) {
    Metadata m;
    m.set(key, value);
    return refusal(m, kind);
  }
  ScratchFolder folder_;
};

TEST_F(GgufConfig, WhatMetadataDoesNotSayFollowsFromTensorsAndConvention) {
  const ModelConfig c = read(Metadata());
  EXPECT_EQ(c.vocab, 10);
  EXPECT_TRUE(c.tied_head) << "there is no output.weight";
  EXPECT_EQ(c.moe_layer, (std::vector<bool>{true, false})) << "layer 1 has no router";
  EXPECT_EQ(c.dense_width, 48);
  EXPECT_TRUE(c.scoring.renormalize) << "as models of this architecture do";
  EXPECT_EQ(c.rope.theta, 10000);
  EXPECT_TRUE(c.eos_ids.empty());
  EXPECT_EQ(c.sampling.temperature, 0);
  Metadata m;
  m.set_raw("expert_weights_norm", 7, raw(uint8_t{0}));
  m.tensors.push_back({"output.weight", 0, {1}, "1234", {}});
  m.tensors.push_back({"blk.0.attn_q.bias", 0, {1}, "1234", {}});
  const ModelConfig d = read(m);
  EXPECT_FALSE(d.scoring.renormalize);
  EXPECT_FALSE(d.tied_head);
  EXPECT_TRUE(d.qkv_bias && d.o_bias);
}

TEST_F(GgufConfig, EndTokensAndSamplingDefaultsAreRead) {
  Metadata m;
  m.set("tokenizer.ggml.eos_token_id", 3);
  m.set("tokenizer.ggml.eot_token_id", 3);
  m.set("tokenizer.ggml.eom_token_id", 1);
  m.set_raw("carpool.end_token_ids", 9, raw(uint32_t{5}) + raw(uint64_t{2}) + raw(int32_t{3}) + raw(int32_t{9}));
  m.set_raw("general.sampling.temp", 6, raw(0.5f));
  m.set_raw("general.sampling.top_p", 6, raw(0.25f));
  m.set("general.sampling.top_k", 7);
  const ModelConfig c = read(m);
  EXPECT_EQ(c.eos_ids, (std::vector<int>{3, 1, 9}));
  EXPECT_EQ(c.sampling.temperature, 0.5f);
  EXPECT_EQ(c.sampling.top_p, 0.25f);
  EXPECT_EQ(c.sampling.top_k, 7);
  m.set("tokenizer.ggml.eos_token_id", 10);
  EXPECT_TRUE(contains(refusal(m), "must be ids of 0 to 9, found 10"));
}

TEST_F(GgufConfig, CountsThatNoModelHasAreRefusedBeforeAnythingIsMadeOfThem) {  // G15
  EXPECT_TRUE(contains(refusal("block_count", 1'000'000), "qwen3moe.block_count"));
  EXPECT_TRUE(contains(refusal("block_count", 0), "qwen3moe.block_count"));
  EXPECT_TRUE(contains(refusal("block_count", 65'536), "num_hidden_layers"));
  EXPECT_TRUE(contains(refusal("expert_count", 0), "qwen3moe.expert_count"));
  EXPECT_TRUE(contains(refusal("expert_count", 1 << 20), "num_experts"));
  EXPECT_TRUE(contains(refusal("expert_used_count", 0), "qwen3moe.expert_used_count"));
  EXPECT_TRUE(contains(refusal("expert_used_count", 9), "num_experts_per_tok"));
  EXPECT_TRUE(contains(refusal("attention.head_count", 0), "qwen3moe.attention.head_count"));
  EXPECT_TRUE(contains(refusal("attention.head_count_kv", 3), "num_key_value_heads"));
  EXPECT_TRUE(contains(refusal("embedding_length", ~0u), "qwen3moe.embedding_length"));
  for (const char* key : {"block_count", "embedding_length", "attention.head_count", "expert_count"}) {
    Metadata m;
    m.keys.erase(std::string("qwen3moe.") + key);
    EXPECT_TRUE(contains(refusal(m), "is missing")) << key;
  }
  Metadata m;
  m.set_raw("attention.head_count", 9, raw(uint32_t{4}) + raw(uint64_t{2}) + raw(uint32_t{4}) + raw(uint32_t{4}));
  EXPECT_TRUE(contains(refusal(m), "must be an integer, found array of 2 uint32"));
}

TEST_F(GgufConfig, FeaturesThatAreNotSupportedAreRefusedByTheirKeys) {
  EXPECT_TRUE(contains(refusal("attention.value_length", 16, ErrorKind::kConfig), "value_length"));
  EXPECT_TRUE(contains(refusal("rope.dimension_count", 10), "rope.dimension_count"));
  EXPECT_TRUE(contains(refusal("expert_gating_func", 2, ErrorKind::kConfig), "expert_gating_func"));
  EXPECT_TRUE(contains(refusal("expert_shared_count", 1, ErrorKind::kConfig), "expert_shared_count"));
  Metadata m;
  m.set_raw("rope.scaling.type", 8, gguf_string("longrope"));
  EXPECT_TRUE(contains(refusal(m, ErrorKind::kConfig), "longrope"));
  m = Metadata();
  m.keys["general.architecture"] = gguf_text("general.architecture", "mamba");
  EXPECT_TRUE(
      contains(refusal(m, ErrorKind::kConfig), "\"mamba\" is not supported in GGUF files; supported: qwen3moe"));
  m.keys.erase("general.architecture");
  EXPECT_TRUE(contains(refusal(m), "general.architecture\": is missing"));
  m = Metadata();
  m.tensors.erase(m.tensors.begin());
  EXPECT_TRUE(contains(refusal(m), "token_embd.weight"));
}

}  // namespace
}  // namespace carpool
