// The quality pass against the definitions: cross-entropy from the logits of an ordinary prompt pass, and nothing lost
// where nothing changed.
#include "measure/quality.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "base/error.h"
#include "base/source_dir_test_util.h"
#include "measure/damaged_model_test_util.h"
#include "model/golden_test_util.h"

namespace carpool {
namespace {

Documents some_documents(int count, int tokens) {
  Documents out(static_cast<size_t>(count));
  unsigned seed = 9;
  for (auto& d : out) {
    for (int i = 0; i < tokens; ++i) d.push_back(static_cast<int>((seed = seed * 1664525u + 1013904223u) >> 16) % 96);
  }
  return out;
}

// Mean nats per token of the documents, each read by itself as a prompt.
double cross_entropy_by_prompts(Model& model, const Documents& documents) {
  double total = 0;
  int n = 0;
  for (const auto& d : documents) {
    KvCache kv(model.config(), 64);
    golden::Place place(kv, 64);
    const auto logits = golden::prefill(model, kv, place, d, 64);
    for (size_t t = 0; t + 1 < d.size(); ++t, ++n) {
      double sum = 0;
      for (const float v : logits[t]) sum += std::exp(static_cast<double>(v));
      total += std::log(sum) - logits[t][static_cast<size_t>(d[t + 1])];
    }
  }
  return total / n;
}

TEST(Quality, CrossEntropyIsThatOfTheTextReadAsPrompts) {
  Model model = golden::load("float32_untied");
  const Documents documents = some_documents(8, 20);
  const auto topk = make_policy("topk");
  for (const int batch : {1, 4, 8}) {
    const QualityRun run = teacher_forced(model, {topk.get()}, documents, batch);
    EXPECT_NEAR(run.quality[0].cross_entropy, cross_entropy_by_prompts(model, documents), 1e-9) << batch;
    EXPECT_EQ(run.quality[0].tokens, 8 * 19);
    EXPECT_EQ(run.quality[0].documents, 8);
  }
}

TEST(Quality, APolicyThatChangesNothingCostsNothingToTheBit) {
  Model model = golden::load("bf16_tied");
  const auto full = make_policy("oea:k0=4"), one = make_policy("oea:k0=1");
  const Documents documents = some_documents(8, 16);
  for (const auto& [policy, batch] : {std::pair(full.get(), 8), std::pair(one.get(), 1)}) {
    const Quality q = teacher_forced(model, {policy}, documents, batch).quality[0];
    EXPECT_EQ(q.kl_mean, 0);
    EXPECT_EQ(q.cross_entropy_delta.value, 0);
    EXPECT_EQ(q.top1_agreement, 1);
  }
}

TEST(Quality, ALossyPolicyIsSeenAndItsRoutingCounted) {
  Model model = golden::load("bf16_tied");
  const auto oea = make_policy("oea:k0=1,guard=off"), prune = make_policy("prune:k0=1");
  const QualityRun run = teacher_forced(model, {oea.get(), prune.get()}, some_documents(8, 16), 8);
  for (const Quality& q : run.quality) {
    EXPECT_GT(q.kl_mean, 0);
    EXPECT_LT(q.top1_agreement, 1);
    EXPECT_LE(q.cross_entropy_delta.lo, q.cross_entropy_delta.value);
    EXPECT_GE(q.cross_entropy_delta.hi, q.cross_entropy_delta.value);
  }
  EXPECT_GT(run.routing[0].rerouted_tokens, 0);
  EXPECT_EQ(run.routing[0].layers, 15 * model.config().moe_layers());
  EXPECT_EQ(run.routing[1].slots, 15 * 8 * model.config().moe_layers())
      << "prune:k0=1 runs one expert per row and layer";
}

TEST(Quality, DocumentsThatDoNotFillABatchAreRefused) {
  Model model = golden::load("bf16_tied");
  const auto topk = make_policy("topk");
  EXPECT_THROW(teacher_forced(model, {topk.get()}, some_documents(3, 8), 4), Error);
  EXPECT_THROW(teacher_forced(model, {topk.get()}, some_documents(6, 8), 4), Error)
      << "two documents that one batch size scores and another does not";
}

TEST(Quality, DocumentsLongerThanTheContextAreRefused) {
  Model model = golden::load("bf16_tied");
  const auto topk = make_policy("topk");
  EXPECT_NO_THROW(teacher_forced(model, {topk.get()}, some_documents(1, 256), 1));
  try {
    teacher_forced(model, {topk.get()}, some_documents(1, 257), 1);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUsage);
    EXPECT_STREQ(e.what(), "documents of 257 tokens do not fit the model's context of 256");
  }
}

TEST(Quality, LogitsThatAreNotFiniteAreNoQuality) {
  const DamagedModel damaged;
  Model model = damaged.load();
  const auto topk = make_policy("topk");
  try {
    teacher_forced(model, {topk.get()}, some_documents(4, 8), 2);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kMalformed);
    EXPECT_STREQ(e.what(), "the model's logits are not finite at document 1 position 1");
  }
}

class TextFile {
 public:
  explicit TextFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() / ("carpool_quality_" + std::to_string(getpid()))) {
    std::ofstream(path_) << text;
  }
  ~TextFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

using Views = std::vector<std::string_view>;

TEST(Documents, AreSplitAtLinesOfThreeDashesWhereverTheyStand) {
  EXPECT_EQ(split_documents("one\n---\ntwo\nlines\n").documents, (Views{"one", "two\nlines\n"}));
  EXPECT_EQ(split_documents("---\none\n---\ntwo").documents, (Views{"one", "two"})) << "a leading separator";
  EXPECT_EQ(split_documents("one\n---\ntwo\n---").documents, (Views{"one", "two"})) << "one at the very end";
  EXPECT_EQ(split_documents("one\r\n---\r\ntwo\r\nlines").documents, (Views{"one", "two\r\nlines"})) << "CRLF";
  EXPECT_EQ(split_documents("one\n---\n---\n\n---\ntwo").documents, (Views{"one", "two"})) << "empty ones";
  EXPECT_EQ(split_documents("a --- b\n----\n ---\nc").documents, (Views{"a --- b\n----\n ---\nc"}));
  EXPECT_TRUE(split_documents("").documents.empty());
}

TEST(Documents, ATextIsAListWhenItHasASeparator) {
  EXPECT_TRUE(split_documents("---\nonly one").list);
  EXPECT_TRUE(split_documents("one\r\n---\r\n").list);
  EXPECT_FALSE(split_documents("plain\ntext").list);
}

TEST(Documents, StartsStandAStretchApartAndMayBeFew) {
  const Tokenizer tokenizer = Tokenizer::load(source_dir() + "/models/books-qwen3/tokenizer.json");
  std::string text;
  for (int i = 0; i < 6; ++i) text += "The boat came home at last, and all the men were glad of it. ";
  const std::vector<int> ids = tokenizer.encode(text, false, false);
  const TextFile plain(text);
  const Documents starts = read_starts(tokenizer, {plain.path()}, {1000, 4}, 20);
  ASSERT_EQ(starts.size(), (ids.size() - 4) / 20 + 1);
  EXPECT_EQ(starts[1], std::vector<int>(ids.begin() + 20, ids.begin() + 24));
}

TEST(Documents, AListGivesItsEntriesAndAPlainTextIsCut) {
  const Tokenizer tokenizer = Tokenizer::load(source_dir() + "/models/books-qwen3/tokenizer.json");
  const std::string sentence = "The boat came home at last, and all the men were glad of it. ";
  const TextFile list(sentence + "\n---\n" + "too short\n---\n" + "Another: " + sentence);
  const Documents two = read_documents(tokenizer, {list.path()}, {2, 8});
  EXPECT_EQ(tokenizer.decode(two[0], false).rfind("The boat", 0), 0u);
  EXPECT_EQ(tokenizer.decode(two[1], false).rfind("Another", 0), 0u)
      << "the short entry is left out, and each entry counts once";
  EXPECT_EQ(two[0].size(), 8u);
  const TextFile plain(sentence + sentence + sentence);
  const Documents cut = read_documents(tokenizer, {plain.path()}, {4, 8});
  std::string joined;
  for (const auto& d : cut) joined += tokenizer.decode(d, false);
  EXPECT_EQ((sentence + sentence + sentence).rfind(joined, 0), 0u) << "stretches follow each other";
  try {
    read_documents(tokenizer, {plain.path()}, {4000, 8});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("4000 are needed"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace carpool
