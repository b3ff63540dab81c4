// Two or more policies on one live server: alternating order, paired ratios with intervals, and the server's own
// counters as proof of which policy ran.
//
// Owns the order of runs (A B, B A, A B ... at every concurrency), the statistics over repeats, the prediction that
// stands beside the measurement, and the verdict, which refuses to name a winner when the counters or the response
// headers do not show that the arms ran what they were asked to. Sends nothing: the caller runs an arm. Read next:
// load_report.h, bench_report.h.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "measure/bench_report.h"
#include "measure/load_metrics.h"
#include "measure/load_server.h"

namespace carpool {

struct ServeAbOptions {
  std::vector<std::string> arms;  // policy specs, or "isolated"; the first is A, which ratios refer to
  std::vector<int> concurrency;
  int repeats = 5;
};

// One run of one arm.
struct ArmRun {
  LoadMetrics metrics;
  std::map<std::string, int> applied;      // by response headers
  std::optional<ServerCounters> counters;  // of this run; nothing when the server has none
  std::map<std::string, FailureCount> failures;
};

struct ServeAbLevel {
  int concurrency = 0;
  std::vector<std::vector<ArmRun>> runs;  // [arm][repeat]
};

// Experts of a layer and per token, where the server says so.
struct MoeSizes {
  int n_experts = 0, top_k = 0;  // 0 = unknown
};

// Runs the requests of `repeat` under `arm` at a concurrency. The requests must depend on the other two alone.
using RunArm = std::function<ArmRun(int concurrency, int repeat, size_t arm)>;

// Arms of a repeat in their order: forwards in even repeats, backwards in odd ones.
std::vector<size_t> arm_order(size_t arms, int repeat);

// Error{kUsage} for fewer than two arms, two alike, no concurrency or repeats out of range.
void check_serve_ab(const ServeAbOptions& options);
std::vector<ServeAbLevel> run_serve_ab(const ServeAbOptions& options, const RunArm& run_arm);

// Distinct experts under `spec` over those under topk when `rows` rows choose independently and uniformly; nothing
// for policies without a k0, or unknown sizes.
std::optional<double> predicted_experts_ratio(const std::string& spec, const MoeSizes& sizes, int rows);

// Why no winner can be named between arm 0 and `arm`, as sentences; empty when one can.
std::vector<std::string> objections(const ServeAbOptions& options, const ServeAbLevel& level, size_t arm);
// What the level says about `arm` against arm 0.
std::string verdict(const ServeAbOptions& options, const ServeAbLevel& level, size_t arm);

// Appends tables, rows and notes.
void report_serve_ab(const ServeAbOptions& options, const std::vector<ServeAbLevel>& levels, const MoeSizes& sizes,
                     BenchReport& report);

// What `carpool ab --json` measured of the arms, `where` being its file: policy, batch, change of cross-entropy, KL,
// top-1 agreement. Error{kMalformed} for another file, kUsage when an arm that is not plain is not in it.
Table measured_quality(const json::value& ab, const std::string& where, const std::vector<std::string>& arms);

}  // namespace carpool
