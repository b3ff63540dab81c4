// What a model will cost here, before it is loaded: parameters, bytes, distinct experts per batch, the memory floor.
//
// Owns the arithmetic behind `carpool inspect`: sizes from ModelConfig alone, expected distinct experts under uniform
// routing, and the same counted on a text under the model's own routing. Speeds are upper bounds: bytes that a step
// must read over the measured read bandwidth. Reads no file and measures no time. Read next: cli/inspect.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "measure/assumed_formats.h"
#include "measure/report.h"
#include "model/config.h"
#include "model/model.h"

namespace carpool {

// Numbers of parameters, from the configuration.
struct Parameters {
  int64_t attention = 0, router = 0, dense = 0, shared = 0, experts = 0,
          norms = 0;  // all layers; the final norm is in norms
  int64_t per_expert = 0;
  int64_t embedding = 0;  // [V, D], once more as `head` unless tied
  int64_t head = 0;
  int64_t total = 0;
  int64_t unused = 0;  // of the prediction layers, which are not run; not in the total
  int64_t active = 0;  // that one token reads: all but the experts it does not use and the embedding's rows
};
Parameters count_parameters(const ModelConfig& config);

// Bytes that a decode step may read.
struct StepBytes {
  double per_expert = 0;    // one expert of one layer
  double dense = 0;         // read by every step whatever was routed
  double kv_per_token = 0;  // keys and values of one position, all layers
  double weights = 0;       // the whole model, as files hold it
  KvFormat kv_format = KvFormat::kF32;
  std::string source;  // "BF16 98.1 %, F32 1.9 %" of the files, or "assumed bf16"

  // The cache of a model, in this format.
  void set_kv(const ModelConfig& config, KvFormat format);
};
// Sizes if matrices were stored in these formats, as panels in memory; norms, biases and the router are float32 there.
// `weights` is what a file would hold, without panels.
StepBytes assumed_bytes(const ModelConfig& config, const AssumedFormats& formats);

// E * (1 - (1 - k / E)^B): distinct experts of B rows that each choose k of E uniformly and independently.
double uniform_union(int n_experts, int k, int batch);

// Expected experts per layer and step under oea:k0 when B rows choose uniformly and independently: the exact
// distribution of the union of their best k0, where a union smaller than K (and a lone row) stays plain. Such a step is
// counted with the plain union's mean over all steps; its own is a little smaller, as small unions of the best k0 go
// with small plain ones.
double uniform_oea(int n_experts, int k0, int top_k, int batch);

// Experts per layer and step that a batch loads under oea:k0, when unions are `union_of_k0` and plain routing would
// load `plain`: a lone row, or a union smaller than K, stays plain (the policy's default guards).
double oea_distinct(double union_of_k0, double plain, int top_k, int batch);

// The settings that inspect shows beside plain routing: K, about K/2 and 3K/8, descending, each once.
std::vector<int> shown_k0(int top_k);

// Counted on a text: plain routing, B streams in lockstep.
struct TextRouting {
  int batch = 0;
  int steps = 0;
  std::vector<double> distinct;  // [K] by k0 - 1: mean per MoE layer and step under oea:k0; the last is plain routing
  double busiest_share = 0;      // mean over layers: share of all slots that the busiest expert gets
  double even_experts = 0;       // mean over layers: exp(entropy of the slots), E when all are equally busy
};
// Cuts `tokens` into `batch` streams of equal length and runs at most `max_steps` steps, all rows decode. Every step's
// unions are exact for the scores that plain routing sees. nullopt when a stream would have fewer than 8 tokens.
std::optional<TextRouting> count_on_text(Model& model, std::span<const int> tokens, int batch, int max_steps = 64);

// One (policy, batch) of the prediction.
struct InspectRow {
  std::string policy;  // "topk" or "oea:k0=N"
  int k0 = 0;
  int batch = 0;
  double uniform = 0;                                       // expected distinct experts under uniform routing
  std::optional<double> text;                               // counted on the text
  double distinct_experts = 0, distinct_experts_plain = 0;  // from the text where there is one
  double bytes_per_step = 0;
  double tokens_per_second_bound = 0;
};

struct InspectInput {
  std::vector<int> batches;
  int context_tokens = 0;  // positions that each row attends to
  double read_gbps = 0;    // 10^9 bytes per second
  std::vector<TextRouting> text;
};
// Rows in the order batch, k0. Without MoE layers the rows are of "topk" alone and count no experts.
std::vector<InspectRow> predict(const ModelConfig& config, const StepBytes& bytes, const InspectInput& input);

struct InspectReport {
  RunFacts facts;
  ModelConfig config;
  Parameters parameters;
  StepBytes bytes;
  InspectInput input;
  std::vector<InspectRow> rows;
  size_t cache_bytes = 0;  // last-level cache; 0 = unknown
};
std::string inspect_text(const InspectReport& report);
json::value inspect_json(const InspectReport& report);

}  // namespace carpool
