// What configurations say about rotation, read to the numbers that transformers computes from them.
#include "model/families/common.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace carpool {
namespace {

ModelConfig rope_of(const std::string& text, int head_dim = 16, int context = 4096) {
  const json::value root = parse_json(text, "config.json");
  ModelConfig c;
  c.context = context;
  families::read_rope(JsonObject(root, "config.json"), {}, head_dim, c);
  return c;
}

std::string refusal(const std::string& text) {
  try {
    rope_of(text);
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

TEST(RopeSettings, ThetaIsReadWhereverItStands) {
  EXPECT_EQ(rope_of("{}").rope.theta, 10000);
  EXPECT_EQ(rope_of(R"({"rope_theta": 500000})").rope.theta, 500000);
  EXPECT_EQ(rope_of(R"({"rope_parameters": {"rope_theta": 8e6, "rope_type": "default"}})").rope.theta, 8e6);
  EXPECT_EQ(rope_of(R"({"rope_theta": 5, "rope_scaling": {"rope_type": "linear", "factor": 2}})").rope.theta, 5);
}

TEST(RopeSettings, APartOfTheHeadIsRotated) {
  EXPECT_EQ(rope_of("{}").rope.dims, 16);
  EXPECT_EQ(rope_of(R"({"partial_rotary_factor": 0.5})").rope.dims, 8);
  EXPECT_EQ(rope_of(R"({"rope_parameters": {"partial_rotary_factor": 0.25}})").rope.dims, 4);
  EXPECT_NE(refusal(R"({"partial_rotary_factor": 0.2})").find("must be even"), std::string::npos);
  EXPECT_NE(refusal(R"({"partial_rotary_factor": 0})").find("at least 2"), std::string::npos);
}

TEST(RopeSettings, YarnHasTheReferencesDefaults) {
  const Rope r =
      rope_of(R"({"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 32}})", 16, 128)
          .rope;
  EXPECT_EQ(r.scaling, Rope::Scaling::kYarn);
  EXPECT_EQ(r.original_context, 32);
  EXPECT_EQ(r.beta_fast, 32);
  EXPECT_EQ(r.beta_slow, 1);
  EXPECT_TRUE(r.truncate);
  EXPECT_DOUBLE_EQ(r.attention_factor, 0.1 * std::log(4.0) + 1);
  // Both weights: their quotient, which is 1 where they are equal, as in DeepSeek-V3.
  const Rope v3 = rope_of(R"({"rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 16, "beta_slow": 2,
      "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 1.0, "truncate": false}})")
                      .rope;
  EXPECT_EQ(v3.attention_factor, 1);
  EXPECT_EQ(v3.beta_fast, 16);
  EXPECT_EQ(v3.beta_slow, 2);
  EXPECT_FALSE(v3.truncate);
  EXPECT_DOUBLE_EQ(rope_of(R"({"rope_scaling": {"type": "yarn", "factor": 40, "mscale": 0.5, "mscale_all_dim": 1}})")
                       .rope.attention_factor,
                   (0.05 * std::log(40.0) + 1) / (0.1 * std::log(40.0) + 1));
  EXPECT_EQ(rope_of(R"({"rope_scaling": {"type": "yarn", "factor": 40, "attention_factor": 2}})").rope.attention_factor,
            2);
  // Without a factor it is the ratio of the two contexts.
  EXPECT_EQ(rope_of(R"({"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 1024}})").rope.factor, 4);
}

TEST(RopeSettings, Llama3AndLinearAreReadWithTheirOwnNumbers) {
  const Rope r = rope_of(R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
      "high_freq_factor": 4, "original_max_position_embeddings": 8192}})")
                     .rope;
  EXPECT_EQ(r.scaling, Rope::Scaling::kLlama3);
  EXPECT_EQ(r.factor, 8);
  EXPECT_EQ(r.low_frequency, 1);
  EXPECT_EQ(r.high_frequency, 4);
  EXPECT_EQ(r.attention_factor, 1);
  EXPECT_EQ(rope_of(R"({"rope_scaling": {"type": "linear", "factor": 2.5}})").rope.factor, 2.5);
  EXPECT_NE(refusal(R"({"rope_scaling": {"type": "linear"}})").find("\"factor\""), std::string::npos);
  EXPECT_NE(refusal(R"({"rope_scaling": {"type": "linear", "factor": 0.5}})").find("\"factor\""), std::string::npos);
  EXPECT_NE(refusal(R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
      "high_freq_factor": 4}})")
                .find("must be above low_freq_factor"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"rope_scaling": {"rope_type": "longrope", "factor": 8}})").find("supported: default, linear"),
            std::string::npos);
}

}  // namespace
}  // namespace carpool
