// Public defects of other engines that concern a loaded model, each as a test of what is right. Those of routing alone
// are in routing/scoring_test.cc, the end-of-text lists in engine/engine_test.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "model/gguf_names.h"
#include "model/model_copy_test_util.h"

namespace carpool {
namespace {

using namespace golden;  // NOLINT(google-build-using-namespace)

Model load_path(const std::string& path) {
  LoadOptions options;
  options.threads = 2;
  if (const char* forced = std::getenv("CARPOOL_ISA")) options.isa = forced;
  return Model::load(path, options);
}

// The logits of every position of the golden case's longest prompt.
std::vector<std::vector<float>> logits_of(Model& model, const std::string& name) {
  const std::vector<int> tokens = prompts(folder(name)).back().tokens;
  KvCache kv(model.config(), 64);
  const Place place(kv, static_cast<int>(tokens.size()));
  return prefill(model, kv, place, tokens, 512);
}

float difference(const std::vector<float>& a, const std::vector<float>& b) {
  float most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

bool has_note(const Model& model, const std::string& part) {
  const auto& notes = model.config().notes;
  return std::any_of(notes.begin(), notes.end(), [&](const auto& n) { return n.find(part) != n.npos; });
}

// A selection bias rounded to 16 bits chooses other experts; golden.json of each case says by how much logits change.
TEST(KnownProblemT2, TheSelectionBiasKeepsTheBitsOfItsFileAndTheRouterIsFloat32) {
  for (const char* name : {"glm_moe_dsa/glm5", "glm4_moe/glm45", "kimi_k2/kimi_k2"}) {
    const WeightSource source = open_weights(folder(name));
    const Model model = load(name);
    int checked = 0;
    for (size_t l = 0; l < model.weights().layers.size(); ++l) {
      const LayerWeights& layer = model.weights().layers[l];
      const std::string bias = "model.layers." + std::to_string(l) + ".mlp.gate.e_score_correction_bias";
      const TensorInfo* stored = source.find(bias);
      if (!stored) continue;
      ASSERT_EQ(stored->dtype, "F32");
      const std::vector<float>& taken = layer.scoring.selection_bias;
      ASSERT_EQ(taken.size() * sizeof(float), stored->bytes);
      EXPECT_EQ(std::memcmp(taken.data(), stored->data, stored->bytes), 0) << bias;
      EXPECT_EQ(layer.router.format, Format::kF32);
      ++checked;
    }
    EXPECT_GT(checked, 0) << name;
    EXPECT_FALSE(has_note(model, "not F32")) << name;
    const json::value root = parse_json(read_text_file(folder(name) + "/golden.json"), name);
    EXPECT_GT(root.at("breakages").at("selection bias rounded to bfloat16").to_number<double>(), 0.05) << name;
  }
}

// An indexer whose rotation pairs the wrong elements changes nothing while all positions are chosen anyway.
TEST(KnownProblemT8, AnIndexersPairsMatterBeyondIndexTopkOnly) {
  const std::string name = "glm_moe_dsa/glm5";
  Model right = load(name);
  ASSERT_TRUE(right.config().sparse());
  const auto top = static_cast<size_t>(right.config().indexer->top);
  const ModelCopy copy(name);
  copy.set("indexer_rope_interleave", "false");
  Model half_split = load_path(copy.path());
  const auto a = logits_of(right, name), b = logits_of(half_split, name);
  ASSERT_GT(a.size(), 4 * top);
  for (size_t p = 0; p < top; ++p) EXPECT_EQ(a[p], b[p]) << p;
  float most = 0;
  for (size_t p = top; p < a.size(); ++p) most = std::max(most, difference(a[p], b[p]));
  EXPECT_GT(most, 0.5f) << "far above any tolerance of the golden test";
}

TEST(KnownProblemT8, AContextThatIndexTopkCoversNeedsNoIndexer) {
  const std::string name = "glm_moe_dsa/glm5";
  Model sparse = load(name);
  const int top = sparse.config().indexer->top;
  const ModelCopy copy(name);
  copy.set("max_position_embeddings", std::to_string(top));
  Model dense = load_path(copy.path());
  EXPECT_FALSE(dense.config().sparse());
  EXPECT_EQ(dense.weights().layers[0].indexer.q.rows, 0);
  EXPECT_GT(sparse.weights().layers[0].indexer.q.rows, 0);
  std::vector<int> tokens = prompts(folder(name)).back().tokens;
  tokens.resize(static_cast<size_t>(top));
  const auto run = [&](Model& model) {
    KvCache kv(model.config(), 16);
    const Place place(kv, top);
    return prefill(model, kv, place, tokens, 512);
  };
  EXPECT_EQ(run(dense), run(sparse));
  // Its tensors are still those of this model.
  copy.set("index_n_heads", "5");
  try {
    load_path(copy.path());
    ADD_FAILURE() << "an indexer of another shape was not noticed";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("indexer.weights_proj.weight\" has shape"), std::string::npos) << e.what();
  }
}

TEST(KnownProblemT16, PredictionLayersAreNotRunWhetherTheirTensorsAreThereOrNot) {
  const Model with = load("glm_moe_dsa/glm5"), without = load("glm_moe_dsa/glm52"), none = load("glm4_moe/air");
  EXPECT_TRUE(has_note(with, "1 multi-token prediction layer is not run"));
  EXPECT_FALSE(has_note(with, "no tensors"));
  EXPECT_TRUE(has_note(without, "1 multi-token prediction layer is not run"));
  EXPECT_TRUE(has_note(without, "declares layer 4 for multi-token prediction, the files have no tensors of it"));
  EXPECT_TRUE(none.config().notes.empty());
  // Undeclared, the same tensors are a mistake.
  const ModelCopy copy("glm_moe_dsa/glm5");
  copy.set("num_nextn_predict_layers", "0");
  try {
    load_path(copy.path());
    ADD_FAILURE() << "tensors of a layer that the configuration does not have were taken";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("\"model.layers.3."), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("is not part of this model"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace carpool
