#include "measure/quality.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace carpool {
namespace {

// KL(p || q) of the distributions behind two rows of logits.
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

// One policy's pass over the text: its own cache, its own sums.
struct Pass {
  const Policy* policy;
  KvCache kv;
  std::vector<std::vector<int>> blocks;
  RoutingCounters routing;
  double kl = 0;
  int64_t agree = 0;
  std::vector<double> document_loss;  // mean nats per token

  Pass(const Policy* p, const Model& model, int batch, int tokens)
      : policy(p),
        kv(model.config(), int64_t{KvCache::blocks_for(tokens)} * KvCache::kBlockTokens * batch, model.kv_format()),
        blocks(static_cast<size_t>(batch)) {}
};

[[noreturn]] void refuse_logits(size_t document, int t) {
  throw Error(ErrorKind::kMalformed,
              fmt::format("the model's logits are not finite at document {} position {}", document + 1, t + 1));
}

// The rows of step `t`: token t of each document of the group.
void fill_rows(const Documents& documents, size_t first, int t, Pass& pass, Rows& rows) {
  rows.clear();
  for (size_t b = 0; b < pass.blocks.size(); ++b) {
    rows.push(documents[first + b][static_cast<size_t>(t)], t, pass.blocks[b].data(), {Phase::kDecode, false, 0}, true);
  }
}

}  // namespace

double log_sum_exp(std::span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float v : logits) sum += std::exp(v - top);
  return top + std::log(sum);
}

SplitText split_documents(std::string_view text) {
  SplitText out;
  size_t begin = 0;  // of the document under way
  const auto take = [&](size_t end) {
    if (end > begin) out.documents.push_back(text.substr(begin, end - begin));
  };
  for (size_t at = 0; at < text.size();) {
    const size_t newline = text.find('\n', at);
    const size_t next = newline == std::string_view::npos ? text.size() : newline + 1;
    const std::string_view line = text.substr(at, next - at);
    if (line == "---\n" || line == "---\r\n" || line == "---") {
      size_t end = at;
      if (end > begin) --end;  // the newline before the separator
      if (end > begin && text[end - 1] == '\r') --end;
      take(end);
      out.list = true;
      begin = next;
    }
    at = next;
  }
  take(text.size());
  return out;
}

Documents read_starts(const Tokenizer& tokenizer, const std::vector<std::string>& paths, const TextOptions& options,
                      int stretch) {
  CARPOOL_CHECK(options.tokens > 0 && stretch >= options.tokens);
  const auto length = static_cast<size_t>(options.tokens);
  Documents documents;
  const auto full = [&] { return documents.size() == static_cast<size_t>(options.documents); };
  for (const std::string& path : paths) {
    const std::string text = read_text_file(path);
    const SplitText split = split_documents(text);
    for (size_t d = 0; d < split.documents.size() && !full(); ++d) {
      const std::vector<int> ids = tokenizer.encode(split.documents[d], false, false);
      for (size_t i = 0; i + length <= ids.size() && !full(); i += static_cast<size_t>(stretch)) {
        documents.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(i),
                               ids.begin() + static_cast<std::ptrdiff_t>(i + length));
        if (split.list) break;
      }
    }
  }
  return documents;
}

Documents read_documents(const Tokenizer& tokenizer, const std::vector<std::string>& paths,
                         const TextOptions& options) {
  Documents documents = read_starts(tokenizer, paths, options, options.tokens);
  if (documents.size() < static_cast<size_t>(options.documents)) {
    throw Error(ErrorKind::kUsage, fmt::format("the text gives {} documents of {} tokens, {} are needed",
                                               documents.size(), options.tokens, options.documents));
  }
  return documents;
}

void check_fits(int tokens, const ModelConfig& config) {
  if (tokens > config.context) {
    throw Error(ErrorKind::kUsage,
                fmt::format("documents of {} tokens do not fit the model's context of {}", tokens, config.context));
  }
}

QualityRun teacher_forced(Model& model, const std::vector<const Policy*>& policies, const Documents& documents,
                          int batch, const std::function<void(double)>& progress) {
  const size_t groups = documents.size() / static_cast<size_t>(batch);
  if (groups == 0 || groups * static_cast<size_t>(batch) != documents.size()) {
    throw Error(ErrorKind::kUsage, fmt::format("{} documents do not fill batches of {}", documents.size(), batch));
  }
  check_fits(static_cast<int>(documents[0].size()), model.config());
  const int tokens = static_cast<int>(documents[0].size());
  const std::unique_ptr<Policy> topk = make_policy("topk");
  std::vector<Pass> passes;
  passes.emplace_back(topk.get(), model, batch, tokens);  // the reference comes first
  for (const Policy* p : policies) passes.emplace_back(p, model, batch, tokens);

  Rows rows;
  std::vector<float> reference;
  std::vector<double> reference_sum(static_cast<size_t>(batch));
  for (size_t g = 0; g < groups; ++g) {
    for (Pass& pass : passes) {
      for (auto& table : pass.blocks) CARPOOL_CHECK(pass.kv.take(KvCache::blocks_for(tokens), table));
      pass.document_loss.resize(pass.document_loss.size() + static_cast<size_t>(batch));
    }
    const size_t first = g * static_cast<size_t>(batch);
    for (int t = 0; t + 1 < tokens; ++t) {
      for (size_t p = 0; p < passes.size(); ++p) {
        Pass& pass = passes[p];
        fill_rows(documents, first, t, pass, rows);
        const Matrix logits = model.forward(rows, pass.kv, *pass.policy, {.routing = &pass.routing});
        if (p == 0) reference.assign(logits.data, logits.data + static_cast<size_t>(logits.rows) * logits.cols);
        for (size_t b = 0; b < static_cast<size_t>(batch); ++b) {
          const auto width = static_cast<size_t>(logits.cols);
          const std::span<const float> row(logits.row(static_cast<int>(b)), width),
              base(reference.data() + b * width, width);
          const double sum = log_sum_exp(row);
          if (p == 0) reference_sum[b] = sum;
          const double loss = sum - row[static_cast<size_t>(documents[first + b][static_cast<size_t>(t) + 1])];
          const double kl = divergence(base, reference_sum[b], row, sum);
          if (!std::isfinite(loss) || !std::isfinite(kl)) refuse_logits(first + b, t);
          pass.document_loss[first + b] += loss / (tokens - 1);
          pass.kl += kl;
          pass.agree += argmax(base) == argmax(row);
        }
      }
      if (progress)
        progress((static_cast<double>(g) + static_cast<double>(t + 1) / (tokens - 1)) / static_cast<double>(groups));
    }
    for (Pass& pass : passes) {
      for (auto& table : pass.blocks) pass.kv.give_back(table);
    }
  }
  QualityRun run;
  for (size_t p = 1; p < passes.size(); ++p) {
    const Pass& pass = passes[p];
    Quality q;
    q.documents = static_cast<int>(pass.document_loss.size());
    q.tokens = int64_t{q.documents} * (tokens - 1);
    q.cross_entropy = mean(pass.document_loss);  // by document: the same bits at every batch
    q.kl_mean = pass.kl / static_cast<double>(q.tokens);
    q.top1_agreement = static_cast<double>(pass.agree) / static_cast<double>(q.tokens);
    std::vector<double> delta = pass.document_loss;
    for (size_t d = 0; d < delta.size(); ++d) delta[d] -= passes[0].document_loss[d];
    q.cross_entropy_delta = bootstrap(delta, mean);
    run.quality.push_back(q);
    run.routing.push_back(pass.routing);
  }
  return run;
}

}  // namespace carpool
