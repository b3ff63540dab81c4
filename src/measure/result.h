// A number with everything needed to repeat it.
//
// Owns the rows that every measuring command reports, their JSON spelling, the rule that no speed of a lossy policy
// leaves without its quality, and the facts about the run (command, commit, machine). Text tables and the HTML report
// are made from these in report.h.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "routing/counters.h"

namespace carpool {

// A value and its 95 % interval; of fewer than kIntervalRepeats repeats, the smallest and the largest.
struct Estimate {
  double value = 0, lo = 0, hi = 0;
};

// An interval from fewer repeats says nothing: reports for people leave it out.
inline constexpr int kIntervalRepeats = 5;

// Cost of a policy against plain routing, teacher-forced on fixed text.
struct Quality {
  int64_t tokens = 0;  // predictions scored
  int documents = 0;
  double cross_entropy = 0;      // nats per token under the policy
  Estimate cross_entropy_delta;  // mean over documents against topk; interval by bootstrap over documents
  double kl_mean = 0;            // KL(topk || policy), nats per token
  double top1_agreement = 0;     // share of predictions whose most likely token is topk's
};

// One (policy, batch): repeats folded in. Every member is a key of the JSON row with the same name. Rows of mixed steps
// make no claim of speed: their tokens_per_second, speedup, bytes, floor_share and quality are neither set nor written.
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
  double dense_bytes_per_step = 0;  // the part of bytes_per_step that is not experts: dense weights, keys and values
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
  size_t cache_bytes = 0;  // last-level cache; 0 = unknown
};

// True when the measured steps ran exactly the model's own choice: the row's policy is topk, or the counters say so.
bool ran_plain(const ResultRow& row);

// Error{kInternal} when a decode row that did not run plain has no quality, or one that is not finite: every writer of
// a report calls this first.
void require_quality(const Report& report);

// {"command", "commit", "machine", "model", "settings", "results": [...]}. Error{kInternal} instead of a number that is
// not finite.
json::value to_json(const Report& report);

// distinct_experts and distinct_experts_plain (means per MoE layer and step), rerouted_tokens, underfilled_tokens, and
// plain_steps by reason: the spelling of counters in every JSON.
json::object routing_json(const RoutingCounters& counters);

// "min_batch 12, union 3": (step, layer, group) triples left alone, by reason; "none".
std::string plain_reasons_text(const RoutingCounters& counters);

// This build's commit, "unknown" outside a git checkout; with "-dirty" when files differed.
std::string build_commit();
// "AMD EPYC 9B14, 2 threads on 2 CPUs, avx512, 24 GiB memory, 32 MiB last-level cache".
std::string machine_facts(int threads, const std::string& isa);

// `statistic` of `values` and the 2.5 and 97.5 percentiles of the statistics of 1,000 resamples (fixed seed). Zeros
// without values.
Estimate bootstrap(const std::vector<double>& values,
                   const std::function<double(const std::vector<double>&)>& statistic);
// Median over repeats: by bootstrap, or with the extremes of fewer than kIntervalRepeats values.
Estimate median_with_interval(const std::vector<double>& values);
double mean(const std::vector<double>& values);  // 0 without values
double median(std::vector<double> values);

}  // namespace carpool
