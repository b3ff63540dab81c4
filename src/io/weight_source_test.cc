// Shard sets: cases S7 to S10 of the catalogue of bad files, the completeness check, and sweeps over the index.
#include "io/weight_source.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/json.h"
#include "base/source_dir_test_util.h"
#include "io/test_files.h"

namespace carpool {
namespace {

using test::contains;
using test::error_of;
using test::Part;
using test::safetensors_file;
using test::ScratchFolder;

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kOne = "model-00001-of-00002.safetensors";
constexpr const char* kTwo = "model-00002-of-00002.safetensors";

const std::string kGoodIndex = R"({"metadata":{"total_size":7},"weight_map":{"a":"model-00001-of-00002.safetensors",)"
                               R"("c":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}})";

std::string shard_one() { return safetensors_file({{"c", "U8", "1", "c"}, {"a", "U8", "2", "aa"}}); }
std::string shard_two() { return safetensors_file({{"b", "F32", "1", "bbbb"}}); }

// A folder with two good shards and their index.
struct ShardedModel {
  ShardedModel() {
    folder.write(kIndex, kGoodIndex);
    folder.write(kOne, shard_one());
    folder.write(kTwo, shard_two());
  }
  WeightSource open() const { return WeightSource::open(folder.path()); }
  std::string refusal(ErrorKind kind = ErrorKind::kMalformed) const {
    return error_of(kind, [&] { open(); });
  }
  ScratchFolder folder;
};

std::string index_with(const std::string& weight_map) { return "{\"weight_map\":" + weight_map + "}"; }

std::vector<std::string> names_of(const WeightSource& source) {
  std::vector<std::string> names;
  for (const TensorInfo& t : source.tensors()) names.push_back(t.name);
  return names;
}

std::string text_of(const TensorInfo* t) {
  return t == nullptr ? "(none)" : std::string(reinterpret_cast<const char*>(t->data), t->bytes);
}

TEST(WeightSource, ASingleFileIsOneShard) {
  const ScratchFolder folder;
  folder.write("model.safetensors", shard_one());
  const WeightSource source = WeightSource::open(folder.path());
  EXPECT_EQ(names_of(source), (std::vector<std::string>{"c", "a"}));
  EXPECT_EQ(text_of(source.find("a")), "aa");
  EXPECT_EQ(source.find("b"), nullptr);
  EXPECT_EQ(source.total_bytes(), 3u);
}

TEST(WeightSource, ShardsBecomeOneListByShardAndPlace) {
  const ShardedModel model;
  WeightSource opened = model.open();
  const WeightSource source = std::move(opened);  // the tensors must survive a move
  EXPECT_EQ(names_of(source), (std::vector<std::string>{"c", "a", "b"}));
  EXPECT_EQ(source.total_bytes(), 7u);
  EXPECT_EQ(text_of(source.find("a")), "aa");
  EXPECT_EQ(text_of(source.find("b")), "bbbb");
  EXPECT_EQ(source.find("a")->shard, 0);
  EXPECT_EQ(source.find("b")->shard, 1);
}

TEST(WeightSource, TheShardedGoldenModelLoadsWhole) {
  const std::string folder = source_dir() + "/tests/golden/qwen3_moe/sharded_top1";
  const WeightSource source = WeightSource::open(folder);
  EXPECT_EQ(source.tensors().back().shard, 2);
  const json::value index = parse_json(read_text_file(folder + "/" + kIndex), "index");
  EXPECT_EQ(source.tensors().size(), JsonObject(index, "index").object("weight_map").raw().size());
  for (const TensorInfo& t : source.tensors()) EXPECT_EQ(scan_non_finite(t).count, 0u) << t.name;
  source.verify_unchanged();
}

TEST(WeightSource, SymbolicLinksToShardsAreFollowed) {
  // Download caches keep the files elsewhere and link to them.
  const ShardedModel model;
  const ScratchFolder cache;
  std::filesystem::rename(model.folder.file(kOne), cache.file("blob"));
  std::filesystem::create_symlink(cache.file("blob"), model.folder.file(kOne));
  EXPECT_EQ(model.open().total_bytes(), 7u);
}

TEST(WeightSource, AFolderWithoutWeightsSaysWhatWasLookedFor) {
  const ScratchFolder folder;
  const std::string what = error_of(ErrorKind::kMissing, [&] { WeightSource::open(folder.path()); });
  EXPECT_EQ(what, folder.path() +
                      ": no weights: neither \"model.safetensors\" nor \"model.safetensors.index.json\" is there");
  error_of(ErrorKind::kMissing, [&] { WeightSource::open(folder.file("absent")); });
}

TEST(WeightSource, ASingleFileBesideAnIndexOfOtherFilesIsRefused) {
  const ShardedModel model;
  model.folder.write("model.safetensors", shard_one());
  EXPECT_TRUE(contains(model.refusal(), "holds both \"model.safetensors\" and \"model.safetensors.index.json\""));
  model.folder.write(kIndex, index_with(R"({"a":"model.safetensors","c":"model.safetensors"})"));
  EXPECT_EQ(model.open().total_bytes(), 3u);
}

TEST(WeightSource, S7MissingShardsAreAllListed) {
  const ShardedModel model;
  std::filesystem::remove(model.folder.file(kTwo));
  std::string what = model.refusal(ErrorKind::kMissing);
  EXPECT_TRUE(contains(what, "1 of 2 shards missing or unreadable: ")) << what;
  EXPECT_TRUE(contains(what, kTwo));
  EXPECT_FALSE(contains(what, kOne));
  std::filesystem::remove(model.folder.file(kOne));
  what = model.refusal(ErrorKind::kMissing);
  EXPECT_TRUE(contains(what, "2 of 2 shards missing or unreadable: ")) << what;
  EXPECT_TRUE(contains(what, kOne) && contains(what, kTwo));
}

TEST(WeightSource, S7ShortLongAndEmptyShardsAreAllListedWithWantedAndFound) {
  const ShardedModel model;
  model.folder.write(kOne, shard_one().substr(0, shard_one().size() - 1));
  model.folder.write(kTwo, "");
  std::string what = model.refusal();
  EXPECT_TRUE(contains(what, "2 of 2 shards broken: ")) << what;
  EXPECT_TRUE(contains(what, "\"data_offsets\" end at 3, the file has 2 bytes of data")) << what;
  EXPECT_TRUE(contains(what, std::string(kTwo) + ": 0 bytes")) << what;
  model.folder.write(kOne, shard_one() + "xx");
  model.folder.write(kTwo, shard_two());
  what = model.refusal();
  EXPECT_TRUE(contains(what, "1 of 2 shards broken: ")) << what;
  EXPECT_TRUE(contains(what, "the tensors end at byte ")) << what;
}

TEST(WeightSource, S8TheIndexAndTheShardsMustAgreeInBothDirections) {
  const std::string one = kOne, two = kTwo;
  const ShardedModel model;
  const auto refusal_of = [&](const std::string& map) {
    model.folder.write(kIndex, index_with(map));
    return model.refusal();
  };
  const std::string ac = "{\"a\":\"" + one + "\",\"c\":\"" + one + "\"";
  EXPECT_TRUE(contains(refusal_of(ac + ",\"b\":\"" + two + "\",\"d\":\"" + two + "\"}"),
                       "1 differences between index and shards: tensor \"d\" is not in shard \"" + two + "\""));
  EXPECT_TRUE(contains(refusal_of("{\"a\":\"" + one + "\",\"b\":\"" + two + "\"}"),
                       "tensor \"c\" of shard \"" + one + "\" is not in the index"));
  const std::string swapped = refusal_of(ac + ",\"b\":\"" + one + "\",\"a2\":\"" + two + "\"}");
  EXPECT_TRUE(contains(swapped, "tensor \"b\" is not in shard \"" + one + "\"")) << swapped;
  EXPECT_TRUE(contains(swapped, "tensor \"b\" is in shard \"" + two + "\", the index says \"" + one + "\"")) << swapped;
}

TEST(WeightSource, S8ATensorInTwoShardsIsRefused) {
  const ShardedModel model;
  model.folder.write(kTwo, safetensors_file({{"b", "F32", "1", "bbbb"}, {"a", "U8", "2", "xx"}}));
  EXPECT_TRUE(
      contains(model.refusal(), std::string("tensor \"a\" is in two shards, \"") + kOne + "\" and \"" + kTwo + "\""));
}

TEST(WeightSource, S8DuplicateKeysInTheIndexAreRefused) {
  const ShardedModel model;
  model.folder.write(kIndex, index_with(std::string(R"({"a":")") + kOne + R"(","\u0061":")" + kTwo + "\"}"));
  EXPECT_TRUE(contains(model.refusal(), "duplicate key \"a\""));
}

TEST(WeightSource, S8ShardNamesThatLeaveTheFolderAreRefusedEvenWhenTheFileExists) {
  const ShardedModel model;
  std::filesystem::create_directory(model.folder.file("sub"));
  model.folder.write("sub/x.safetensors", shard_one());
  model.folder.write(".hidden", shard_one());
  const std::string absolute = model.folder.file(kOne), up = "../" + model.folder.path().substr(5) + "/" + kOne;
  for (const std::string& name : {absolute, up, std::string("sub/x.safetensors"), std::string("./") + kOne,
                                  std::string(""), std::string("."), std::string(".."), std::string(".hidden"),
                                  std::string("a\\\\b"), std::string(kOne) + "\\u0000", std::string(256, 'x')}) {
    model.folder.write(kIndex, index_with("{\"a\":\"" + name + "\",\"c\":\"" + name + "\"}"));
    EXPECT_TRUE(contains(model.refusal(), "must be the plain name of a file")) << name;
  }
}

TEST(WeightSource, S8AnIndexOfAnotherFormIsRefused) {
  const ShardedModel model;
  for (const char* text :
       {"", "[]", "{}", "{\"weight_map\":null}", "{\"weight_map\":[]}", "{\"weight_map\":{}}",
        "{\"weight_map\":{\"a\":1}}", "{\"weight_map\":{\"a\":null}}", "{\"weight_map\":{\"a\":{}}}"}) {
    model.folder.write(kIndex, text);
    EXPECT_TRUE(contains(model.refusal(), kIndex)) << text;
  }
}

TEST(WeightSource, S8ATotalSizeThatIsWrongIsRefusedAndNoneIsNeeded) {
  const ShardedModel model;
  const std::string rest = kGoodIndex.substr(kGoodIndex.find(",\"weight_map\""));
  for (const char* good : {"{\"total_size\":7}", "{\"total_size\":7.0}", "{}", "{\"total_size\":null}", "null"}) {
    model.folder.write(kIndex, std::string("{\"metadata\":") + good + rest);
    EXPECT_EQ(model.open().total_bytes(), 7u) << good;
  }
  model.folder.write(kIndex, "{\"metadata\":{\"total_size\":8}" + rest);
  EXPECT_TRUE(contains(model.refusal(), "\"total_size\": 8 bytes, the shards hold 7"));
  for (const char* bad : {"{\"total_size\":-1}", "{\"total_size\":\"7\"}", "{\"total_size\":7.5}", "[]", "7"}) {
    model.folder.write(kIndex, std::string("{\"metadata\":") + bad + rest);
    model.refusal();
  }
}

TEST(WeightSource, S10AShardThatChangedSinceItWasOpenedIsReported) {
  const ShardedModel model;
  const WeightSource source = model.open();
  source.verify_unchanged();
  model.folder.write(kTwo, shard_two() + "more");
  EXPECT_TRUE(
      contains(error_of(ErrorKind::kIo, [&] { source.verify_unchanged(); }), std::string(kTwo) + ": changed since"));
}

// True when it loads; then all tensors lie in their shards. Anything else must be a clean refusal.
bool loads_soundly(const ShardedModel& model) {
  try {
    const WeightSource source = model.open();
    for (const TensorInfo& t : source.tensors()) {
      EXPECT_EQ(text_of(&t), std::string(t.bytes, t.name[0])) << "only the index was changed";
    }
    EXPECT_EQ(source.total_bytes(), 7u);
    return true;
  } catch (const Error& e) {
    EXPECT_TRUE(e.kind() == ErrorKind::kMalformed || e.kind() == ErrorKind::kMissing) << e.what();
    return false;
  }
}

TEST(WeightSource, EveryPrefixOfAnIndexIsRefused) {
  const ShardedModel model;
  for (size_t n = 0; n < kGoodIndex.size(); ++n) {
    std::filesystem::remove(model.folder.file(kIndex));
    model.folder.write(kIndex, kGoodIndex.substr(0, n));
    EXPECT_FALSE(loads_soundly(model)) << n;
  }
}

TEST(WeightSource, EverySingleBitFlipOfAnIndexIsAnswered) {
  const ShardedModel model;
  size_t accepted = 0;
  for (size_t bit = 0; bit < kGoodIndex.size() * 8; ++bit) {
    std::string text = kGoodIndex;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ 1 << bit % 8);
    std::filesystem::remove(model.folder.file(kIndex));
    model.folder.write(kIndex, text);
    accepted += loads_soundly(model) ? 1 : 0;
  }
  // Only the two words that may be absent, "metadata" and "total_size", can change without a contradiction.
  EXPECT_GT(accepted, 0u);
  EXPECT_LE(accepted, 18 * 8u);
}

}  // namespace
}  // namespace carpool
