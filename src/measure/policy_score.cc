#include "measure/policy_score.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace carpool {
namespace {

std::vector<double> deltas(const LockstepRun& run, const LockstepRun& reference) {
  std::vector<double> out = run.loss;
  for (size_t d = 0; d < out.size(); ++d) out[d] -= reference.loss[d];
  return out;
}

}  // namespace

Estimate PolicyScore::perplexity() const {
  return {std::exp(cross_entropy.value), std::exp(cross_entropy.lo), std::exp(cross_entropy.hi)};
}

double quantile(std::vector<float> values, double q) {
  if (values.empty()) return 0;
  const auto last = static_cast<double>(values.size() - 1);
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::llround(std::clamp(q, 0.0, 1.0) * last));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

PolicyScore score_run(const std::string& policy, int batch, const LockstepRun& run, const LockstepRun& reference) {
  PolicyScore s;
  s.policy = policy;
  s.batch = batch;
  s.documents = static_cast<int>(run.loss.size());
  s.predictions = run.predictions;
  s.cross_entropy = bootstrap(run.loss, mean);
  s.cross_entropy_delta = bootstrap(deltas(run, reference), mean);
  s.kl_mean = bootstrap(run.kl, mean);
  s.kl_median = quantile(run.token_kl, 0.5);
  s.kl_p99 = quantile(run.token_kl, 0.99);
  s.top1_agreement = bootstrap(run.agree, mean);
  s.routing = run.routing;
  return s;
}

Table score_table(const std::vector<PolicyScore>& scores) {
  Table table{"Quality against topk, teacher-forced, documents decoded in step",
              {"policy", "batch", "experts", "plain", "nats/token", "perplexity", "delta", "KL", "KL median", "KL 99 %",
               "top-1"},
              {}};
  for (const PolicyScore& s : scores) {
    const auto layers = static_cast<double>(std::max<int64_t>(s.routing.layers, 1));
    const Estimate& top1 = s.top1_agreement;
    table.rows.push_back(
        {s.policy, std::to_string(s.batch), number_text(static_cast<double>(s.routing.distinct_experts) / layers, 2),
         number_text(static_cast<double>(s.routing.distinct_plain) / layers, 2), number_text(s.cross_entropy.value, 4),
         number_text(s.perplexity().value, 2), estimate_text(s.cross_entropy_delta, 4, true),
         estimate_text(s.kl_mean, 5), number_text(s.kl_median, 5), number_text(s.kl_p99, 4),
         estimate_text({100 * top1.value, 100 * top1.lo, 100 * top1.hi}, 1) + " %"});
  }
  return table;
}

json::object score_json(const PolicyScore& s) {
  json::object row{
      {"policy", s.policy}, {"batch", s.batch}, {"quality_documents", s.documents}, {"quality_tokens", s.predictions}};
  put_estimate(row, "cross_entropy", s.cross_entropy);
  put_estimate(row, "perplexity", s.perplexity());
  put_estimate(row, "cross_entropy_delta", s.cross_entropy_delta);
  put_estimate(row, "kl_mean", s.kl_mean);
  put_number(row, "kl_median", s.kl_median);
  put_number(row, "kl_p99", s.kl_p99);
  put_estimate(row, "top1_agreement", s.top1_agreement);
  for (const auto& entry : routing_json(s.routing)) row[entry.key()] = entry.value();
  return row;
}

std::vector<std::string> document_lines(const std::string& policy, int batch, const LockstepRun& run,
                                        const LockstepRun& reference) {
  std::vector<std::string> lines;
  const std::vector<double> delta = deltas(run, reference);
  for (size_t d = 0; d < run.loss.size(); ++d) {
    json::object line{{"policy", policy}, {"batch", batch}, {"document", d + 1}};
    put_number(line, "cross_entropy", run.loss[d]);
    put_number(line, "cross_entropy_delta", delta[d]);
    put_number(line, "kl_mean", run.kl[d]);
    put_number(line, "top1_agreement", run.agree[d]);
    lines.push_back(json::serialize(line));
  }
  return lines;
}

}  // namespace carpool
