// Quantised matrices as checkpoints store them: values against the packages whose formats they are (tests/golden/
// quantized, made by python/golden/make_quantized.py), public bugs of other loaders by the numbers of
// known problems, and what is refused.
#include "model/stored_matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/json.h"
#include "base/source_dir_test_util.h"
#include "io/test_files.h"
#include "model/weights.h"

namespace carpool {
namespace {

using namespace test;

const std::string kGolden = source_dir() + "/tests/golden/quantized";

std::vector<float> decoded(const WeightView& view) {
  std::vector<float> out(static_cast<size_t>(view.rows * view.cols));
  for (int64_t r = 0; r < view.rows; ++r) decode_row(view, r, out.data() + r * view.cols);
  return out;
}

std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

class GoldenCheckpoint : public testing::Test {
 protected:
  GoldenCheckpoint() : source_(WeightSource::open(kGolden)), root_(parse_json(read_text_file(kPath), kPath)) {}

  StoredMatrix matrix(const std::string& module) const {
    const TensorInfo* tensor = stored_tensor(source_, module + ".weight");
    EXPECT_NE(tensor, nullptr) << module;
    return stored_matrix(source_, *tensor);
  }
  std::vector<float> expected(const std::string& module) const {
    return decoded(stored_matrix(source_, *source_.find(module + ".expected")).view);
  }
  const std::string kPath = kGolden + "/index.json";
  WeightSource source_;
  json::value root_;
};

// Difference in units of the last place of `b`.
double ulps(float a, float b) {
  if (a == b) return 0;
  return std::fabs(static_cast<double>(a) - b) / std::ldexp(1.0, std::ilogb(b) - 23);
}

TEST_F(GoldenCheckpoint, EveryModuleHasTheValuesOfThePackageThatWroteIt) {
  const JsonObject modules = JsonObject(root_, kPath).object("modules");
  ASSERT_GE(modules.raw().size(), 13u);
  for (const auto& [key, value] : modules.raw()) {
    const std::string name(key);
    const JsonObject about = modules.object(name);
    const StoredMatrix m = matrix(name);
    EXPECT_EQ(info(m.view.format).name, about.string("format")) << name;
    const std::vector<float> got = decoded(m.view), want = expected(name);
    ASSERT_EQ(got.size(), want.size()) << name;
    const auto limit = static_cast<double>(about.integer("ulp", 0, 2));
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_LE(ulps(got[i], want[i]), limit) << name << " " << i << ": " << got[i] << ", not " << want[i];
    }
  }
}

// Every tensor of the file belongs to a matrix, and planning them all packs the same values into panels.
TEST_F(GoldenCheckpoint, AReaderTakesAllOfItAndPanelsHoldTheValues) {
  PanelPlan plan;
  TensorReader reader(source_, true, plan);
  const JsonObject modules = JsonObject(root_, kPath).object("modules");
  std::vector<std::pair<std::string, PanelView>> views;
  for (const auto& [key, value] : modules.raw()) {
    const std::string name(key);
    const StoredMatrix m = matrix(name);
    views.emplace_back(name, reader.matrix(name + ".weight", m.view.rows, m.view.cols));
    reader.values(name + ".expected", m.view.rows, m.view.cols);
  }
  reader.finish();
  std::vector<std::byte> bytes(plan.bytes());
  const auto ops = make_cpu_ops(2, "auto");
  plan.fill(bytes.data(), *ops, nullptr);
  for (auto& [name, view] : views) {
    view.data = bytes.data() + reinterpret_cast<size_t>(view.data);
    const std::vector<float> want = decoded(matrix(name).view);
    std::vector<float> row(static_cast<size_t>(view.cols));
    for (int64_t r = 0; r < view.rows; ++r) {
      unpack_row(view, r, row.data());
      ASSERT_EQ(std::memcmp(row.data(), want.data() + r * view.cols, row.size() * sizeof(float)), 0)
          << name << " " << r;
    }
  }
}

// T5: experts whose sizes differ by four orders of magnitude have scales of their own, so each keeps the precision of
// the format: half of the widest gap (4 to 6) of its own largest value.
TEST_F(GoldenCheckpoint, T5QuietExpertsKeepTheirOwnScale) {
  float scales[3];
  for (int e = 0; e < 3; ++e) {
    const StoredMatrix m = matrix("modelopt." + std::to_string(e));
    scales[e] = m.view.scale;
    const std::vector<float> values = decoded(m.view);
    float largest = 0;
    for (const float v : values) largest = std::max(largest, std::fabs(v));
    EXPECT_NEAR(largest, 6 * 448 * m.view.scale, 1e-6 * static_cast<double>(largest)) << e;
  }
  EXPECT_GT(scales[1] / scales[0], 10);
  EXPECT_LT(scales[2] / scales[0], 0.01);
}

// T11: an expert without input_scale is as good as one with it; neither is used.
TEST_F(GoldenCheckpoint, T11ActivationScalesAreNotNeededAndNotUsed) {
  EXPECT_EQ(matrix("modelopt.0").unused, std::vector<std::string>{"modelopt.0.input_scale"});
  EXPECT_TRUE(matrix("modelopt.2").unused.empty());
  for (const float v : decoded(matrix("modelopt.2").view)) ASSERT_TRUE(std::isfinite(v));
}

// T12: dropping the second scale would be off by its size, not by roundings.
TEST_F(GoldenCheckpoint, T12TheScaleOfTheWholeMatrixIsInTheValues) {
  for (const char* module : {"modelopt.0", "modelopt.1", "modelopt.2", "nvfp4"}) {
    const StoredMatrix m = matrix(module);
    EXPECT_NE(m.view.scale, 1.0f) << module;
    const std::vector<float> got = decoded(m.view), want = expected(module);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_LE(ulps(got[i], want[i]), 1.0) << module << " " << i;
  }
}

class StoredMatrixFiles : public testing::Test {
 protected:
  WeightSource open(const std::vector<Part>& parts) {
    folder_.write("model.safetensors", safetensors_file(parts));
    return WeightSource::open(folder_.path());
  }
  std::string refusal(const std::vector<Part>& parts) {
    const WeightSource source = open(parts);
    return error_of(ErrorKind::kMalformed, [&] { stored_matrix(source, *stored_tensor(source, "w.weight")); });
  }
  // What a reader says of the file once it took "w.weight".
  std::string left_over(const std::vector<Part>& parts, int64_t rows, int64_t cols) {
    const WeightSource source = open(parts);
    PanelPlan plan;
    TensorReader reader(source, true, plan);
    return error_of(ErrorKind::kMalformed, [&] {
      reader.matrix("w.weight", rows, cols);
      reader.finish();
    });
  }
  ScratchFolder folder_;
};

TEST_F(StoredMatrixFiles, ScalesMustBeThereAndFitTheMatrix) {
  const Part packed{"w.weight", "U8", "2,8", std::string(16, '\0')};
  const Part scales{"w.weight_scale", "F8_E4M3", "2,1", "88"};
  const Part wrong{"w.weight_scale", "F8_E4M3", "1,2", "88"};
  const Part second{"w.weight_scale_2", "F32", "", std::string(4, '\0')};
  const Part pair{"w.weight_scale_2", "F32", "2", std::string(8, '\0')};
  const Part infinite{"w.weight_scale_2", "F32", "1", std::string("\0\0\x80\x7f", 4)};
  EXPECT_TRUE(contains(refusal({packed, scales}), "\"w.weight_scale_2\" is missing"));
  EXPECT_TRUE(contains(refusal({packed, wrong, second}), "must be F8_E4M3 [2, 1] for a matrix of 2 x 16"));
  EXPECT_TRUE(contains(refusal({packed, scales, pair}), "must be one F32, is F32 [2]"));
  EXPECT_TRUE(contains(refusal({packed, scales, infinite}), "must be finite"));
  EXPECT_TRUE(contains(refusal({packed}), "has dtype U8, supported: f32"));
  EXPECT_TRUE(
      contains(refusal({{"w.weight", "U8", "2,7", std::string(14, '\0')}, scales, second}), "not whole blocks of 16"));
  EXPECT_TRUE(contains(refusal({{"w.weight", "F32", "1,1,1", "1234"}}), "neither a matrix nor a vector"));
  // AWQ multiplies columns beforehand.
  EXPECT_TRUE(contains(refusal({packed, scales, second, {"w.pre_quant_scale", "F32", "16", std::string(64, '\0')}}),
                       "tensor \"w.pre_quant_scale\" at byte"));
}

TEST_F(StoredMatrixFiles, Fp8ScalesAreOneNumberOnePerRowOrOnePerBlockOfAnyFloatType) {
  const Part fp8{"w.weight", "F8_E4M3", "2,200", std::string(400, '\x38')};  // all 1
  const auto scaled = [&](const char* ending, const char* dtype, const char* shape, const std::string& bytes) {
    const WeightSource source = open({fp8, {std::string("w.weight_scale") + ending, dtype, shape, bytes}});
    return decoded(stored_matrix(source, *source.find("w.weight")).view);
  };
  const std::string bf16_2_and_4("\x00\x40\x80\x40", 4);
  EXPECT_EQ(scaled("", "F32", "", bytes_of({3}))[399], 3);
  EXPECT_EQ(scaled("", "BF16", "1", std::string("\x00\x40", 2))[399], 2);
  for (const char* shape : {"2,1", "2"}) {
    const std::vector<float> values = scaled("", "BF16", shape, bf16_2_and_4);
    EXPECT_EQ(values[199], 2);
    EXPECT_EQ(values[200], 4);
  }
  for (const char* ending : {"_inv", ""}) {
    const std::vector<float> values = scaled(ending, "BF16", "1,2", bf16_2_and_4);
    EXPECT_EQ(values[127], 2);
    EXPECT_EQ(values[128], 4);
    EXPECT_EQ(values[399], 4);
  }
  const auto refused = [&](const char* ending, const char* dtype, const char* shape, size_t bytes) {
    return refusal({fp8, {std::string("w.weight_scale") + ending, dtype, shape, std::string(bytes, '\0')}});
  };
  EXPECT_TRUE(contains(refused("_inv", "F32", "2,2", 16), "must be F32, BF16 or F16 [1, 2] for a matrix of 2 x 200"));
  EXPECT_TRUE(contains(refused("_inv", "U8", "1,2", 2), "must be F32, BF16 or F16 [1, 2] for a matrix of 2 x 200"));
  EXPECT_TRUE(contains(refused("", "F32", "2,4", 32), "must be F32 [], [2, 1] or [1, 2]"));
  EXPECT_TRUE(contains(refused("", "F32", "3,1", 12), "for a matrix of 2 x 200, is F32 [3, 1]"));
}

TEST_F(StoredMatrixFiles, VectorsHaveNoScales) {
  const Part second{"w.weight_scale_2", "F32", "", std::string(4, '\0')};
  EXPECT_TRUE(contains(
      refusal({{"w.weight", "U8", "8", std::string(8, '\0')}, {"w.weight_scale", "F8_E4M3", "1,1", "8"}, second}),
      "is a vector and cannot have scales, but there is \"w.weight_scale\""));
  const Part fp8{"w.weight", "F8_E4M3", "8", std::string(8, '\0')};
  const std::string number(4, '\0');
  for (const char* ending : {"_scale", "_scale_inv", "_scale_2"}) {
    const std::string name = std::string("w.weight") + ending;
    EXPECT_TRUE(contains(refusal({fp8, {name, "F32", "1,1", number}}), "but there is \"" + name + "\""));
  }
  EXPECT_TRUE(contains(refusal({{"w.weight", "BF16", "2", number}, second}), "is a vector"));
}

TEST_F(StoredMatrixFiles, MatricesAndVectorsWithoutValuesAreRefused) {
  for (const char* shape : {"0,64", "64,0", "0,0", "0", "0,4611686018427387904"}) {
    for (const char* dtype : {"BF16", "F8_E4M3"}) {
      EXPECT_TRUE(contains(refusal({{"w.weight", dtype, shape, ""}}), "has no values, its shape is [")) << shape;
    }
  }
}

// Packed integers of 2 x 64 values with groups of 32; a part of the same name takes the place of the usual one.
std::vector<Part> integers(const std::vector<Part>& others) {
  const std::string shape("\2\0\0\0\0\0\0\0\x40\0\0\0\0\0\0\0", 16);
  std::vector<Part> parts = {{"w.weight_packed", "I32", "2,8", std::string(64, '\x99')},
                             {"w.weight_scale", "BF16", "2,2", std::string("\x80\x3f\x80\x3f\x00\x40\x00\x40", 8)},
                             {"w.weight_shape", "I64", "2", shape}};
  for (const Part& other : others) {
    bool found = false;
    for (Part& p : parts) {
      if (p.name == other.name) p = other, found = true;
    }
    if (!found) parts.push_back(other);
  }
  return parts;
}

TEST_F(StoredMatrixFiles, PackedIntegersAreCodesTimesTheScaleOfTheirGroup) {
  const WeightSource source = open(integers({}));
  const StoredMatrix m = stored_matrix(source, *stored_tensor(source, "w.weight"));
  EXPECT_EQ(m.view.format, Format::kINT4);
  const std::vector<float> values = decoded(m.view);
  EXPECT_EQ(values[0], 1);  // (9 - 8) * 1
  EXPECT_EQ(values[64], 2);
  // An order of columns that says nothing new is no obstacle.
  std::string order;
  for (int32_t c = 0; c < 64; ++c) order += std::string{static_cast<char>(c / 32), 0, 0, 0};
  const WeightSource ordered = open(integers({{"w.weight_g_idx", "I32", "64", order}}));
  EXPECT_EQ(decoded(stored_matrix(ordered, *stored_tensor(ordered, "w.weight")).view), values);
  order[0] = 1;
  EXPECT_TRUE(contains(refusal(integers({{"w.weight_g_idx", "I32", "64", order}})), "column 0 is of group 1"));
}

// T14: the width of packed words against the shape that the file itself gives, with both; and against the config.
TEST_F(StoredMatrixFiles, T14PackedWidthsAreCheckedAndBothShapesNamed) {
  const std::string what = refusal(integers({{"w.weight_packed", "I32", "2,6", std::string(48, '\x99')}}));
  EXPECT_TRUE(contains(what,
                       "words of shape [2, 6] hold [2, 48] values of 4 bits or [2, 24] of 8, but "
                       "\"w.weight_shape\" says [2, 64]"))
      << what;
  EXPECT_TRUE(contains(refusal(integers({{"w.weight_packed", "I32", "3,8", std::string(96, '\x99')}})),
                       "words of shape [3, 8] hold [3, 64]"));
  EXPECT_TRUE(contains(left_over(integers({}), 2, 128), "\"w.weight\" has shape [2, 64], the config needs [2, 128]"));
  const std::vector<Part> nvfp4 = {{"w.weight", "U8", "2,16", std::string(32, '\0')},
                                   {"w.weight_scale", "F8_E4M3", "2,2", std::string(4, '\x38')},
                                   {"w.weight_scale_2", "F32", "", bytes_of({1})}};
  EXPECT_TRUE(contains(left_over(nvfp4, 2, 16), "\"w.weight\" has shape [2, 32], the config needs [2, 16]"));
}

TEST_F(StoredMatrixFiles, WhatPackedIntegersMustHave) {
  const auto refused = [&](const Part& part) { return refusal(integers({part})); };
  const auto without = [&](const std::string& name) {
    std::vector<Part> parts = integers({});
    std::erase_if(parts, [&](const Part& p) { return p.name == name; });
    return refusal(parts);
  };
  EXPECT_TRUE(contains(without("w.weight_shape"), "\"w.weight_shape\" is missing"));
  EXPECT_TRUE(contains(without("w.weight_scale"), "\"w.weight_scale\" is missing"));
  EXPECT_TRUE(contains(refused({"w.weight_shape", "F32", "2", "12345678"}), "must be I64 [2], is F32 [2]"));
  EXPECT_TRUE(contains(refused({"w.weight_scale", "BF16", "2,4", std::string(16, '\0')}),
                       "groups of 16 columns are not supported, supported: multiples of 32"));
  EXPECT_TRUE(contains(refused({"w.weight_scale", "BF16", "2,3", std::string(12, '\0')}), "is BF16 [2, 3]"));
  EXPECT_TRUE(contains(refused({"w.weight_scale", "F8_E4M3", "2,2", "8888"}), "must be F32, BF16 or F16"));
  EXPECT_TRUE(contains(refused({"w.weight_zero_point", "I32", "2,2", std::string(16, '\0')}),
                       "must be I32 [1, 2] for a matrix of 2 x 64, is I32 [2, 2]"));
  EXPECT_TRUE(contains(refused({"w.weight_packed", "I8", "2,32", std::string(64, '\0')}), "U8 or I32, these are I8"));
}

TEST_F(StoredMatrixFiles, AGlobalScaleOfZeroAndNanExponentsAreRefused) {
  const Part packed{"w.weight_packed", "U8", "2,16", std::string(32, '\0')};
  EXPECT_TRUE(contains(refusal({packed,
                                {"w.weight_scale", "F8_E4M3", "2,2", std::string(4, '\x38')},
                                {"w.weight_global_scale", "F32", "1", bytes_of({0})}}),
                       "is what values are divided by and must not be 0"));
  EXPECT_TRUE(contains(refusal({packed, {"w.weight_scale", "F8_E4M3", "2,2", std::string(4, '\x38')}}),
                       "\"w.weight_global_scale\" is missing"));
  EXPECT_TRUE(contains(left_over({packed, {"w.weight_scale", "U8", "2,1", "\x7f\xff"}}, 2, 32),
                       "\"w.weight_scale\" has 1 values that are NaN or infinite, the first at index 1"));
}

// T13: experts that nothing takes are named, so a model never runs without them.
TEST_F(StoredMatrixFiles, T13TensorsThatAreNotTakenAreNamed) {
  const Part w{"w.weight", "F32", "1,1", bytes_of({1})};
  const std::string blocks = "model.layers.0.mlp.experts.gate_up_proj_blocks";
  std::string what = left_over({w, {blocks, "U8", "1,1,1,16", std::string(16, '\0')}}, 1, 1);
  EXPECT_TRUE(contains(what, "\"" + blocks + "\" is not part of this model")) << what;
  // A plain tensor beside a packed one of the same name is not silently preferred.
  std::vector<Part> both = integers({});
  both.push_back({"w.weight", "F32", "2,64", std::string(512, '\0')});
  what = left_over(both, 2, 64);
  EXPECT_TRUE(contains(what, "\"w.weight_packed\" is not part of this model")) << what;
}

// T15: what is quantised is what the tensors are, in one layer of both kinds, whatever lists of modules say.
TEST_F(StoredMatrixFiles, T15PlainAndQuantisedMatricesStandSideBySide) {
  const WeightSource source = open({{"shared.weight", "BF16", "1,16", std::string(32, '\0')},
                                    {"routed.weight", "U8", "1,8", std::string(8, '\x22')},
                                    {"routed.weight_scale", "F8_E4M3", "1,1", "\x38"},
                                    {"routed.weight_scale_2", "F32", "", bytes_of({0.5f})}});
  EXPECT_EQ(stored_matrix(source, *source.find("shared.weight")).view.format, Format::kBF16);
  const WeightView routed = stored_matrix(source, *source.find("routed.weight")).view;
  EXPECT_EQ(routed.format, Format::kNVFP4);
  EXPECT_EQ(decoded(routed), std::vector<float>(16, 0.5f));
}

TEST_F(StoredMatrixFiles, ScalesOfACacheAreANoteAndScalesOfActivationsNotEvenThat) {
  const WeightSource source = open({{"w.weight", "F32", "1,1", bytes_of({1})},
                                    {"w.input_scale", "F32", "", bytes_of({INFINITY})},
                                    {"model.layers.0.self_attn.k_proj.k_scale", "F32", "", bytes_of({1})},
                                    {"model.layers.0.self_attn.v_proj.v_scale", "F32", "", bytes_of({1})}});
  PanelPlan plan;
  TensorReader reader(source, true, plan);
  reader.matrix("w.weight", 1, 1);
  reader.finish();
  ASSERT_EQ(reader.notes().size(), 1u);
  EXPECT_TRUE(contains(reader.notes()[0], "2 scales of a quantised KV cache are not used"));
}

}  // namespace
}  // namespace carpool
