// A number with everything needed to repeat it.
//
// Owns the rows that every measuring command reports, their JSON spelling, the rule that no speed of a lossy policy
// leaves without its quality, and the facts about the run (command, commit, machine). Text tables and the HTML report
// are made from these in report.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "routing/counters.h"

namespace carpool {

// A median and its 95 % interval.
struct Estimate {
  double value = 0, lo = 0, hi = 0;
};

// Cost of a policy against plain routing, teacher-forced on fixed text.
struct Quality {
  int64_t tokens = 0;  // predictions scored
  int documents = 0;
  double cross_entropy = 0;      // nats per token under the policy
  Estimate cross_entropy_delta;  // mean over documents against topk; interval by bootstrap over documents
  double kl_mean = 0;            // KL(topk || policy), nats per token
  double top1_agreement = 0;     // share of predictions whose most likely token is topk's
};

// One (policy, batch): repeats folded in. Every member is a key of the JSON row with the same name.
struct ResultRow {
  std::string policy;
  int batch = 0;
  std::string steps = "decode";  // "decode" (full batch, no prompt rows) or "mixed"
  int64_t steps_measured = 0;
  int repeats = 0;
  Estimate tokens_per_second, step_ms;
  std::optional<Estimate> speedup;  // step time of the first policy / this one's, paired by repeat
  double distinct_experts = 0, distinct_experts_plain = 0;  // mean per MoE layer and step
  double bytes_per_step = 0, read_gbps = 0, floor_share = 0;
  std::optional<Quality> quality;
  RoutingCounters routing;  // rerouted_tokens, underfilled_tokens, plain_steps of the measured steps
};

struct RunFacts {
  std::string command;                                        // as typed
  std::string commit;                                         // of the build
  std::string machine;                                        // processor, threads, instruction set, memory
  std::string model;                                          // path and family
  std::vector<std::pair<std::string, std::string>> settings;  // what else decides the numbers, in order
};

struct Report {
  RunFacts facts;
  std::vector<ResultRow> rows;
};

// True when the measured steps ran exactly the model's own choice: the row's policy is topk, or the counters say so.
bool ran_plain(const ResultRow& row);

// Error{kInternal} when a decode row that did not run plain has no quality: every writer of a report calls this first.
void require_quality(const Report& report);

// {"command", "commit", "machine", "model", "settings", "results": [...]}.
json::value to_json(const Report& report);

// This build's commit, "unknown" outside a git checkout; with "-dirty" when files differed.
std::string build_commit();
// "AMD EPYC, 2 of 2 CPUs, avx512, 24 GiB".
std::string machine_facts(int threads, const std::string& isa);

// Median of `values` and the 2.5 and 97.5 percentiles of the medians of 1,000 resamples (fixed seed).
Estimate median_with_interval(std::vector<double> values);
double median(std::vector<double> values);

}  // namespace carpool
