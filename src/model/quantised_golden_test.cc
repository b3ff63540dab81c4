// Quantised checkpoints with GLM-5's structure against the same weights dequantised to float32: ModelOpt's NVFP4, FP8.
//
// Golden files: python/golden/make_nvfp4.py; transformers computed the logits from the dequantised weights.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "io/test_files.h"
#include "model/golden_test_util.h"
#include "model/quantize.h"

namespace carpool {
namespace {

using namespace golden;  // NOLINT(google-build-using-namespace)

const std::string kName = "nvfp4/glm5";

Model load_path(const std::string& path, Activations activations) {
  LoadOptions options;
  options.threads = 2;
  options.activations = activations;
  options.kv_format = KvFormat::kF32;
  if (const char* forced = std::getenv("CARPOOL_ISA")) options.isa = forced;
  return Model::load(path, options);
}

Model load_with(Activations activations) { return load_path(folder(kName), activations); }

// The largest difference of a logit from those on file, over all positions on file.
float largest_difference(Model& model) {
  const auto V = static_cast<size_t>(model.config().vocab);
  float most = 0;
  KvCache kv(model.config(), 256);
  for (const GoldenPrompt& g : prompts(folder(kName))) {
    Place place(kv, static_cast<int>(g.tokens.size()));
    const auto logits = prefill(model, kv, place, g.tokens, 512);
    for (size_t i = 0; i < g.all_logits.size(); ++i) {
      most = std::max(most, std::abs(logits[i / V][i % V] - g.all_logits[i]));
    }
    kv.give_back(place.blocks);
  }
  return most;
}

TEST(Nvfp4Checkpoint, RoutedExpertsAreNvfp4AndTheRestIsBf16) {
  const Model model = load_with(Activations::kFloat);
  const LayerWeights& layer = model.weights().layers.back();
  for (const PanelView& w : layer.experts.gate_up) EXPECT_EQ(w.format, Format::kNVFP4);
  for (const PanelView& w : layer.experts.down) EXPECT_EQ(w.format, Format::kNVFP4);
  EXPECT_EQ(layer.shared_gate_up.format, Format::kBF16);
  EXPECT_EQ(layer.o.format, Format::kBF16);
  EXPECT_TRUE(model.config().sparse());
}

// Of logits of two evaluations in float32 of the same values; derived in model_test.cc.
float tolerance(const ModelConfig& c, float largest_logit) {
  const auto longest_sum = static_cast<float>(c.q_width());
  return largest_logit * static_cast<float>((c.layers + 1) * (1 << c.layers)) * longest_sum * 0x1p-24f;
}

// With float activations the weights are those that the reference had: a code times two scales is exact in float32
// but for one rounding, so what differs is the order of sums.
TEST(Nvfp4Checkpoint, WithFloatActivationsLogitsAndTextAreThoseOfTheDequantisedModel) {
  Model model = load_with(Activations::kFloat);
  const ModelConfig& c = model.config();
  float m = 1;
  for (const GoldenPrompt& g : prompts(folder(kName))) {
    for (const float v : g.all_logits) m = std::max(m, std::abs(v));
  }
  const float most = largest_difference(model);
  std::printf("nvfp4, float activations: largest difference %.3g, tolerance %.3g\n", most, tolerance(c, m));
  EXPECT_LE(most, tolerance(c, m));
  const auto topk = make_policy("topk");
  KvCache kv(c, 1024);
  for (const GoldenPrompt& g : prompts(folder(kName))) {
    Place place(kv, 128);
    std::vector<int> got{argmax(prefill(model, kv, place, g.tokens, 16).back())};
    for (int p = static_cast<int>(g.tokens.size()); got.size() < g.greedy.size(); ++p)
      got.push_back(argmax(decode(model, kv, place, got.back(), p, *topk)));
    EXPECT_EQ(got, g.greedy);
    kv.give_back(place.blocks);
  }
}

// Int8 activations round each element of a block by at most half of 1/127 of the block's largest: an error of a product
// of 1 / (127 sqrt(12)) times the largest over the root mean square, at most 5.7 in a block of 32 and near 2.5 usually,
// which is below 0.006. Growing as in tolerance(), that is (L + 1) * 2^L * 0.006 of the logits after L layers; two
// unrelated rows of logits differ by 1.4.
TEST(Nvfp4Checkpoint, WithInt8ActivationsLogitsStayNear) {
  Model exact = load_with(Activations::kFloat), rounded = load_with(Activations::kInt8);
  const std::vector<int> tokens = prompts(folder(kName)).front().tokens;
  KvCache a(exact.config(), 64), b(rounded.config(), 64);
  Place in_a(a, 16), in_b(b, 16);
  const auto want = prefill(exact, a, in_a, tokens, 512), got = prefill(rounded, b, in_b, tokens, 512);
  double error = 0, size = 0;
  for (size_t p = 0; p < want.size(); ++p) {
    for (size_t i = 0; i < want[p].size(); ++i) {
      error += std::pow(static_cast<double>(got[p][i]) - want[p][i], 2);
      size += std::pow(static_cast<double>(want[p][i]), 2);
    }
  }
  const double share = std::sqrt(error / size);
  std::printf("nvfp4, int8 activations: relative error of logits %.3g\n", share);
  EXPECT_GT(share, 0) << "the activations were not rounded";
  const int L = exact.config().layers;
  EXPECT_LE(share, (L + 1) * (1 << L) * 0.006);
}

// Everything but routers, norms and biases in FP8, low-rank projections and the indexer with it: the key rows of kv_b
// are transposed in float32, its value rows stay FP8. The same values stored as float32 give the same logits.
TEST(Fp8Checkpoint, LatentAttentionAndIndexerInFp8AreThoseOfTheDequantisedModel) {
  const test::ScratchFolder files;
  QuantizeOptions options;
  options.threads = 2;
  options.input = folder("glm_moe_dsa/glm5");
  options.output = files.file("fp8");
  options.format = Format::kFP8;
  quantize(options);
  options.input = options.output;
  options.output = files.file("f32");
  options.format = Format::kF32;
  quantize(options);
  Model fp8 = load_path(files.file("fp8"), Activations::kFloat),
        f32 = load_path(files.file("f32"), Activations::kFloat);
  const LayerWeights& layer = fp8.weights().layers.at(1);
  for (const PanelView* w : {&layer.latent.q_a, &layer.latent.kv_a, &layer.latent.q, &layer.latent.v_up, &layer.o,
                             &layer.indexer.q, &layer.indexer.k, &layer.shared_down, &layer.experts.down[0]}) {
    EXPECT_EQ(w->format, Format::kFP8);
  }
  EXPECT_EQ(layer.latent.k_up.format, Format::kF32);
  const std::vector<int> tokens = prompts(folder("glm_moe_dsa/glm5")).back().tokens;
  KvCache a(fp8.config(), 64, KvFormat::kF32), b(f32.config(), 64, KvFormat::kF32);
  Place in_a(a, 64), in_b(b, 64);
  const auto got = prefill(fp8, a, in_a, tokens, 512), want = prefill(f32, b, in_b, tokens, 512);
  float m = 1, most = 0;
  for (size_t p = 0; p < want.size(); ++p) {
    for (size_t i = 0; i < want[p].size(); ++i) {
      m = std::max(m, std::abs(want[p][i]));
      most = std::max(most, std::abs(got[p][i] - want[p][i]));
    }
  }
  std::printf("fp8: largest difference %.3g, tolerance %.3g\n", most, tolerance(f32.config(), m));
  EXPECT_LE(most, tolerance(f32.config(), m));
}

}  // namespace
}  // namespace carpool
