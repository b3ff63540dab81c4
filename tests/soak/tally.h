// What the load saw: outcomes, statuses, times, and everything that must not happen.
//
// Owns Tally and Samples. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"

namespace carpool::soak {

// Times, for percentiles.
class Samples {
 public:
  void add(double seconds) { values_.push_back(seconds); }
  void add(const Samples& other) { values_.insert(values_.end(), other.values_.begin(), other.values_.end()); }
  size_t count() const { return values_.size(); }
  double percentile(double p) const;  // 0..100, nearest rank; 0 without samples
  double max() const { return percentile(100); }
  json::object milliseconds() const;  // {"count", "p50", "p99", "max"}
  json::object seconds() const;

 private:
  std::vector<double> values_;
};

class Tally {
 public:
  void outcome(const std::string& name) { ++outcomes_[name]; }
  void status(int status);
  // Something that must not happen; `details` of the first of each kind are kept.
  void violation(const std::string& kind, const std::string& details);

  int64_t outcomes(const std::string& name) const;
  int64_t violations() const { return n_violations_; }
  json::object report() const;

  Samples first_piece;      // request sent to the first byte of the answer to a stream
  int64_t tokens = 0;       // of answers that came whole
  int64_t right_texts = 0;  // answers, whole or cut, that were compared and right

 private:
  std::map<std::string, int64_t> outcomes_, violation_counts_;
  std::map<int, int64_t> statuses_;
  std::vector<std::string> examples_;
  int64_t n_violations_ = 0;
};

}  // namespace carpool::soak
