// A dense model cut into experts: all of them are the dense model, fewer are chosen by scores and weigh 1 all the same.
//
// That logits and tokens are those of transformers, with all experts and with some: model_test.cc, of every family.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/model_copy_test_util.h"

namespace carpool::golden {
namespace {

const std::string kSome = "llama_moefied/some_experts";

std::string refusal(const char* key, const char* value) {
  const ModelCopy copy(kSome);
  copy.set(key, value);
  try {
    read_model_config(copy.path());
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

TEST(LlamaMoefied, TheExpertsMustBeTheWholeBlock) {
  EXPECT_NE(refusal("moe_intermediate_size", "15")
                .find("\"intermediate_size\": must be the neurons of all experts, 6 x "
                      "15 = 90"),
            std::string::npos);
  EXPECT_NE(refusal("num_experts", "5").find("5 x 16 = 80"), std::string::npos);
  EXPECT_NE(refusal("mlp_bias", "true").find("\"mlp_bias\""), std::string::npos);
  EXPECT_EQ(refusal("num_experts_per_tok", "6"), "accepted");
}

// The logits of the last position, and what the observer saw.
std::vector<float> last_logits(Model& model, const StepRecord& record = {}) {
  const std::vector<int> tokens = prompts(folder(kSome)).back().tokens;
  KvCache kv(model.config(), 64);
  const Place place(kv, static_cast<int>(tokens.size()));
  return prefill(model, kv, place, tokens, 16, record).back();
}

// Routers that say the opposite choose other experts, and all experts are the same ones in any order of choice.
TEST(LlamaMoefied, WithAllExpertsTheRouterChangesNoBit) {
  const auto logits_with = [](const char* top_k, float sign) {
    const ModelCopy copy(kSome);
    copy.set("num_experts_per_tok", top_k);
    std::string bytes = copy.read("model.safetensors");
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);
    const json::value tensors = json::parse(std::string_view(bytes).substr(8, header));
    for (int l = 0; l < 3; ++l) {
      for (const char* part : {"weight", "bias"}) {
        const auto& span = tensors.at("model.layers." + std::to_string(l) + ".mlp.gate." + part).at("data_offsets");
        for (auto at = span.at(0).to_number<size_t>(); at < span.at(1).to_number<size_t>(); at += sizeof(float)) {
          float value = 0;
          std::memcpy(&value, bytes.data() + 8 + header + at, sizeof value);
          value *= sign;
          std::memcpy(bytes.data() + 8 + header + at, &value, sizeof value);
        }
      }
    }
    copy.write("model.safetensors", bytes);
    Model model = load_path(copy.path());
    return last_logits(model);
  };
  EXPECT_EQ(logits_with("6", 1), logits_with("6", -1));
  EXPECT_NE(logits_with("3", 1), logits_with("3", -1));
}

TEST(LlamaMoefied, PoliciesTakeExpertsAwayAndChangeNoWeight) {
  Model model = load(kSome);
  KvCache kv(model.config(), 64);
  std::vector<Place> places;
  for (const char* spec : {"topk", "oea:k0=1,guard=off", "prune:k0=2", "xshare:m=3,norm=final", "des_vote:m=3",
                           "lynx:drop=50%", "lynx_bins:m=3", "ser:k_min=1,t=0.8,norm=topk"}) {
    SCOPED_TRACE(spec);
    size_t slots = 0;
    Watcher watcher([&](const RoutedLayer& layer) {
      EXPECT_TRUE(layer.in.unit_weights);
      for (int t = 0; t < layer.in.rows(); ++t) {
        double mass = 0;
        for (const float score : layer.in.weight_row(t)) mass += static_cast<double>(score);
        EXPECT_NEAR(mass, 1, 1e-5) << "scores are shares all the same";
      }
      slots += layer.weights.size();
      EXPECT_TRUE(std::all_of(layer.weights.begin(), layer.weights.end(), [](float w) { return w == 1; }));
    });
    RoutingCounters counters;
    Rows rows;
    for (int r = 0; r < 4; ++r) {
      places.emplace_back(kv, 1);
      rows.push(7 + 20 * r, 0, places.back().blocks.data(), {Phase::kDecode, false, 0}, true);
    }
    model.forward(rows, kv, *make_policy(spec), {.routing = &counters, .observer = &watcher});
    EXPECT_GT(slots, 0u);
    EXPECT_LE(slots, 4u * 3u * 3u);
    if (std::string_view(spec) == "prune:k0=2") EXPECT_EQ(slots, 4u * 3u * 2u);
    for (Place& place : places) kv.give_back(place.blocks);
    places.clear();
  }
}

}  // namespace
}  // namespace carpool::golden
