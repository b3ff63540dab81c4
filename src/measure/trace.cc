#include "measure/trace.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "io/output_file.h"
#include "measure/trace_import.h"

namespace carpool {
namespace {

// Shortest text that reads back as the same float32; "-0" would read back as the integer. What is not finite (the score
// of an expert that may not be chosen) is null: JSON has no infinities.
std::string number(float value) {
  if (!std::isfinite(value)) return "null";
  return value == 0 && std::signbit(value) ? "-0.0" : fmt::format("{}", value);
}

std::string floats(std::span<const float> values) {
  std::string text;
  for (const float value : values) text += (text.empty() ? "" : ",") + number(value);
  return "[" + text + "]";
}

bool all_have(const std::vector<TraceSequence>& sequences, std::vector<float> TraceSequence::* member) {
  return !sequences.empty() &&
         std::none_of(sequences.begin(), sequences.end(), [&](const auto& s) { return (s.*member).empty(); });
}

void collect_files(const std::string& path, std::vector<std::string>& files) {
  namespace fs = std::filesystem;
  std::error_code ec;
  if (!fs::is_directory(path, ec)) {
    files.push_back(path);
    return;
  }
  std::vector<std::string> found;
  for (auto it = fs::recursive_directory_iterator(path, ec); !ec && it != fs::recursive_directory_iterator();
       it.increment(ec)) {
    const std::string name = it->path().filename().string();
    const std::string ending = it->path().extension().string();
    const bool known =
        ending == ".json" || ending == ".jsonl" || ending == ".npy" || name.starts_with("expert_weights_");
    if (it->is_regular_file(ec) && known) found.push_back(it->path().string());
  }
  if (ec) throw Error(ErrorKind::kMissing, fmt::format("{}: {}", escape(path), ec.message()));
  if (found.empty()) {
    throw Error(ErrorKind::kMissing, fmt::format("{}: the folder holds no traces (.jsonl, .json, .npy, "
                                                 "expert_weights_*.txt)",
                                                 escape(path)));
  }
  std::sort(found.begin(), found.end());
  files.insert(files.end(), found.begin(), found.end());
}

}  // namespace

bool Trace::has_weights() const { return all_have(sequences, &TraceSequence::weights); }
bool Trace::has_scores() const { return all_have(sequences, &TraceSequence::rank); }

int64_t Trace::tokens() const {
  int64_t n = 0;
  for (const TraceSequence& s : sequences) n += s.positions;
  return n;
}

Trace read_traces(const std::vector<std::string>& paths, int n_experts) {
  std::vector<std::string> files;
  for (const std::string& path : paths) collect_files(path, files);
  TraceBuilder builder(n_experts);
  for (const std::string& file : files) builder.add_file(file);
  Trace trace = builder.finish();
  trace.source = fmt::format("{}", fmt::join(paths, ", "));
  return trace;
}

std::string trace_header(const Trace& t) {
  json::object head{{"carpool_trace", 1},
                    {"model", t.model},
                    {"n_experts", t.n_experts},
                    {"top_k", t.top_k},
                    {"layers", json::array(t.layers.begin(), t.layers.end())},
                    {"ranked", t.ranked}};
  if (!t.model_hash.empty()) head["model_hash"] = t.model_hash;
  if (!t.routers.empty()) head["routers"] = t.routers;
  if (!t.policy.empty()) head["policy"] = t.policy;
  return json::serialize(head);
}

std::string trace_line(const Trace& t, const TraceSequence& s, int position, int shown) {
  std::string experts, weights, rank, mix;
  const auto K = static_cast<size_t>(t.top_k), E = static_cast<size_t>(t.n_experts);
  for (size_t l = 0; l < t.layers.size(); ++l) {
    const std::span<const int16_t> all = t.experts(s, position, l);
    const auto used = static_cast<size_t>(std::find(all.begin(), all.end(), -1) - all.begin());
    const char* comma = l ? "," : "";
    experts += fmt::format("{}[{}]", comma, fmt::join(all.first(used), ","));
    const size_t at = static_cast<size_t>(position) * t.slots() + l * K;
    const size_t row = (static_cast<size_t>(position) * t.layers.size() + l) * E;
    if (!s.weights.empty()) weights += comma + floats(std::span(s.weights).subspan(at, used));
    if (!s.rank.empty()) rank += comma + floats(std::span(s.rank).subspan(row, E));
    if (!s.mix.empty()) mix += comma + floats(std::span(s.mix).subspan(row, E));
  }
  std::string line = fmt::format("{{\"sequence\":{},\"position\":{},\"experts\":[{}]",
                                 json::serialize(json::value(s.name)), shown, experts);
  const auto p = static_cast<size_t>(position);
  if (!s.tokens.empty()) line += fmt::format(",\"token\":{}", s.tokens[p]);
  if (!s.logits.empty() && s.logits[p] != 0) line += fmt::format(",\"logits\":\"{:016x}\"", s.logits[p]);
  if (!weights.empty()) line += fmt::format(",\"weights\":[{}]", weights);
  if (!rank.empty()) line += fmt::format(",\"rank\":[{}],\"mix\":[{}]", rank, mix);
  return line + "}";
}

void write_trace(const Trace& trace, const std::string& path) {
  OutputFile file(path, true, static_cast<uint64_t>(trace.tokens()) * trace.slots());
  file.write(trace_header(trace) + "\n");
  for (const TraceSequence& s : trace.sequences) {
    for (int p = 0; p < s.positions; ++p) file.write(trace_line(trace, s, p, p) + "\n");
  }
  file.commit();
}

}  // namespace carpool
