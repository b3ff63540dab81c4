// What all benches share: repeated medians, the bandwidth probe of the same run, and the report.
//
// Owns BenchReport (facts, tables for people, rows for JSON, sentences), RowTimes and BenchProbe. A bench runs all its
// rows once per repeat, A B A B, with a pass of the probe before each; what is reported is the median over repeats of
// a row's median step. Read next: bench_decode.h, bench_layer.h, bench_kernels.h.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "backend/ops.h"
#include "base/json.h"
#include "base/large_buffer.h"
#include "measure/report.h"
#include "measure/result.h"

namespace carpool {

using BenchProgress = std::function<void(const std::string& stage, double share)>;

struct BenchReport {
  RunFacts facts;
  std::vector<Table> tables;
  std::vector<std::string> notes;  // sentences, shown below the tables and as "notes" in JSON
  json::array results;             // one object per row
  json::object summary;            // further keys of the JSON object
};

std::string bench_text(const BenchReport& report);
// {"command", "commit", "machine", "model", "settings", "results": [...], <summary>, "notes": [...]}.
json::value bench_json(const BenchReport& report);

// out[key] = value; Error{kInternal} for what is not finite, which JSON cannot say.
void put_number(json::object& out, const std::string& key, double value);
// key, key_lo and key_hi.
void put_estimate(json::object& out, const std::string& key, const Estimate& e);

// "repeats 5: medians with 95 % bootstrap intervals" or, of fewer than kIntervalRepeats, "with the extremes".
std::string spread_text(int repeats);

// The steps of one row: a median per repeat, and over repeats the median of those.
class RowTimes {
 public:
  void add_step(double seconds) { current_ms_.push_back(seconds * 1e3); }
  void end_repeat();
  Estimate ms() const { return median_with_interval(repeat_ms_); }
  const std::vector<double>& repeat_ms() const { return repeat_ms_; }

 private:
  std::vector<double> repeat_ms_, current_ms_;
};

// Time of `first` over that of `other`, repeat by repeat. Both need the same number of repeats.
Estimate paired_ratio(const std::vector<double>& first, const std::vector<double>& other);

// The share of a row's time that reading its `bytes` once would have taken, with the probe's pass before each repeat:
// median over repeats. One pass and one time per repeat.
Estimate paired_floor_share(double bytes, const std::vector<double>& read_gbps, const std::vector<double>& repeat_ms);

// Median, least and most.
Estimate median_with_extremes(const std::vector<double>& values);

// Passes over one buffer of at least 1 GiB and four last-level caches: bytes / seconds of all threads together reading
// every byte once, on pages like those of weights. GB = 10^9 bytes.
class BenchProbe {
 public:
  // `bytes` = 0 for the size above. Error{kNoMemory} when it does not fit.
  explicit BenchProbe(size_t bytes = 0);
  double pass(Ops& ops);  // GB/s

 private:
  LargeBuffer buffer_;
};

// Distinct experts of `rows` independent tokens that each pick K of E uniformly.
double uniform_experts(int n_experts, int top_k, int rows);

// True when plain routing loads so much less than uniform routing would that the batch cannot stand for real text:
// the rows of random models that see equal or drifting hidden states all pick the same experts.
bool routing_collapsed(double plain_experts, int n_experts, int top_k, int rows);

}  // namespace carpool
