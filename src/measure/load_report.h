// One load test as people and programs read it: SGLang's printed block and its JSON line.
//
// Owns LoadReport, the block that bench_serving prints (same rows, same order, one more row for failures), the object
// it appends to its output file (same keys, and after them ours), and Markdown from tables. The A/B is in load_ab.h.
#pragma once

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "measure/bench_report.h"
#include "measure/load_metrics.h"
#include "measure/load_server.h"

namespace carpool {

struct LoadReport {
  std::string tag, backend, dataset, model, url;
  double request_rate = std::numeric_limits<double>::infinity();
  int max_concurrency = 0;  // 0 = not set
  std::optional<int> sharegpt_output_len;
  int random_input_len = 0, random_output_len = 0;
  double random_range_ratio = 0;
  json::value server_info;  // null when the server has none
  LoadMetrics metrics;
  std::optional<int64_t> retokenized;  // tokens of the generated texts, counted again by /tokenize
  std::map<std::string, FailureCount> failures;
  std::map<std::string, int> routing;      // what applied, by response headers
  std::optional<ServerCounters> counters;  // what the server counted meanwhile
};

std::string load_block(const LoadReport& report);
// The line for the output file. `details`: the outcomes, for --output-details, or null.
json::object load_line(const LoadReport& report, const std::vector<LoadOutcome>* details);
// "Failed requests" with their first messages, what routing applied, what the server counted; one sentence each.
std::vector<std::string> load_notes(const LoadReport& report);
// The row of --json: the house's spelling of what load_line has.
json::object load_row(const LoadReport& report);

// Distribution `d` as mean_, median_, std_, p90_ ... with `name` ("ttft_ms"); p90, p95 and p99 are always there.
void put_distribution(json::object& out, const std::string& name, const Distribution& d);

// What must stand beside the speed of `policy`: where its quality is measured. Empty for plain routing.
std::string quality_sentence(const std::string& policy);
// True for topk and isolated.
bool plain_spec(const std::string& policy);

// Distinct experts per MoE layer and step, of decode-only steps where there were any.
struct ExpertCount {
  double loaded = 0, plain = 0;
};
ExpertCount experts_per_layer(const ServerCounters& counters);

std::string to_markdown(const Table& table);
// Facts, tables and notes of a report.
std::string markdown(const BenchReport& report);

}  // namespace carpool
