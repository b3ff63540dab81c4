// Routing traces: which experts a model chose for each token, in a form that policies can be replayed on.
//
// Owns Trace, its file format and the reading of other projects' formats (trace_import.cc). carpool's own format is
// text, one JSON object per line, described in docs/traces.md: a header, then one line per token, so that a file that
// was cut short loses its last line at most. Traces are as private as prompts: text can be recovered from them. Does
// not own replay (trace_replay.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace carpool {

struct TraceSequence {
  std::string name;
  int positions = 0;
  std::vector<int16_t> ids;      // [positions, L, K] experts; -1 at the end where a token has fewer
  std::vector<float> weights;    // the same: what the model weighs them with, or empty
  std::vector<float> rank, mix;  // [positions, L, E] all scores of the router, or empty
  std::vector<int> tokens;       // [positions] token ids, or empty
  std::vector<uint64_t> logits;  // [positions] checksum64 of the float32 logits; 0 = not recorded; or empty
};

struct Trace {
  std::string source;              // where it was read from, for messages
  std::string model;               // what the file says, or ""
  std::string model_hash, policy;  // of what carpool recorded, or ""
  std::string routers;             // of it: model/routing_tables.h, router_hash; "" also of files that differ in it
  int n_experts = 0;
  int top_k = 0;
  std::vector<int> layers;  // [L] the model's numbers of the layers that were recorded
  bool ranked = true;       // ids stand best first
  std::vector<TraceSequence> sequences;
  std::vector<std::string> notes;  // what a reader should know: a torn last line, inferred sizes

  bool has_weights() const;  // of every sequence
  bool has_scores() const;
  int64_t tokens() const;
  size_t slots() const { return layers.size() * static_cast<size_t>(top_k); }
  // The experts of one token in layer index l, [K].
  std::span<const int16_t> experts(const TraceSequence& s, int position, size_t l) const {
    return {s.ids.data() + static_cast<size_t>(position) * slots() + l * static_cast<size_t>(top_k),
            static_cast<size_t>(top_k)};
  }
};

inline constexpr int kMaxTraceExperts = 4096, kMaxTraceK = 256, kMaxTraceLayers = 1024;
inline constexpr size_t kMaxTraceFile = size_t{2} << 30;

// Reads files and folders as one trace. Formats are told apart by themselves: carpool's own; GPT-OSS expert
// fingerprints (JSON with "router_data"); ESFT expert_weights_<layer>.txt, one file per layer and task; JSON lines of
// {"tok", "layers"}; NumPy arrays [tokens, layers, k] of int16 or int32 as SGLang and vLLM return routed experts
// (.npy). `n_experts` 0 infers the number of experts where the files do not say it. Error{kMissing}, kMalformed with
// file and line, kConfig when files do not belong to one model.
Trace read_traces(const std::vector<std::string>& paths, int n_experts = 0);

// One line each, without the newline. `s` may hold a part of a sequence: its position `p` is written as position
// `shown`.
std::string trace_header(const Trace& trace);
std::string trace_line(const Trace& trace, const TraceSequence& s, int p, int shown);
// Writes a whole trace, complete or not at all.
void write_trace(const Trace& trace, const std::string& path);

}  // namespace carpool
