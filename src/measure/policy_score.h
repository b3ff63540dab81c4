// What policies cost in quality, batch size by batch size: the report of `carpool eval MODEL --policy ... --batch ...`.
//
// Owns PolicyScore, made from a run in step (lockstep.h), and its spelling in tables and JSON. Intervals are 95 %,
// by bootstrap over documents, which are independent where predictions within one are not.
#pragma once

#include <string>
#include <vector>

#include "measure/bench_report.h"
#include "measure/lockstep.h"
#include "measure/result.h"

namespace carpool {

struct PolicyScore {
  std::string policy;
  int batch = 0;
  int documents = 0;
  int64_t predictions = 0;       // per seed
  Estimate cross_entropy;        // nats per token
  Estimate cross_entropy_delta;  // against topk on the same documents
  Estimate kl_mean;              // KL(topk || policy) per token
  double kl_median = 0, kl_p99 = 0;
  Estimate top1_agreement;
  RoutingCounters routing;

  Estimate perplexity() const;  // exp of the cross-entropy
};

// `reference` is run 0 of the same decode_in_step.
PolicyScore score_run(const std::string& policy, int batch, const LockstepRun& run, const LockstepRun& reference);

// Sorted copy's value at the share `q` of the way, the nearest rank; 0 without values.
double quantile(std::vector<float> values, double q);

Table score_table(const std::vector<PolicyScore>& scores);
json::object score_json(const PolicyScore& score);
// One line per document, without the newline: {"policy", "batch", "document", "cross_entropy", "cross_entropy_delta",
// "kl_mean", "top1_agreement"}, documents counted from 1.
std::vector<std::string> document_lines(const std::string& policy, int batch, const LockstepRun& run,
                                        const LockstepRun& reference);

}  // namespace carpool
