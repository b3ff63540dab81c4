// Prompt processing of one sequence: tokens per second, as llama-bench counts pp.
//
// Owns the timing loop of `carpool bench prefill`. Random tokens, a fresh sequence per row and repeat, chunks of prompt
// rows, logits of the last token only. Prompt rows are never re-routed, so there is no policy. Read next:
// bench_decode.h.
#pragma once

#include <vector>

#include "measure/bench_report.h"
#include "model/model.h"

namespace carpool {

struct PrefillOptions {
  std::vector<int> tokens = {512, 2048};
  int chunk = 512;  // prompt rows per step
  int repeats = 5;
  uint64_t seed = 1;
  size_t probe_bytes = 0;  // of BenchProbe
  BenchProgress progress;
};

struct PrefillRow {
  int tokens = 0;
  int chunk = 0;
  Estimate prefill_ms;
  double distinct = 0;  // experts per MoE layer and step
  double rows_per_expert = 0;
  Estimate read_gbps;  // probe before each repeat: median, least, most
};

// Error{kUsage} for options out of range or prompts that do not fit the context.
void check_prefill(const ModelConfig& config, const PrefillOptions& options);

// check_prefill, one warm-up chunk, then every row once per repeat.
std::vector<PrefillRow> run_prefill(Model& model, const PrefillOptions& options);

// Sets the table and rows of `report`.
void report_prefill(const std::vector<PrefillRow>& rows, int repeats, BenchReport& report);

}  // namespace carpool
