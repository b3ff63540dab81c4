// What `carpool quantize` writes: same logits where nothing is lost, stated formats, scales within their bounds, and
// checkpoints with scales read back.
#include "model/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "io/test_files.h"
#include "model/gguf_names.h"
#include "model/golden_test_util.h"
#include "model/matrix_encoder.h"
#include "model/stored_matrix.h"

namespace carpool {
namespace {

using namespace test;

std::vector<float> decoded(const WeightView& view) {
  std::vector<float> out(static_cast<size_t>(view.rows * view.cols));
  for (int64_t r = 0; r < view.rows; ++r) decode_row(view, r, out.data() + r * view.cols);
  return out;
}

std::vector<float> decoded(const WeightSource& source, const std::string& name) {
  const TensorInfo* tensor = source.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  return tensor ? decoded(stored_matrix(source, *tensor).view) : std::vector<float>{};
}

class Quantize : public testing::Test {
 protected:
  QuantizeOptions options(const std::string& input, const std::string& output, Format format) {
    QuantizeOptions o;
    o.input = input.find('/') == std::string::npos ? golden::kFolder + "/" + input : input;
    o.output = folder_.file(output);
    o.format = format;
    o.threads = 2;
    return o;
  }
  // Greedy logits after the first golden prompt of the case.
  static std::vector<std::vector<float>> logits(const std::string& model, const std::string& golden_case) {
    LoadOptions load;
    load.threads = 2;
    load.isa = "scalar";
    Model m = Model::load(model, load);
    KvCache kv(m.config(), 256);
    const std::vector<int> tokens = golden::prompts(golden::kFolder + "/" + golden_case).at(0).tokens;
    const golden::Place place(kv, static_cast<int>(tokens.size()));
    return golden::prefill(m, kv, place, tokens, 8);
  }
  std::string refusal(const QuantizeOptions& o, ErrorKind kind) {
    return error_of(kind, [&] { quantize(o); });
  }
  ScratchFolder folder_;
};

TEST_F(Quantize, KeepingTheFormatKeepsEveryLogitThroughGgufAndBack) {
  for (const std::string& name : golden::cases()) {
    const WeightSource source = open_weights(golden::kFolder + "/" + name);
    const Format format = *format_of_safetensors(source.find("model.embed_tokens.weight")->dtype);
    quantize(options(name, name + ".gguf", format));
    quantize(options(folder_.file(name + ".gguf"), name + "_dir", format));
    const auto expected = logits(golden::kFolder + "/" + name, name);
    EXPECT_EQ(logits(folder_.file(name + ".gguf"), name), expected) << name;
    EXPECT_EQ(logits(folder_.file(name + "_dir"), name), expected) << name;
  }
}

TEST_F(Quantize, RoutersNormsAndBiasesStayFloat32AndTheRestIsWhatWasAsked) {
  QuantizeOptions o = options("all_experts_bias", "m.gguf", Format::kQ8_0);
  double last = 0;
  o.progress = [&](double share) {
    EXPECT_GE(share, last);
    last = share;
  };
  const QuantizeReport report = quantize(o);
  EXPECT_EQ(last, 1.0);
  const WeightSource before = open_weights(o.input), after = open_weights(o.output);
  EXPECT_EQ(after.tensors().size(), before.tensors().size());
  uint64_t stored = 0;
  int64_t tensors = 0;
  for (const StoredAs& s : report.stored) stored += s.bytes, tensors += s.tensors;
  EXPECT_EQ(stored, after.total_bytes());
  EXPECT_EQ(tensors, static_cast<int64_t>(after.tensors().size()));
  for (const TensorInfo& t : after.tensors()) {
    const bool matrix = t.shape.size() == 2 && t.name.find("mlp.gate.") == std::string::npos;
    // Half a step of q8_0 is 1/254 of the largest value of a block, whose scale is a half; bfloat16 rounds by 2^-9.
    const std::string expected = !matrix ? "F32" : t.shape[1] % 32 == 0 ? "q8_0" : "BF16";
    EXPECT_EQ(t.dtype, expected) << t.name;
    const std::vector<float> a = decoded(before, t.name), b = decoded(after, t.name);
    float most = 0;
    for (const float v : a) most = std::max(most, std::fabs(v));
    const float bound = !matrix ? 0 : most * (0.5f / 127 + 0x1p-8f);
    for (size_t i = 0; i < a.size(); ++i) ASSERT_LE(std::fabs(a[i] - b[i]), bound) << t.name;
  }
  const auto fallback = std::find_if(report.stored.begin(), report.stored.end(), [](const StoredAs& s) {
    return s.format == "bf16" && contains(s.why, "are not whole blocks of 32 (q8_0)");
  });
  EXPECT_NE(fallback, report.stored.end()) << "down projections have rows of 12";
}

TEST_F(Quantize, PatternsChooseOtherFormatsAndTheLastOneCounts) {
  QuantizeOptions o = options("float32_untied", "m.gguf", Format::kBF16);
  o.exceptions = {{"*", Format::kF16}, {"*q_proj*", Format::kQ8_0}, {"lm_head.weight", Format::kF32}};
  quantize(o);
  const WeightSource source = open_weights(o.output);
  EXPECT_EQ(source.find("lm_head.weight")->dtype, "F32");
  EXPECT_EQ(source.find("model.layers.0.self_attn.q_proj.weight")->dtype, "q8_0");
  EXPECT_EQ(source.find("model.layers.0.self_attn.k_proj.weight")->dtype, "F16");
  EXPECT_EQ(source.find("model.layers.0.mlp.gate.weight")->dtype, "F32");
  o.replace = true;
  o.exceptions = {{"*gate.weight", Format::kQ8_0}};
  EXPECT_TRUE(contains(refusal(o, ErrorKind::kUsage), "--format-for *gate.weight=q8_0: matches no matrix"));
  o.exceptions = {{"*experts.1.up_proj*", Format::kF32}};
  EXPECT_TRUE(contains(refusal(o, ErrorKind::kUsage), "all experts of \"blk.0.ffn_up_exps.weight\" in one format"));
}

TEST_F(Quantize, ScaledCheckpointsLoadAndComeBackBitForBit) {
  for (const Format format : {Format::kNVFP4, Format::kFP8}) {
    const std::string name = std::string(info(format).name);
    const QuantizeReport report = quantize(options("dense_layers", name, format));
    const WeightSource a = open_weights(golden::kFolder + "/dense_layers"), b = open_weights(folder_.file(name));
    EXPECT_EQ(b.find("lm_head.weight")->dtype, "BF16");
    const std::string q = "model.layers.0.self_attn.q_proj.weight";
    EXPECT_EQ(b.find(q)->dtype, format == Format::kFP8 ? "F8_E4M3" : "U8");
    for (const TensorInfo& t : a.tensors()) {
      const std::vector<float> before = decoded(a, t.name), after = decoded(b, t.name);
      double error = 0, size = 0;
      for (size_t i = 0; i < before.size(); ++i) {
        error += std::pow(before[i] - after[i], 2);
        size += std::pow(before[i], 2);
      }
      // E4M3 has 3 bits of fraction: at most 2^-4 of each value. E2M1 has steps of a third at worst: 1/6 of each value.
      EXPECT_LE(std::sqrt(error), std::sqrt(size) * (format == Format::kFP8 ? 0x1p-4 : 1.0 / 6)) << t.name;
    }
    quantize(options(folder_.file(name), name + "_again", format));
    EXPECT_EQ(logits(folder_.file(name + "_again"), "dense_layers"), logits(folder_.file(name), "dense_layers"));
  }
  // Rows of 24 are not whole blocks of 16.
  EXPECT_EQ(open_weights(folder_.file("nvfp4")).find("model.layers.3.mlp.experts.0.down_proj.weight")->dtype, "BF16");
}

TEST_F(Quantize, OutputsThatCannotHoldTheFormatAreRefusedBeforeAnythingIsRead) {
  EXPECT_TRUE(contains(refusal(options("absent", "m.gguf", Format::kFP8), ErrorKind::kUsage), "cannot hold fp8"));
  EXPECT_TRUE(contains(refusal(options("absent", "dir", Format::kQ4_0), ErrorKind::kUsage), "ends in .gguf"));
  QuantizeOptions o = options("absent", "dir", Format::kBF16);
  o.exceptions = {{"*", Format::kFP8}};
  EXPECT_TRUE(contains(refusal(o, ErrorKind::kUsage), "only if --format asks for it"));
  refusal(options("absent", "m.gguf", Format::kBF16), ErrorKind::kMissing);
}

TEST_F(Quantize, AnOutputThatIsThereStaysUnlessAskedAndIsNeverTheInput) {
  const QuantizeOptions o = options("float32_untied", "m.gguf", Format::kBF16);
  folder_.write("m.gguf", "mine");
  EXPECT_TRUE(contains(refusal(o, ErrorKind::kCannotCreate), "the file exists"));
  QuantizeOptions forced = o;
  forced.replace = true;
  quantize(forced);
  EXPECT_EQ(open_weights(o.output).find("lm_head.weight")->dtype, "BF16");
  forced.input = o.output;
  EXPECT_TRUE(contains(refusal(forced, ErrorKind::kUsage), "the output is the input"));
}

// Packed bytes hold two values, so what a checkpoint says of its shape is not the shape of what comes out.
TEST_F(Quantize, PackedMatricesBecomePlainOnesOfTheShapeOfTheirValues) {
  QuantizeOptions mixed = options("dense_layers", "packed", Format::kNVFP4);
  mixed.exceptions = {{"*experts.1.up_proj*", Format::kBF16}};
  quantize(mixed);
  quantize(options(folder_.file("packed"), "plain", Format::kBF16));
  quantize(options(folder_.file("packed"), "plain.gguf", Format::kBF16));
  const WeightSource original = open_weights(golden::kFolder + "/dense_layers");
  const WeightSource packed = open_weights(folder_.file("packed"));
  EXPECT_EQ(packed.find("model.layers.3.mlp.experts.0.up_proj.weight")->dtype, "U8");
  EXPECT_EQ(packed.find("model.layers.3.mlp.experts.1.up_proj.weight")->dtype, "BF16");
  for (const char* name : {"plain", "plain.gguf"}) {
    const WeightSource plain = open_weights(folder_.file(name));
    EXPECT_EQ(plain.tensors().size(), original.tensors().size()) << name;
    for (const TensorInfo& t : original.tensors()) {
      ASSERT_NE(plain.find(t.name), nullptr) << t.name;
      EXPECT_EQ(plain.find(t.name)->shape, t.shape) << t.name;
      const std::vector<float> before = decoded(packed, t.name), after = decoded(plain, t.name);
      for (size_t i = 0; i < before.size(); ++i)  // bfloat16 has 8 significant bits
        ASSERT_LE(std::fabs(before[i] - after[i]), std::fabs(before[i]) * 0x1p-8f) << t.name;
    }
  }
}

class Encode : public testing::Test {
 protected:
  static std::vector<float> random(int64_t n, float size = 1) {
    std::mt19937 bits(7);
    std::normal_distribution<float> normal(0, size);
    std::vector<float> out(static_cast<size_t>(n));
    for (float& v : out) v = normal(bits);
    return out;
  }
  ThreadPool pool_{2};
};

TEST_F(Encode, BothLayoutsOfNvfp4HoldTheSameValues) {
  const std::vector<float> values = random(5 * 128, 0.02f);
  const WeightView view{Format::kF32, values.data(), 5, 128};
  const EncodedMatrix gguf = encode_matrix(view, Format::kNVFP4, Layout::kGguf, pool_, "w");
  const EncodedMatrix apart = encode_matrix(view, Format::kNVFP4, Layout::kCheckpoint, pool_, "w");
  EXPECT_EQ(gguf.scale, apart.scale);
  const WeightView a{Format::kNVFP4, gguf.data.data(), 5, 128, nullptr, gguf.scale};
  const WeightView b{Format::kNVFP4, apart.data.data(), 5, 128, apart.scales.data(), apart.scale};
  EXPECT_EQ(decoded(a), decoded(b));
  EXPECT_EQ(encode_matrix(b, Format::kNVFP4, Layout::kGguf, pool_, "w").data, gguf.data);
  EXPECT_EQ(encode_matrix(a, Format::kNVFP4, Layout::kCheckpoint, pool_, "w").data, apart.data);
  EXPECT_EQ(encode_matrix(a, Format::kNVFP4, Layout::kCheckpoint, pool_, "w").scales, apart.scales);
}

// GGUF's scales have no sign: bit 7 says nothing and 0x7f is 0. ModelOpt's E4M3 would read -1.0 and NaN.
TEST_F(Encode, UnusualScalesOfGgufMeanTheSameInTheOtherLayout) {
  std::string rows(2 * 36, '\x5a');
  const uint8_t scales[] = {0x7f, 0xb8, 0x38, 0x80, 0x01, 0xfe, 0x7e, 0x00};
  for (size_t b = 0; b < 8; ++b) rows[b / 4 * 36 + b % 4] = static_cast<char>(scales[b]);
  const WeightView gguf{Format::kNVFP4, rows.data(), 1, 128, nullptr, 0.25f};
  const EncodedMatrix m = encode_matrix(gguf, Format::kNVFP4, Layout::kCheckpoint, pool_, "w");
  const WeightView apart{Format::kNVFP4, m.data.data(), 1, 128, m.scales.data(), m.scale};
  EXPECT_EQ(decoded(apart), decoded(gguf));
  const uint8_t expected[] = {0x00, 0x38, 0x38, 0x00, 0x01, 0x7e, 0x7e, 0x00};
  for (size_t b = 0; b < 8; ++b) EXPECT_EQ(std::to_integer<int>(m.scales[b]), expected[b]) << b;
  // And back: the bits that mean something.
  const EncodedMatrix back = encode_matrix(apart, Format::kNVFP4, Layout::kGguf, pool_, "w");
  EXPECT_EQ(decoded({Format::kNVFP4, back.data.data(), 1, 128, nullptr, back.scale}), decoded(gguf));
  rows[1] = '\xff';
  const EncodedMatrix nan = encode_matrix(gguf, Format::kNVFP4, Layout::kCheckpoint, pool_, "w");
  EXPECT_EQ(std::to_integer<int>(nan.scales[1]), 0x7f) << "NaN stays NaN";
}

TEST_F(Encode, AMatrixWithoutRowsBecomesNoBytes) {
  const float none = 0;
  for (const Format format : {Format::kNVFP4, Format::kFP8, Format::kQ8_0, Format::kF16}) {
    const EncodedMatrix m = encode_matrix({Format::kF32, &none, 0, 64}, format, Layout::kCheckpoint, pool_, "w");
    EXPECT_TRUE(m.data.empty() && m.scales.empty()) << info(format).name;
  }
}

TEST_F(Encode, RowsOf16ColumnsMayEndInsideOfGgufsBlocks) {
  const std::vector<float> values = random(3 * 48);
  const WeightView view{Format::kF32, values.data(), 3, 48};
  const EncodedMatrix m = encode_matrix(view, Format::kNVFP4, Layout::kCheckpoint, pool_, "w");
  EXPECT_EQ(m.data.size(), 3u * 24);
  EXPECT_EQ(m.scales.size(), 3u * 3);
  const std::vector<float> back = decoded({Format::kNVFP4, m.data.data(), 3, 48, m.scales.data(), m.scale});
  for (size_t i = 0; i < back.size(); ++i)
    EXPECT_NEAR(back[i], values[i], 0.5f) << "the largest step of a block of +-3";
}

TEST_F(Encode, Fp8BlocksHaveTheirOwnScalesAlsoAtRaggedEnds) {
  std::vector<float> values = random(130 * 200);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i / 200 >= 128) values[i] *= 1e-6f;  // the second row of blocks
  }
  const EncodedMatrix m =
      encode_matrix({Format::kF32, values.data(), 130, 200}, Format::kFP8, Layout::kCheckpoint, pool_, "w");
  EXPECT_EQ(m.scales.size(), 4 * sizeof(float));
  const std::vector<float> back = decoded({Format::kFP8, m.data.data(), 130, 200, m.scales.data()});
  for (size_t i = 0; i < back.size(); ++i) {
    const float block = i / 200 >= 128 ? 1e-6f : 1.0f;
    // 2^-4 of the value, or half of the smallest step: 2^-10 of a scale of at most 5/448.
    ASSERT_NEAR(back[i], values[i], std::fabs(values[i]) * 0x1p-4f + block * 5 / 448 * 0x1p-10f) << i;
  }
}

TEST_F(Encode, ZerosTinyAndUnfitValuesAreHandled) {
  for (const float v : {0.0f, 1e-44f}) {
    const std::vector<float> values(64, v);
    const WeightView view{Format::kF32, values.data(), 1, 64};
    const EncodedMatrix m = encode_matrix(view, Format::kNVFP4, Layout::kGguf, pool_, "w");
    EXPECT_EQ(decoded({Format::kNVFP4, m.data.data(), 1, 64, nullptr, m.scale}), std::vector<float>(64));
    const EncodedMatrix f = encode_matrix(view, Format::kFP8, Layout::kCheckpoint, pool_, "w");
    EXPECT_EQ(decoded({Format::kFP8, f.data.data(), 1, 64, f.scales.data()}), std::vector<float>(64));
  }
  const std::vector<float> large(32, 1e5f), bad(32, NAN);
  EXPECT_TRUE(contains(
      error_of(ErrorKind::kConfig,
               [&] { encode_matrix({Format::kF32, large.data(), 1, 32}, Format::kF16, Layout::kGguf, pool_, "w"); }),
      "w: holds values of up to 100000, f16 ends at 65504"));
  for (const Format format : {Format::kQ8_0, Format::kNVFP4, Format::kFP8, Format::kBF16}) {
    error_of(ErrorKind::kMalformed,
             [&] { encode_matrix({Format::kF32, bad.data(), 1, 32}, format, Layout::kCheckpoint, pool_, "w"); });
  }
}

}  // namespace
}  // namespace carpool
