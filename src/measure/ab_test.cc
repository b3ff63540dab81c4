// What the A/B refuses before it times anything, and what its rows are, on tiny models.
#include "measure/ab.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "measure/damaged_model_test_util.h"
#include "model/golden_test_util.h"

namespace carpool {
namespace {

AbOptions small_options() {
  AbOptions options;
  options.policies = {"topk", "oea:k0=2"};
  options.concurrency = {2, 4};
  options.new_tokens = 8;
  options.repeats = 1;
  options.text = {8, 12};
  return options;
}

Documents documents_of(int count, int tokens) {
  Documents out(static_cast<size_t>(count));
  for (int d = 0; d < count; ++d) {
    for (int t = 0; t < tokens; ++t) out[static_cast<size_t>(d)].push_back((7 * d + 3 * t) % 96);
  }
  return out;
}

std::vector<AbPrompt> prompts_of(int count, int tokens) {
  return distinct_prompts({}, documents_of(count, tokens), count);
}

// The kind and sentence of what `call` throws.
template <class Call>
std::pair<ErrorKind, std::string> error_of(Call call) {
  try {
    call();
  } catch (const Error& e) {
    return {e.kind(), e.what()};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {ErrorKind::kInternal, ""};
}

void expect_error(const std::pair<ErrorKind, std::string>& error, ErrorKind kind, const std::string& sentence) {
  EXPECT_EQ(error.first, kind) << error.second;
  EXPECT_EQ(error.second, sentence);
}

TEST(AbChecks, DocumentsLongerThanTheContextAreRefused) {
  const ModelConfig config = read_model_config(golden::kFolder + "/bf16_tied");
  AbOptions options = small_options();
  options.text.tokens = config.context;
  EXPECT_NO_THROW(check_ab(config, options));
  options.text.tokens = config.context + 1;
  expect_error(error_of([&] { check_ab(config, options); }), ErrorKind::kUsage,
               "documents of 257 tokens do not fit the model's context of 256");
}

TEST(AbChecks, DocumentsMustFillTheBatchesOfEveryConcurrency) {
  const ModelConfig config = read_model_config(golden::kFolder + "/bf16_tied");
  AbOptions options = small_options();
  options.text.documents = 64;
  options.concurrency = {1, 2, 4, 8, 16, 32, 64};
  EXPECT_NO_THROW(check_ab(config, options));
  options.concurrency = {24};
  expect_error(error_of([&] { check_ab(config, options); }), ErrorKind::kUsage,
               "64 documents do not fill batches of 24: the next number that does is 72");
  options.concurrency = {16, 24};
  expect_error(error_of([&] { check_ab(config, options); }), ErrorKind::kUsage,
               "64 documents do not fill batches of 24: the next number that does is 96");
  options.concurrency = {128};
  expect_error(error_of([&] { check_ab(config, options); }), ErrorKind::kUsage,
               "64 documents do not fill batches of 128: the next number that does is 128");
}

TEST(AbChecks, AModelWithoutRoutedExpertsHasNothingToCompare) {
  ModelConfig config = read_model_config(golden::kFolder + "/dense_layers");
  config.moe_layer.assign(config.moe_layer.size(), false);
  config.n_experts = config.top_k = 0;
  expect_error(error_of([&] { check_ab(config, small_options()); }), ErrorKind::kConfig,
               "the model has no routed experts: there is nothing for policies to compare");
}

TEST(AbChecks, TooLongAndTooFewPromptsAreRefusedByNameAndNumber) {
  Model model = golden::load("bf16_tied");
  const AbOptions options = small_options();
  std::vector<AbPrompt> prompts = prompts_of(4, 12);
  prompts[2] = {std::vector<int>(249, 1), "prompts.txt line 7"};
  expect_error(error_of([&] { run_ab(model, prompts, documents_of(8, 12), options); }), ErrorKind::kUsage,
               "prompts.txt line 7: the prompt's 249 tokens and 8 new ones do not fit the model's context of 256");
  prompts = prompts_of(3, 12);
  expect_error(error_of([&] { run_ab(model, prompts, documents_of(8, 12), options); }), ErrorKind::kUsage,
               "concurrency 4 needs as many different prompts, there are 3");
  prompts.push_back(prompts[0]);
  expect_error(error_of([&] { run_ab(model, prompts, documents_of(8, 12), options); }), ErrorKind::kUsage,
               "concurrency 4 needs as many different prompts, there are 3");
}

TEST(AbPrompts, StartsOfDocumentsFillUpWithoutRepeatingAnything) {
  const std::vector<AbPrompt> own = {{{1, 2}, "line 1"}, {{3}, "line 2"}, {{1, 2}, "line 3"}};
  const Documents starts = {{3}, {4, 5}, {4, 5}, {6}, {7}};
  const std::vector<AbPrompt> filled = distinct_prompts(own, starts, 4);
  ASSERT_EQ(filled.size(), 4u);
  EXPECT_EQ(filled[0].origin, "line 1");
  EXPECT_EQ(filled[1].origin, "line 2");
  EXPECT_EQ(filled[2].tokens, (std::vector<int>{4, 5}));
  EXPECT_EQ(filled[3].tokens, (std::vector<int>{6}));
  EXPECT_EQ(filled[3].origin, "start 4 of the text");
  EXPECT_EQ(distinct_prompts(own, starts, 100).size(), 5u) << "no more than there are";
}

TEST(AbRun, EveryBatchSizeScoresTheSameDocumentsAndMixedRowsClaimNoSpeed) {
  Model model = golden::load("bf16_tied");
  const std::vector<ResultRow> rows = run_ab(model, prompts_of(4, 12), documents_of(8, 12), small_options());
  int decode = 0, mixed = 0;
  for (const ResultRow& row : rows) {
    if (row.steps == "mixed") {
      ++mixed;
      EXPECT_FALSE(row.quality);
      EXPECT_FALSE(row.speedup);
      EXPECT_EQ(row.bytes_per_step, 0);
      continue;
    }
    ++decode;
    ASSERT_TRUE(row.quality);
    EXPECT_EQ(row.quality->documents, 8) << row.batch;
    EXPECT_EQ(row.steps_measured, 7) << "the first of 8 tokens comes with the prompts";
    EXPECT_GT(row.bytes_per_step, row.dense_bytes_per_step);
    EXPECT_GT(row.floor_share, 0);
  }
  EXPECT_EQ(decode, 4);
  EXPECT_EQ(mixed, 4);
  EXPECT_EQ(rows[0].quality->cross_entropy, rows[4].quality->cross_entropy)
      << "topk on the same documents, whatever the batch";
}

TEST(AbChecks, TheDefaultNumberOfDocumentsFillsEveryBatch) {
  EXPECT_EQ(default_documents({16}), 64);
  EXPECT_EQ(default_documents({1, 2, 4, 8, 16, 32, 64}), 64);
  EXPECT_EQ(default_documents({10}), 70);
  EXPECT_EQ(default_documents({6, 16}), 96);
  EXPECT_EQ(default_documents({128}), 128);
  EXPECT_EQ(default_documents({0}), 64) << "refused later, by name";
}

TEST(AbRun, LogitsThatAreNotFiniteEndTheRun) {
  const DamagedModel damaged;
  Model model = damaged.load();
  expect_error(error_of([&] { run_ab(model, prompts_of(4, 12), documents_of(8, 12), small_options()); }),
               ErrorKind::kMalformed,
               "the model's logits are not finite after the prompt of start 1 of the text, under topk");
}

}  // namespace
}  // namespace carpool
