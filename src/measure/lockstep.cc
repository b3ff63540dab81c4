#include "measure/lockstep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/error.h"
#include "base/time.h"

namespace carpool {
namespace {

constexpr int64_t kMostPredictions = int64_t{1} << 28;  // of all runs together, whose KL are kept: 1 GiB

// One policy's pass over the text: its own cache, its own sums.
struct Pass {
  const Policy* policy;
  KvCache kv;
  std::vector<std::vector<int>> blocks;
  LockstepRun run;

  Pass(const Policy* p, const Model& model, int batch, size_t documents, int tokens)
      : policy(p),
        kv(model.config(), int64_t{KvCache::blocks_for(tokens)} * KvCache::kBlockTokens * batch, model.kv_format()),
        blocks(static_cast<size_t>(batch)) {
    run.loss.resize(documents);
    run.kl.resize(documents);
    run.agree.resize(documents);
    run.predictions = static_cast<int64_t>(documents) * (tokens - 1);
    for (auto& table : blocks) CARPOOL_CHECK(kv.take(KvCache::blocks_for(tokens), table));
  }
};

[[noreturn]] void refuse_logits(size_t document, int t) {
  throw Error(ErrorKind::kMalformed,
              fmt::format("the model's logits are not finite at document {} position {}", document + 1, t + 1));
}

std::vector<size_t> order_of(size_t documents, uint64_t seed) {
  std::vector<size_t> order(documents);
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937_64 random(seed);
  // Not std::shuffle: its draws differ between standard libraries, and a seed is part of a result.
  for (size_t i = documents; seed != 0 && i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

// The steps of one batch of documents under all policies.
class DocumentBatch {
 public:
  DocumentBatch(Model& model, const Documents& documents, std::vector<Pass>& passes, StepObserver* observer)
      : model_(model),
        documents_(documents),
        passes_(passes),
        observer_(observer),
        logits_(passes.size()),
        reference_sum_(passes[0].blocks.size()) {}

  // Step `t` of the documents `which`, one per row: first all forward passes, then what their logits are worth, so that
  // every pass is timed after another one. Who comes first changes from step to step.
  void step(std::span<const size_t> which, int t) {
    for (size_t i = 0; i < passes_.size(); ++i) forward(which, t, (turn_ + i) % passes_.size());
    turn_ = (turn_ + 1) % passes_.size();
    for (size_t p = 0; p < passes_.size(); ++p) {
      for (size_t b = 0; b < which.size(); ++b) take(passes_[p].run, p, which[b], t, b);
    }
    if (!observer_) return;
    for (size_t b = 0; b < which.size(); ++b) {
      observer_->row(static_cast<int>(b), which[b] + 1, t, rows_.tokens[b], row(passes_.size() - 1, b));
    }
  }

 private:
  void forward(std::span<const size_t> which, int t, size_t p) {
    Pass& pass = passes_[p];
    rows_.clear();
    for (size_t b = 0; b < which.size(); ++b) {
      rows_.push(documents_[which[b]][static_cast<size_t>(t)], t, pass.blocks[b].data(), {Phase::kDecode, false, 0},
                 true);
    }
    RoutingCounters counters;
    StepObserver* const observer = p + 1 == passes_.size() ? observer_ : nullptr;
    const double start = now_seconds();
    const Matrix logits = model_.forward(rows_, pass.kv, *pass.policy, {.routing = &counters, .observer = observer});
    const double seconds = now_seconds() - start;
    pass.run.routing.add(counters);
    const auto layers = static_cast<double>(std::max<int64_t>(counters.layers, 1));
    pass.run.steps.push_back({static_cast<float>(seconds * 1e3),
                              static_cast<float>(static_cast<double>(counters.distinct_experts) / layers)});
    width_ = static_cast<size_t>(logits.cols);
    logits_[p].assign(logits.data, logits.data + static_cast<size_t>(logits.rows) * width_);
  }

  std::span<const float> row(size_t p, size_t b) const { return std::span(logits_[p]).subspan(b * width_, width_); }

  void take(LockstepRun& run, size_t p, size_t d, int t, size_t b) {
    const std::span<const float> base = row(0, b), mine = row(p, b);
    const double sum = log_sum_exp(mine);
    if (p == 0) reference_sum_[b] = sum;
    const double loss = sum - mine[static_cast<size_t>(documents_[d][static_cast<size_t>(t) + 1])];
    const double kl = p == 0 ? 0 : divergence(base, reference_sum_[b], mine, sum);
    if (!std::isfinite(loss) || !std::isfinite(kl)) refuse_logits(d, t);
    run.loss[d] += loss;
    run.kl[d] += kl;
    run.agree[d] += p == 0 || argmax(base) == argmax(mine);
    if (p != 0) run.token_kl.push_back(static_cast<float>(kl));
  }

  Model& model_;
  const Documents& documents_;
  std::vector<Pass>& passes_;
  StepObserver* observer_;
  Rows rows_;
  size_t turn_ = 0, width_ = 0;
  std::vector<std::vector<float>> logits_;  // of each pass
  std::vector<double> reference_sum_;
};

void check_documents(const std::vector<const Policy*>& policies, const Documents& documents,
                     const LockstepOptions& options, const ModelConfig& config) {
  const auto batch = static_cast<size_t>(options.batch);
  if (documents.empty() || documents.size() % batch != 0) {
    throw Error(ErrorKind::kUsage, fmt::format("{} documents do not fill batches of {}", documents.size(), batch));
  }
  check_fits(static_cast<int>(documents[0].size()), config);
  const int64_t each = std::ssize(documents) * std::ssize(documents[0]) * std::ssize(options.seeds);
  if (each > kMostPredictions / std::max<int64_t>(std::ssize(policies), 1)) {
    throw Error(ErrorKind::kUsage, fmt::format("{} documents of {} tokens, {} seeds and {} policies are more than {} "
                                               "predictions; give fewer of them",
                                               documents.size(), documents[0].size(), options.seeds.size(),
                                               policies.size(), kMostPredictions));
  }
}

}  // namespace

double log_sum_exp(std::span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float v : logits) sum += std::exp(v - top);
  return top + std::log(sum);
}

double divergence(std::span<const float> p, double p_log_sum, std::span<const float> q, double q_log_sum) {
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = p[i] - p_log_sum;
    kl += std::exp(log_p) * (log_p - (q[i] - q_log_sum));
  }
  return kl;
}

int argmax(std::span<const float> row) {
  return static_cast<int>(std::max_element(row.begin(), row.end()) - row.begin());
}

void check_fits(int tokens, const ModelConfig& config) {
  if (tokens > config.context) {
    throw Error(ErrorKind::kUsage,
                fmt::format("documents of {} tokens do not fit the model's context of {}", tokens, config.context));
  }
}

std::vector<LockstepRun> decode_in_step(Model& model, const std::vector<const Policy*>& policies,
                                        const Documents& documents, const LockstepOptions& options) {
  CARPOOL_CHECK(options.batch > 0 && !options.seeds.empty());
  check_documents(policies, documents, options, model.config());
  const auto batch = static_cast<size_t>(options.batch);
  const int tokens = static_cast<int>(documents[0].size());
  const size_t groups = documents.size() / batch, seeds = options.seeds.size();
  const std::unique_ptr<Policy> topk = make_policy("topk");
  std::vector<Pass> passes;
  passes.reserve(policies.size() + 1);
  passes.emplace_back(topk.get(), model, options.batch, documents.size(), tokens);  // the reference comes first
  for (const Policy* p : policies) passes.emplace_back(p, model, options.batch, documents.size(), tokens);
  DocumentBatch group(model, documents, passes, options.observer);
  for (size_t s = 0; s < seeds; ++s) {
    const std::vector<size_t> order = order_of(documents.size(), options.seeds[s]);
    for (size_t g = 0; g < groups; ++g) {
      const auto which = std::span(order).subspan(g * batch, batch);
      for (int t = 0; t + 1 < tokens; ++t) {
        group.step(which, t);
        const double done = static_cast<double>(s * groups + g) + static_cast<double>(t + 1) / (tokens - 1);
        if (options.progress) options.progress(done / static_cast<double>(groups * seeds));
      }
    }
  }
  std::vector<LockstepRun> runs;
  const double each = static_cast<double>(seeds) * (tokens - 1);  // predictions of a document
  for (Pass& pass : passes) {
    for (auto* sums : {&pass.run.loss, &pass.run.kl, &pass.run.agree}) {
      for (double& v : *sums) v /= each;
    }
    runs.push_back(std::move(pass.run));
  }
  return runs;
}

}  // namespace carpool
