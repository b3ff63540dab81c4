// What a load test measures, with the names and definitions of SGLang's bench_serving.
//
// Owns LoadOutcome (the timeline of one request) and LoadMetrics (all of them together). TTFT is the first chunk with
// visible text; ITL is the gap between chunks, divided among the tokens of a chunk where the API counts them; TPOT is
// (latency - TTFT) / (tokens - 1); percentiles are numpy's linear ones. Differences, docs/bench-serve.md: a request
// without visible text has no TTFT instead of 0, and the duration ends with the last reply. Knows no HTTP and no clock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace carpool {

// Times in seconds. `start` counts from the start of the load; the others from the request's own start, which is when
// it got its place among the --max-concurrency requests.
struct LoadOutcome {
  bool success = false;
  double start = 0;
  double ttft = -1;    // negative: no visible text came, or the reply was no stream
  double latency = 0;  // the last event of the reply
  std::vector<double> itl;
  int prompt_tokens = 0;  // as the server counts them; else as the data set does
  int output_tokens = 0;
  int cached_tokens = 0;
  bool counted = false;  // output_tokens is the server's number and not a number of chunks
  std::string text;      // generated
  std::string finish;    // "length", "stop"; empty when the server did not say
  std::string routing;   // what applied: the x-carpool-routing header
  std::string failure;   // what kind: "HTTP 503 overloaded", "timeout", "disconnected"; empty on success
  std::string message;   // of the failure, for people
};

struct Distribution {
  size_t count = 0;
  double mean = 0, median = 0, std = 0, max = 0;       // zeros without values
  std::vector<std::pair<double, double>> percentiles;  // (percent, value)
};

struct LoadMetrics {
  int completed = 0, failed = 0;
  int64_t total_input = 0, total_output = 0, total_cached = 0;  // tokens of completed requests
  double duration = 0;                                          // s
  double request_throughput = 0, input_throughput = 0, output_throughput = 0, total_throughput = 0;  // per second
  double peak_output = 0;   // token events of the fullest second; for OpenAI's APIs, chunks
  int peak_concurrent = 0;  // requests under way in the fullest second
  double concurrency = 0;   // sum of latencies / duration
  Distribution e2e_ms, ttft_ms, tpot_ms, itl_ms;
  int without_text = 0;  // completed, but no text was seen: like replies that are no streams, in no TTFT, TPOT, ITL
  int uncounted = 0;     // completed without the server's count: their tokens are chunks
};

// numpy.percentile(values, percent) with linear interpolation; `sorted` ascending, 0 without values.
double percentile(const std::vector<double>& sorted, double percent);
Distribution distribution(std::vector<double> values, const std::vector<double>& percents);

// `duration` in seconds, from the first dispatch to the last reply.
LoadMetrics summarise(const std::vector<LoadOutcome>& outcomes, double duration, const std::vector<double>& percents);

struct FailureCount {
  int count = 0;
  std::string message;  // of the first one
};
// By kind of failure.
std::map<std::string, FailureCount> failures(const std::vector<LoadOutcome>& outcomes);

// How many successful requests each routing applied to: {"oea:k0=5; scope=tenant": 64}. Without servers that say so:
// {}.
std::map<std::string, int> applied_routing(const std::vector<LoadOutcome>& outcomes);

}  // namespace carpool
