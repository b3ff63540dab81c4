#include "model/dummy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"

namespace carpool {
namespace {

void expect_refused(std::string_view spec, const std::string& part) {
  try {
    parse_dummy(spec);
    ADD_FAILURE() << spec << " was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kConfig) << spec;
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << spec << ": " << e.what();
  }
}

TEST(Dummy, ModelsAreToldApartByTheirPrefix) {
  EXPECT_TRUE(is_dummy("dummy:qwen3-30b-a3b"));
  EXPECT_TRUE(is_dummy("dummy:"));
  EXPECT_FALSE(is_dummy("models/dummy:x"));
  EXPECT_FALSE(is_dummy("dummy"));
  EXPECT_FALSE(is_dummy(""));
}

TEST(Dummy, ABareShapeIsTheWholeModelInFourBits) {
  const DummySpec spec = parse_dummy("dummy:qwen3-30b-a3b");
  EXPECT_EQ(spec.shape, "qwen3-30b-a3b");
  EXPECT_EQ(spec.layers, 48);
  EXPECT_EQ(spec.format, Format::kQ4_0);
  EXPECT_EQ(spec.head_format, Format::kQ6_K);
  EXPECT_EQ(spec.seed, 1u);
}

TEST(Dummy, EverySettingReplacesItsDefault) {
  const DummySpec spec = parse_dummy("dummy:qwen3-235b-a22b,seed=18446744073709551615,head=f16,layers=2,format=nvfp4");
  EXPECT_EQ(spec.shape, "qwen3-235b-a22b");
  EXPECT_EQ(spec.layers, 2);
  EXPECT_EQ(spec.format, Format::kNVFP4);
  EXPECT_EQ(spec.head_format, Format::kF16);
  EXPECT_EQ(spec.seed, UINT64_MAX);
}

TEST(Dummy, TheOutputMatrixIsQ6KBesideFourBitFormatsAndLikeTheRestOtherwise) {
  for (const char* format : {"q4_0", "q4_k", "nvfp4", "mxfp4"}) {
    EXPECT_EQ(parse_dummy(std::string("dummy:qwen3-30b-a3b,format=") + format).head_format, Format::kQ6_K) << format;
  }
  for (const char* format : {"f32", "bf16", "f16", "q8_0", "q6_k", "fp8"}) {
    const DummySpec spec = parse_dummy(std::string("dummy:qwen3-30b-a3b,format=") + format);
    EXPECT_EQ(spec.head_format, spec.format) << format;
  }
}

TEST(Dummy, TheConfigHasTheSizesOfTheShape) {
  const ModelConfig c = dummy_config(parse_dummy("dummy:qwen3-30b-a3b,layers=3"));
  EXPECT_EQ(c.layers, 3);
  EXPECT_EQ(c.moe_layers(), 3);
  EXPECT_EQ(c.width, 2048);
  EXPECT_EQ(c.expert_width, 768);
  EXPECT_EQ(c.n_experts, 128);
  EXPECT_EQ(c.top_k, 8);
  EXPECT_EQ(c.heads, 32);
  EXPECT_EQ(c.kv_heads, 4);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.vocab, 151936);
  EXPECT_EQ(c.qk_norm, ModelConfig::QkNorm::kHead);
  EXPECT_FALSE(c.qkv_bias || c.o_bias);
  EXPECT_FALSE(c.tied_head);
  EXPECT_EQ(c.dense_width, 0);
  EXPECT_TRUE(c.eos_ids.empty());
  EXPECT_EQ(c.scoring.kind, Scoring::Kind::kSoftmax);
  EXPECT_TRUE(c.scoring.renormalize);
  EXPECT_EQ(c.family, "random weights") << "every report prints it";
}

TEST(Dummy, WhatCannotBeIsRefusedWithWhatThereIs) {
  expect_refused("dummy:", "no shape \"\"; there are qwen3-30b-a3b");
  expect_refused("dummy:qwen9", "no shape \"qwen9\"; there are qwen3-30b-a3b, qwen3-235b-a22b");
  expect_refused("dummy:glm-5", "glm-5 is the shape of a layer only");
  expect_refused("dummy:glm-5", "whole models: qwen3-30b-a3b, qwen3-235b-a22b, qwen3-coder-480b;");
  expect_refused("dummy:qwen3-30b-a3b,", "unknown setting \"\"; there are layers=N, format=NAME");
  expect_refused("dummy:qwen3-30b-a3b,layer=2", "unknown setting \"layer=2\"");
  expect_refused("dummy:qwen3-30b-a3b,layers", "layers must be a whole number from 1 to 1024, got \"\"");
  expect_refused("dummy:qwen3-30b-a3b,layers=0", "1 to 1024, got \"0\"");
  expect_refused("dummy:qwen3-30b-a3b,layers=1025", "1 to 1024, got \"1025\"");
  expect_refused("dummy:qwen3-30b-a3b,layers=2x", "got \"2x\"");
  expect_refused("dummy:qwen3-30b-a3b,seed=-1", "got \"-1\"");
  expect_refused("dummy:qwen3-30b-a3b,seed=18446744073709551616", "seed must be");
  expect_refused("dummy:qwen3-30b-a3b,format=q5_9", "format must be one of f32, bf16");
  expect_refused("dummy:qwen3-30b-a3b,head=", "head must be one of f32, bf16");
  expect_refused("dummy:qwen3-30b-a3b,layers=2,layers=3", "\"layers\" is given twice");
}

TEST(Dummy, BlocksMustFitTheWidths) {
  EXPECT_NO_THROW(check_columns(Format::kQ4_K, 512, "x"));
  EXPECT_NO_THROW(check_columns(Format::kF32, 7, "x"));
  try {
    check_columns(Format::kQ4_K, 1408, "the down projection");
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "the down projection has 1408 columns, the format q4_k needs a multiple of 256");
  }
}

TEST(Dummy, ShapesAreDistinctAndTheirRulesFit) {
  std::set<std::string_view> names;
  for (const ModelShape& shape : model_shapes()) {
    EXPECT_TRUE(names.insert(shape.name).second) << shape.name;
    EXPECT_GT(shape.width, 0);
    EXPECT_GT(shape.moe_layers, 0);
    const Scoring scoring = shape_scoring(shape, 1);  // checks itself
    EXPECT_EQ(scoring.selection_bias.size(), shape.selection_bias ? static_cast<size_t>(shape.n_experts) : 0u);
    EXPECT_EQ(&find_shape(shape.name), &shape);
    if (shape.heads == 0) continue;
    EXPECT_EQ(shape.heads % shape.kv_heads, 0) << shape.name;
    EXPECT_TRUE(shape.head_dim > 0 && shape.vocab > 0 && shape.context > 0 && shape.rope_theta > 0) << shape.name;
  }
}

TEST(Dummy, SelectionBiasesFollowTheSeedAndStayNarrow) {
  const ModelShape& shape = find_shape("glm-5");
  const std::vector<float> a = shape_scoring(shape, 1).selection_bias, b = shape_scoring(shape, 2).selection_bias;
  EXPECT_EQ(a, shape_scoring(shape, 1).selection_bias);
  EXPECT_NE(a, b);
  EXPECT_GE(*std::min_element(a.begin(), a.end()), 7.0f);
  EXPECT_LE(*std::max_element(a.begin(), a.end()), 7.1f);
}

}  // namespace
}  // namespace carpool
