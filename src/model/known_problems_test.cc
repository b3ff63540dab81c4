// Public defects of other engines that concern a loaded model, each as a test of what is right. Others are where they
// belong: of routing alone in routing/scoring_test.cc and known_problems_test.cc, of stored matrices in
// stored_matrix_test.cc (T5, T11 to T15), of kernels in backend/cpu (T2, T6), of ties in engine/sampler_test.cc (T9),
// of batches and end-of-text lists in engine/engine_test.cc (T10, T17).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>

#include "io/test_files.h"
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

// What a family's router is by its published code; the rest is in the numbers of config.json.
struct RouterOf {
  const char* family;
  Scoring::Kind kind;
  bool biased;  // experts are ranked by their score and a bias
  Scoring::GroupScore group_score = Scoring::GroupScore::kTop2;
};
constexpr auto kSoftmax = Scoring::Kind::kSoftmax, kTopk = Scoring::Kind::kSoftmaxTopk,
               kSigmoid = Scoring::Kind::kSigmoid;
constexpr RouterOf kRouters[] = {
    {"qwen3_moe", kSoftmax, false},  {"olmoe", kSoftmax, false},
    {"mixtral", kSoftmax, false},    {"llama_moefied", kSoftmax, false},
    {"gpt_oss", kTopk, false},       {"minimax_m2", kSigmoid, true},
    {"glm4_moe", kSigmoid, true},    {"glm4_moe_lite", kSigmoid, true},
    {"glm_moe_dsa", kSigmoid, true}, {"deepseek_v3", kSigmoid, true},
    {"kimi_k2", kSigmoid, true},     {"deepseek_v2", kSoftmax, false, Scoring::GroupScore::kMax},
};

// The K best of a row by their rank scores, ties to the lower id, in the groups with the best single or two best ones.
std::vector<int> best_of(std::span<const float> rank, int K, const Scoring& scoring) {
  const auto E = static_cast<int>(rank.size()), size = E / scoring.n_group;
  std::vector<int> ids(rank.size()), groups(static_cast<size_t>(scoring.n_group));
  std::iota(ids.begin(), ids.end(), 0);
  std::iota(groups.begin(), groups.end(), 0);
  const auto by = [&](std::span<const float> score) {
    return [score](int a, int b) { return score[static_cast<size_t>(a)] > score[static_cast<size_t>(b)]; };
  };
  std::vector<float> of_group;
  for (const int g : groups) {
    std::vector<float> members(rank.begin() + g * size, rank.begin() + (g + 1) * size);
    std::sort(members.rbegin(), members.rend());
    of_group.push_back(scoring.group_score == Scoring::GroupScore::kMax ? members[0] : members[0] + members[1]);
  }
  if (scoring.n_group > 1) std::stable_sort(groups.begin(), groups.end(), by(of_group));
  groups.resize(static_cast<size_t>(scoring.n_group > 1 ? scoring.topk_group : 1));
  std::erase_if(ids, [&](int e) { return std::find(groups.begin(), groups.end(), e / size) == groups.end(); });
  std::stable_sort(ids.begin(), ids.end(), by(rank));
  ids.resize(static_cast<size_t>(K));
  return ids;
}

// Plain routing that holds what a model gives it, and what it answers, against the definition of the family's router.
class CheckedRouting final : public Policy {
 public:
  CheckedRouting(const RouterOf& router, const Model& model) : router_(router), model_(model) {}
  void select(const RouterInput& in, Scratch& scratch, Selection& out) const override {
    select_plain(in, scratch, out);
    const Scoring& s = model_.weights().layers[static_cast<size_t>(in.layer)].scoring;
    for (int t = 0; t < in.rows(); ++t) {
      double sum = 0;
      std::vector<float> rank;
      const auto mix = in.weight_row(t), given = in.rank_row(t);
      for (size_t e = 0; e < mix.size(); ++e) {
        sum += static_cast<double>(mix[e]);
        ASSERT_TRUE(mix[e] >= 0 && mix[e] <= 1) << "expert " << e << ": " << mix[e];
        rank.push_back(router_.kind == kTopk ? given[e] : mix[e] + (router_.biased ? s.selection_bias[e] : 0));
      }
      if (router_.kind == kSoftmax) ASSERT_NEAR(sum, 1, 1e-5);
      if (router_.kind == kSigmoid) ASSERT_GT(std::abs(sum - 1), 1e-3) << "these were divided by their sum";
      const auto row = out.row(t);
      ASSERT_EQ(std::vector<int>(row.begin(), row.end()), best_of(rank, in.top_k, s)) << "layer " << in.layer;
      chosen_.insert(chosen_.end(), row.begin(), row.end());
    }
  }
  const PolicyProperties& properties() const override { return properties_; }
  std::string spec() const override { return "checked"; }
  bool is_plain(int) const override { return true; }
  void check(int, int) const override {}
  const std::vector<int>& chosen() const { return chosen_; }

 private:
  const RouterOf& router_;
  const Model& model_;
  PolicyProperties properties_;
  mutable std::vector<int> chosen_;
};

// A router whose method was missing or another one's on some path chose wrong experts, or gave NaN. On every table each
// family chooses by its own method, and the same experts; model_test.cc holds the logits of all against transformers.
TEST(KnownProblemT4, EveryFamilyChoosesByItsOwnMethodAndTheSameExpertsOnEveryTable) {
  size_t families_seen = 0;
  for (const RouterOf& router : kRouters) {
    families_seen += !cases(router.family).empty();
    for (const std::string& one : cases(router.family)) {
      const std::string name = std::string(router.family) + "/" + one;
      SCOPED_TRACE(name);
      const std::vector<int> tokens = prompts(folder(name)).back().tokens;
      std::vector<int> first;
      for (const std::string& isa : cpu_isa_names()) {
        Model model = golden::load(name, isa);
        const Scoring& s = model.config().scoring;
        EXPECT_EQ(s.kind, router.kind);
        if (s.n_group > 1) EXPECT_EQ(s.group_score, router.group_score);
        KvCache kv(model.config(), 256);
        const Place place(kv, static_cast<int>(tokens.size()));
        const CheckedRouting checked(router, model);
        Rows rows;
        for (size_t p = 0; p < tokens.size(); ++p) {
          rows.push(tokens[p], static_cast<int>(p), place.blocks.data(), {Phase::kPrefill, false, 0}, true);
        }
        const Matrix logits = model.forward(rows, kv, checked, {});
        for (int r = 0; r < logits.rows; ++r) {
          for (const float v : row_of(logits, r)) ASSERT_TRUE(std::isfinite(v));
        }
        ASSERT_EQ(checked.chosen().size(), tokens.size() * static_cast<size_t>(model.config().moe_layers()) *
                                               static_cast<size_t>(model.config().top_k));
        if (first.empty()) first = checked.chosen();
        EXPECT_EQ(checked.chosen(), first) << isa;
      }
    }
  }
  EXPECT_EQ(families_seen, std::size(kRouters));
  EXPECT_EQ(families().size(), families_seen + 2) << "a family besides llama and qwen3 has no row in kRouters";
}

// Writes the tensors of a copy anew, each as `change` leaves it, without those for which it answers false.
void rewrite(const ModelCopy& copy, const std::function<bool(test::Part&)>& change) {
  const std::string bytes = copy.read("model.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const json::value names = json::parse(bytes.substr(8, header));
  std::vector<test::Part> parts;
  for (const auto& [name, entry] : names.as_object()) {
    if (name == "__metadata__") continue;
    const auto begin = entry.at("data_offsets").at(0).to_number<size_t>(),
               end = entry.at("data_offsets").at(1).to_number<size_t>();
    const std::string shape = json::serialize(entry.at("shape"));
    test::Part part{name, std::string(entry.at("dtype").as_string()), shape.substr(1, shape.size() - 2),
                    bytes.substr(sizeof header + header + begin, end - begin)};
    if (change(part)) parts.push_back(std::move(part));
  }
  copy.write("model.safetensors", test::safetensors_file(parts));
}

const std::string kNvfp4 = "nvfp4/glm5";  // routed experts as ModelOpt writes them, beside BF16

std::vector<std::vector<float>> logits_of_copy(const ModelCopy& copy) {
  Model model = load_path(copy.path());
  return logits_of(model, kNvfp4);
}

std::vector<std::vector<float>> logits_as_stored() {
  Model model = load_path(folder(kNvfp4));
  return logits_of(model, kNvfp4);
}

std::string bytes_of(float value) { return {reinterpret_cast<const char*>(&value), sizeof value}; }

// One expert's input_scale, ten thousand times another's, made quiet experts zero where the largest was used for all.
// Weights are all that is quantised here, so no bit depends on any of them.
TEST(KnownProblemT5, NoExpertDependsOnTheInputScaleOfAnother) {
  const ModelCopy copy(kNvfp4);
  int changed = 0;
  rewrite(copy, [&](test::Part& part) {
    if (part.name.find(".experts.3.") != part.name.npos && part.name.ends_with(".input_scale")) {
      part.data = bytes_of(1e4f);
      ++changed;
    }
    return true;
  });
  ASSERT_EQ(changed, 9) << "three matrices in three layers";
  EXPECT_EQ(logits_of_copy(copy), logits_as_stored());
}

// A missing input_scale became an infinite one.
TEST(KnownProblemT11, InputScalesThatAreMissingZeroOrInfiniteChangeNothing) {
  const auto want = logits_as_stored();
  for (const auto& row : want) {
    for (const float v : row) ASSERT_TRUE(std::isfinite(v));
  }
  for (const std::optional<float> value : {std::optional<float>(), {0.0f}, {INFINITY}, {NAN}}) {
    const ModelCopy copy(kNvfp4);
    int changed = 0;
    rewrite(copy, [&](test::Part& part) {
      if (!part.name.ends_with(".input_scale")) return true;
      if (value) part.data = bytes_of(*value);
      return ++changed % 2 == 0 || value.has_value();  // some experts have theirs, some not
    });
    ASSERT_EQ(changed, 144);
    EXPECT_EQ(logits_of_copy(copy), want) << value.value_or(-1);
  }
}

// Lists of what is not quantised name modules that are fused or renamed here, or leave out what the list should have.
TEST(KnownProblemT15, ListsOfModulesChangeNothingAndTheTensorsDecide) {
  const auto want = logits_as_stored();
  const json::value root = parse_json(read_text_file(folder(kNvfp4) + "/config.json"), "config.json");
  for (const json::array& ignored :
       {json::array{}, json::array{"model.layers.1.mlp.experts.gate_up_proj", "re:.*experts.*"},
        json::array{"model.layers.*.mlp.shared_experts.gate_up_proj", "model.layers.1.self_attn.fused_qkv_a_proj"}}) {
    const ModelCopy copy(kNvfp4);
    json::object quantization = root.at("quantization_config").as_object();
    quantization["ignore"] = ignored;
    copy.set("quantization_config", json::serialize(quantization));
    const Model model = load_path(copy.path());
    const LayerWeights& layer = model.weights().layers.at(1);
    EXPECT_EQ(layer.shared_gate_up.format, Format::kBF16);
    EXPECT_EQ(layer.experts.gate_up[0].format, Format::kNVFP4);
    EXPECT_EQ(logits_of_copy(copy), want) << json::serialize(ignored);
  }
}

// Padding between rows: no logit and no counter knows of it, batch-aware or not.
TEST(KnownProblemT7, PaddingBetweenRowsChangesNoLogitAndNoCounterOfAnyFamily) {
  for (const std::string& name : all_cases()) {
    Model model = load(name);
    if (model.config().moe_layers() == 0) continue;
    const auto run = [&](const Policy& policy, bool padded, RoutingCounters& counters) {
      KvCache kv(model.config(), 64);
      std::vector<Place> places;
      Rows rows;
      const auto pad = [&](int n) {
        for (int i = 0; padded && i < n; ++i) rows.push(-1, -1, nullptr, {Phase::kPad, false, 0}, false);
      };
      for (int r = 0; r < 3; ++r) {
        pad(r + 1);
        places.emplace_back(kv, 1);
        rows.push(5 + 17 * r, 0, places.back().blocks.data(), {Phase::kDecode, false, 0}, true);
      }
      pad(6);
      const Matrix logits = model.forward(rows, kv, policy, {.routing = &counters});
      std::vector<std::vector<float>> out;
      for (int r = 0; r < logits.rows; ++r) out.push_back(row_of(logits, r));
      return out;
    };
    for (const char* spec : {"topk", "oea:k0=1,guard=off"}) {
      const auto policy = make_policy(spec);
      RoutingCounters alone, padded;
      EXPECT_EQ(run(*policy, true, padded), run(*policy, false, alone)) << name << " " << spec;
      EXPECT_EQ(padded.distinct_experts, alone.distinct_experts) << name << " " << spec;
      EXPECT_EQ(padded.slots, alone.slots) << name << " " << spec;
      EXPECT_GT(alone.slots, 0) << name;
    }
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
