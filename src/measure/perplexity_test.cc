// Perplexity in windows against the same sums made by hand, and that the ways to compute it agree.
#include "measure/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/source_dir_test_util.h"
#include "measure/quality.h"

namespace carpool {
namespace {

const std::string kBooks = source_dir() + "/models/books-qwen3";

class PerplexityTest : public testing::Test {
 protected:
  Model load() {
    LoadOptions options;
    options.threads = 2;
    return Model::load(kBooks, options);
  }
  std::vector<std::vector<int>> windows(int context, int n, int batch = 0) {
    return perplexity_windows(tokenizer_, text_, {context, n, batch});
  }
  std::string refusal(const PerplexityOptions& options) {
    try {
      perplexity_windows(tokenizer_, text_, options);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kUsage);
      return e.what();
    }
    ADD_FAILURE() << "accepted";
    return "";
  }
  Tokenizer tokenizer_ = Tokenizer::load(kBooks + "/tokenizer.json");
  std::string text_ = read_text_file(kBooks + "/eval.txt");
  std::unique_ptr<Policy> topk_ = make_policy("topk");
};

TEST_F(PerplexityTest, WindowsFollowEachOtherAndEndWhereTheTextDoes) {
  const std::vector<int> ids = tokenizer_.encode(text_, true, false);
  const auto all = windows(64, 0);
  ASSERT_EQ(all.size(), ids.size() / 64);
  for (size_t w = 0; w < all.size(); ++w) {
    ASSERT_EQ(all[w].size(), 64u);
    for (size_t i = begin_token(tokenizer_) ? 1 : 0; i < 64; ++i) ASSERT_EQ(all[w][i], ids[w * 64 + i]);
    if (begin_token(tokenizer_)) EXPECT_EQ(all[w][0], *begin_token(tokenizer_));
  }
  EXPECT_EQ(windows(64, 3).size(), 3u);
}

TEST_F(PerplexityTest, TooLittleTextAndBatchesThatAreNotFilledAreRefused) {
  EXPECT_NE(refusal({1 << 20, 0, 0}).find("0 windows of 1048576; at least 1 needed"), std::string::npos);
  EXPECT_NE(refusal({64, 1 << 20, 0}).find("at least 1048576 needed"), std::string::npos);
  const std::string said = refusal({64, 5, 2});
  EXPECT_NE(said.find("5 windows do not fill batches of 2; --chunks 4 would"), std::string::npos) << said;
}

TEST_F(PerplexityTest, ItIsTheMeanOverTheSecondHalfOfEachWindow) {
  Model model = load();
  const auto few = windows(48, 3);
  const Perplexity found = measure_perplexity(model, *topk_, few, 0);
  EXPECT_EQ(found.windows, 3);
  EXPECT_EQ(found.tokens, 3 * (48 - 24 - 1));
  double sum = 0;
  for (const auto& window : few) {
    KvCache kv(model.config(), 64, model.kv_format());
    std::vector<int> blocks;
    ASSERT_TRUE(kv.take(KvCache::blocks_for(48), blocks));
    Rows rows;
    for (int p = 0; p < 48; ++p) {
      rows.push(window[static_cast<size_t>(p)], p, blocks.data(), {Phase::kPrefill, false, 0}, true);
    }
    const Matrix logits = model.forward(rows, kv, *topk_, {});
    for (int p = 24; p < 47; ++p) {
      const std::span<const float> row(logits.row(p), static_cast<size_t>(logits.cols));
      sum += log_sum_exp(row) - row[static_cast<size_t>(window[static_cast<size_t>(p) + 1])];
    }
  }
  const double nats = sum / static_cast<double>(found.tokens);
  EXPECT_NEAR(found.cross_entropy.value, nats, 1e-9);
  EXPECT_NEAR(found.value(), std::exp(nats), 1e-6);
}

TEST_F(PerplexityTest, PlainRowsScoreTheSameAsPromptsAndAsDecode) {
  Model model = load();
  const auto few = windows(32, 4);
  const double prompts = measure_perplexity(model, *topk_, few, 0).cross_entropy.value;
  EXPECT_EQ(measure_perplexity(model, *topk_, few, 4).cross_entropy.value, prompts);
  EXPECT_EQ(measure_perplexity(model, *topk_, few, 2).cross_entropy.value, prompts);
  const auto many = windows(32, 16, 16);
  const Perplexity pruned = measure_perplexity(model, *make_policy("oea:k0=1"), many, 16);
  EXPECT_NE(pruned.cross_entropy.value, measure_perplexity(model, *topk_, many, 0).cross_entropy.value);
  EXPECT_GT(pruned.routing.rerouted_tokens, 0);
}

}  // namespace
}  // namespace carpool
