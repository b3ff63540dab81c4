// Decode steps of a model at given batches and policies, without an engine around them.
//
// Owns the timing loop of `carpool bench decode`: every sequence gets its own stream of random tokens, drawn uniformly
// at every step (teacher-forced), so that rows do not fall into one hidden state and one set of experts. All (policy,
// batch) rows run once per repeat, policies of one batch on the same tokens. Times are of Model::forward alone; what an
// engine adds to a step of such a batch (scheduling, accounts, greedy tokens) is reported beside them. Reports the
// columns of llama-batched-bench, bytes and the memory floor. Read next: ab.h, which has the quality.
#pragma once

#include <string>
#include <vector>

#include "measure/bench_report.h"
#include "model/model.h"
#include "model/step_times.h"
#include "tensor/random_bits.h"

namespace carpool {

struct DecodeOptions {
  std::vector<std::string> policies = {"topk"};  // the first is the one that ratios refer to
  std::vector<int> batches = {1, 4, 8, 16, 32, 64};
  int prompt = 4;  // tokens of each sequence before the first decode step
  int steps = 12;  // decode steps of a row and repeat
  int repeats = 5;
  int chunk = 512;  // prompt rows per step
  uint64_t seed = 1;
  size_t probe_bytes = 0;  // of BenchProbe
  BenchProgress progress;
};

// One (policy, batch).
struct DecodeRow {
  std::string policy;
  int batch = 0;
  int prompt = 0, steps = 0;     // of a sequence
  Estimate prefill_s, decode_s;  // of all sequences' prompts, and of all decode steps
  Estimate step_ms;
  Estimate ratio;                  // step time over the first policy's at this batch, paired by repeat
  RoutingCounters routing;         // of the decode steps
  double distinct = 0, plain = 0;  // experts per MoE layer and step: loaded, and by plain routing
  double rows_per_expert = 0;      // slots / loaded experts
  double uniform = 0;              // experts that independent uniform routing would load; 0 without routed experts
  double expert_bytes = 0;         // per step
  double dense_bytes = 0;          // per step: dense weights, keys and values
  Estimate read_gbps;              // probe before each repeat: median, least, most
  Estimate floor_share;            // of the step, what reading its bytes once takes
  StepTimes times;                 // mean per step, seconds; zeros when the model does not say
  double engine_s = 0;             // mean per step, not part of it: what an engine does around the forward pass
  double bytes() const { return expert_bytes + dense_bytes; }
  double gbps() const { return bytes() / (step_ms.value * 1e6); }
};

// Error{kUsage} for options out of range or sequences that do not fit the context; kConfig for policies that do not fit
// the model. Before anything is timed.
void check_decode(const ModelConfig& config, const DecodeOptions& options);

// check_decode, one warm-up step of the largest batch, then the rows, in the order (batch, policy).
std::vector<DecodeRow> run_decode(Model& model, const DecodeOptions& options);

// Sets the tables and rows of `report` and adds warnings (collapsed routing, bytes from cache) and, where a policy
// changed the model's choice, the sentence on quality. `model_name` as typed.
void report_decode(const std::vector<DecodeRow>& rows, const ModelConfig& config, const std::string& model_name,
                   int repeats, BenchReport& report);

// Tokens that a sequence of a bench sees: uniform over the vocabulary, a stream per (seed, repeat, sequence).
class TokenStream {
 public:
  TokenStream(uint64_t seed, int repeat, int sequence, int vocab);
  int next();

 private:
  RandomBits bits_;
  int vocab_;
};

}  // namespace carpool
