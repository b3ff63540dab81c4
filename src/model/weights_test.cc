// What the tensors of a model cost and how a model that its file does not back up is refused.
#include "model/weights.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/error.h"
#include "io/test_files.h"
#include "model/golden_test_util.h"

namespace carpool {
namespace {

size_t resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) << 10;
}

// A config of 1024 layers and 4096 wide experts over a file of a few tensors: the reader gives up early and
// allocates for nothing that is not there.
TEST(TensorReader, AConfigThatNoFileBacksUpCostsNeitherMemoryNorAThousandLines) {
  const WeightSource source = WeightSource::open(golden::kFolder + "/float32_untied");
  PanelPlan plan;
  TensorReader reader(source, true, plan);
  const size_t before = resident_bytes();
  try {
    for (int l = 0; l < 100000; ++l) reader.matrix_f32("layer." + std::to_string(l) + ".router", 4096, 131072);
    FAIL() << "must give up";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kMalformed);
    const std::string what = e.what();
    EXPECT_NE(what.find("at least 1000 tensors cannot be used"), std::string::npos) << what;
    EXPECT_NE(what.find("\"layer.9.router\" is missing; ..."), std::string::npos) << what;
    EXPECT_LT(what.size(), 2000u);
  }
  EXPECT_LT(resident_bytes() - before, size_t{64} << 20);
}

class TensorReaderFiles : public testing::Test {
 protected:
  // What the reader says of a file of `parts` once `take` took what it wants.
  std::string refusal(const std::vector<test::Part>& parts, const std::function<void(TensorReader&)>& take) {
    folder_.write("model.safetensors", test::safetensors_file(parts));
    const WeightSource source = WeightSource::open(folder_.path());
    PanelPlan plan;
    TensorReader reader(source, true, plan);
    return test::error_of(ErrorKind::kMalformed, [&] {
      take(reader);
      reader.finish();
    });
  }
  test::ScratchFolder folder_;
};

// Two values lie in each byte: 192 stored bytes would decode to 384 values.
TEST_F(TensorReaderFiles, AVectorIsNeverLongerThanWhatWasAsked) {
  const std::vector<test::Part> packed = {{"norm.weight", "U8", "192", std::string(192, '\x77')},
                                          {"norm.weight_scale", "F8_E4M3", "1,24", std::string(24, '\x7e')},
                                          {"norm.weight_scale_2", "F32", "", std::string(4, '\0')}};
  for (const int64_t n : {192, 384}) {
    const std::string what = refusal(packed, [&](TensorReader& r) { EXPECT_TRUE(r.vector("norm.weight", n).empty()); });
    EXPECT_TRUE(test::contains(what, "\"norm.weight\" at byte")) << what;
    EXPECT_TRUE(test::contains(what, "is a vector and cannot have scales")) << what;
  }
  std::vector<test::Part> matrix = packed;
  matrix[0].shape = "1,192";
  const auto take = [](TensorReader& r) { EXPECT_TRUE(r.vector("norm.weight", 384).empty()); };
  const std::string what = refusal(matrix, take);
  EXPECT_TRUE(test::contains(what, "\"norm.weight\" has shape [1, 384], the config needs [384]")) << what;
  EXPECT_TRUE(test::contains(what, ": 1 tensor cannot be used")) << "its scales are no further problem: " << what;
}

TEST_F(TensorReaderFiles, ScalesThatAreNanAreTheOnlyProblemNamed) {
  const test::Part weight{"w.weight", "U8", "2,8", std::string(16, '\0')};
  const test::Part second{"w.weight_scale_2", "F32", "", std::string(4, '\0')};
  const auto take = [](TensorReader& r) { r.matrix("w.weight", 2, 16); };
  const std::string what = refusal(
      {weight, {"w.weight_scale", "F8_E4M3", "2,1", "8\x7f"}, second, {"w.input_scale", "F32", "", "1234"}}, take);
  EXPECT_TRUE(test::contains(what, "\"w.weight_scale\" has 1 values that are NaN or infinite, the first at index 1"));
  EXPECT_TRUE(test::contains(what, ": 1 tensor cannot be used")) << what;
  EXPECT_FALSE(test::contains(what, "is not part of this model")) << what;
}

// Bytes of a matrix as panels: whole panels of 16 rows; BF16 keeps columns in pairs.
size_t panel_bytes(size_t rows, size_t cols, size_t element) {
  return (rows + 15) / 16 * 16 * (element == 2 ? (cols + 1) / 2 * 2 : cols) * element;
}

TEST(Weights, BytesAreThoseOfTheFileInWholePanels) {
  for (const auto& [name, element] : {std::pair{"bf16_tied", size_t{2}}, std::pair{"sharded_top1", size_t{4}}}) {
    Model model = golden::load(name);
    const ModelConfig& c = model.config();
    const auto width = static_cast<size_t>(c.width), expert_width = static_cast<size_t>(c.expert_width);
    const size_t expert = 2 * panel_bytes(expert_width, width, element) + panel_bytes(width, expert_width, element);
    EXPECT_EQ(model.weights().bytes_per_expert(), expert) << name;
    const size_t experts = expert * static_cast<size_t>(c.n_experts) * static_cast<size_t>(c.moe_layers());
    EXPECT_EQ(model.weights().expert_bytes(), experts) << name;
    // All tensors but the experts and an embedding that is not the head; vectors and the router are float32 in memory.
    size_t dense = 0;
    for (const TensorInfo& t : model.weights().source->tensors()) {
      if (t.name.find(".experts.") != std::string::npos) continue;
      if (t.name.find("embed_tokens") != std::string::npos && !c.tied_head) continue;
      const auto rows = static_cast<size_t>(t.shape[0]);
      if (t.shape.size() == 1) {
        dense += rows * sizeof(float);
      } else {
        const bool router = t.name.find("mlp.gate.") != std::string::npos;
        dense += panel_bytes(rows, static_cast<size_t>(t.shape[1]), router ? sizeof(float) : element);
      }
    }
    EXPECT_EQ(model.weights().dense_bytes_per_step(), dense) << name;
  }
}

TEST(Weights, ColdCopiesThatCannotFitAreRefusedWithBothNumbers) {
  Model model = golden::load("bf16_tied");
  try {
    model.set_cold_copies(1 << 30);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kNoMemory);
    EXPECT_NE(std::string(e.what()).find("MiB are available"), std::string::npos) << e.what();
  }
  EXPECT_TRUE(model.weights().cold.empty());
}

}  // namespace
}  // namespace carpool
