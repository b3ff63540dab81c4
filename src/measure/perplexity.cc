#include "measure/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "measure/quality.h"

namespace carpool {
namespace {

constexpr int kChunk = 64;  // rows of a prompt in one step, which bounds the logits held at once

// Windows that are computed together, each with its own blocks in the cache.
class Group {
 public:
  Group(const Model& model, int windows, int context)
      : kv_(model.config(), int64_t{KvCache::blocks_for(context)} * KvCache::kBlockTokens * windows, model.kv_format()),
        blocks_(static_cast<size_t>(windows)) {
    for (auto& blocks : blocks_) CARPOOL_CHECK(kv_.take(KvCache::blocks_for(context), blocks));
  }
  KvCache& kv() { return kv_; }
  const int* blocks(size_t w) const { return blocks_[w].data(); }

 private:
  KvCache kv_;
  std::vector<std::vector<int>> blocks_;
};

// The first position whose logits are scored; they are of the token behind it.
int first_scored(size_t context) { return static_cast<int>(context / 2); }

double loss(const Matrix& logits, int row, int token, size_t window, int position) {
  const std::span<const float> values(logits.row(row), static_cast<size_t>(logits.cols));
  const double nats = log_sum_exp(values) - values[static_cast<size_t>(token)];
  if (std::isfinite(nats)) return nats;
  throw Error(ErrorKind::kMalformed,
              fmt::format("the model's logits are not finite at window {} position {}", window + 1, position + 1));
}

}  // namespace

double Perplexity::value() const { return std::exp(cross_entropy.value); }

std::optional<int> begin_token(const Tokenizer& tokenizer) {
  const std::vector<int> with = tokenizer.encode("a", true, false), without = tokenizer.encode("a", false, false);
  if (with.size() <= without.size() || (!without.empty() && with.front() == without.front())) return std::nullopt;
  return with.front();
}

std::vector<std::vector<int>> perplexity_windows(const Tokenizer& tokenizer, std::string_view text,
                                                 const PerplexityOptions& options) {
  CARPOOL_CHECK(options.context >= 4);
  const std::vector<int> ids = tokenizer.encode(text, true, false);
  const auto context = static_cast<size_t>(options.context);
  size_t n = ids.size() / context;
  if (n < static_cast<size_t>(std::max(options.windows, 1))) {
    throw Error(ErrorKind::kUsage, fmt::format("the text gives {} tokens, {} windows of {}; at least {} needed",
                                               ids.size(), n, options.context, std::max(options.windows, 1)));
  }
  if (options.windows > 0) n = static_cast<size_t>(options.windows);
  if (options.batch > 0 && n % static_cast<size_t>(options.batch) != 0) {
    throw Error(ErrorKind::kUsage, fmt::format("{} windows do not fill batches of {}; --chunks {} would", n,
                                               options.batch, n / static_cast<size_t>(options.batch) * options.batch));
  }
  const std::optional<int> begin = begin_token(tokenizer);
  std::vector<std::vector<int>> windows;
  for (size_t w = 0; w < n; ++w) {
    const auto at = ids.begin() + static_cast<std::ptrdiff_t>(w * context);
    windows.emplace_back(at, at + static_cast<std::ptrdiff_t>(context));
    if (begin) windows.back()[0] = *begin;
  }
  return windows;
}

Perplexity measure_perplexity(Model& model, const Policy& policy, const std::vector<std::vector<int>>& windows,
                              int batch, const std::function<void(double)>& progress) {
  CARPOOL_CHECK(!windows.empty());
  const size_t context = windows[0].size(), group = static_cast<size_t>(std::max(batch, 1));
  check_fits(static_cast<int>(context), model.config());
  Group places(model, static_cast<int>(group), static_cast<int>(context));
  const int first = first_scored(context), last = static_cast<int>(context) - 1;  // no token follows the last position
  const TokenInfo info{batch > 0 ? Phase::kDecode : Phase::kPrefill, false, 0};
  const int stride = batch > 0 ? 1 : kChunk;  // positions of a step
  Perplexity result;
  std::vector<double> means(windows.size());
  Rows rows;
  for (size_t w = 0; w < windows.size(); w += group) {
    for (int begin = 0; begin < last; begin += stride) {
      rows.clear();
      const int end = std::min(begin + stride, last);
      for (size_t g = 0; g < group; ++g) {
        for (int p = begin; p < end; ++p) {
          rows.push(windows[w + g][static_cast<size_t>(p)], p, places.blocks(g), info, p >= first);
        }
      }
      const Matrix logits = model.forward(rows, places.kv(), policy, {&result.routing});
      for (int i = 0; i < logits.rows; ++i) {
        const int row = rows.logit_rows[static_cast<size_t>(i)];
        const size_t window = w + static_cast<size_t>(row / (end - begin));
        const int p = rows.positions[static_cast<size_t>(row)];
        means[window] += loss(logits, i, windows[window][static_cast<size_t>(p) + 1], window, p) / (last - first);
        ++result.tokens;
      }
      if (progress) {
        const double done = static_cast<double>(end) / last;
        progress((static_cast<double>(w) + static_cast<double>(group) * done) / static_cast<double>(windows.size()));
      }
    }
  }
  result.windows = std::ssize(windows);
  result.cross_entropy = bootstrap(means, mean);
  return result;
}

}  // namespace carpool
