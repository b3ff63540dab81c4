// What the tensors of a model cost and how a model that its file does not back up is refused.
#include "model/weights.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/error.h"
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
  TensorReader reader(source, true);
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

TEST(Weights, BytesAreThoseOfTheFile) {
  Model model = golden::load("bf16_tied");
  const ModelConfig& c = model.config();
  const size_t expert = 3 * static_cast<size_t>(c.width) * static_cast<size_t>(c.expert_width) * 2;
  EXPECT_EQ(model.weights().bytes_per_expert(), expert);
  EXPECT_EQ(model.weights().expert_bytes(),
            expert * static_cast<size_t>(c.n_experts) * static_cast<size_t>(c.moe_layers()));
  // All tensors but the experts, the embedding counted once as the head; vectors and the router are float32 in memory.
  size_t dense = 0;
  for (const TensorInfo& t : model.weights().source->tensors()) {
    const bool widened = t.shape.size() == 1 || t.name.find("mlp.gate.") != std::string::npos;
    if (t.name.find(".experts.") == std::string::npos) dense += t.bytes * (widened ? 2 : 1);
  }
  EXPECT_EQ(model.weights().dense_bytes_per_step(), dense);
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
