// A model's hash follows what is in its files and not where they are.
#include "measure/model_identity.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace carpool {
namespace {

namespace fs = std::filesystem;

TEST(ModelIdentity, FollowsTheContentAndNotThePlace) {
  const fs::path folder = fs::temp_directory_path() / ("carpool_identity_" + std::to_string(::getpid()));
  const fs::path a = folder / "a", b = folder / "b";
  const std::string weights(20'000'000, 'w');
  for (const fs::path& model : {a, b}) {
    fs::create_directories(model);
    std::ofstream(model / "config.json") << "{\"layers\": 2}";
    std::ofstream(model / "model.safetensors") << weights;
    std::ofstream(model / "README.md") << model.string();  // no part of the model
  }
  const std::string hash = model_hash(a.string());
  EXPECT_EQ(hash.size(), 16u);
  EXPECT_EQ(model_hash(b.string()), hash);
  std::ofstream(b / "config.json") << "{\"layers\": 3}";
  EXPECT_NE(model_hash(b.string()), hash) << "another config";
  std::ofstream(b / "config.json") << "{\"layers\": 2}";
  std::ofstream(b / "model.safetensors") << weights << "w";
  EXPECT_NE(model_hash(b.string()), hash) << "another size";
  std::string last = weights;
  last.back() = 'x';
  std::ofstream(b / "model.safetensors") << last;
  EXPECT_NE(model_hash(b.string()), hash) << "the last byte is looked at";
  EXPECT_EQ(model_hash((a / "model.safetensors").string()), model_hash((a / "model.safetensors").string()));
  EXPECT_NE(model_hash("dummy:qwen3-30b-a3b"), model_hash("dummy:glm-5"));
  EXPECT_THROW(model_hash((folder / "absent").string()), Error);
  EXPECT_THROW(model_hash(folder.string()), Error) << "a folder without a model";
  fs::remove_all(folder);
}

}  // namespace
}  // namespace carpool
