// A report with known numbers, for the tests of every writer.
#pragma once

#include "measure/result.h"

namespace carpool {

inline ResultRow plain_row(int batch) {
  ResultRow row;
  row.policy = "topk";
  row.batch = batch;
  row.steps_measured = 315;
  row.repeats = 5;
  row.step_ms = {20, 19.5, 20.75};
  row.tokens_per_second = {800, 771.1, 820.5};
  row.speedup = Estimate{1, 1, 1};
  row.distinct_experts = row.distinct_experts_plain = 47.5;
  row.bytes_per_step = 123.46e6;
  row.read_gbps = 14.3;
  row.dense_bytes_per_step = 2.84e6;
  row.floor_share = 0.432;
  row.quality = Quality{16320, 64, 3.1416, {0, 0, 0}, 0, 1};
  row.routing.layers = 2520;
  row.routing.distinct_experts = row.routing.distinct_plain = 119700;  // 47.5 per layer
  row.routing.plain_rows[1] = 40320;
  row.routing.plain_steps[1] = 2520;
  return row;
}

inline ResultRow oea_row(int batch) {
  ResultRow row = plain_row(batch);
  row.policy = "oea:k0=5";
  row.step_ms = {16.8, 16.5, 17.1};
  row.tokens_per_second = {952.4, 935.7, 969.7};
  row.speedup = Estimate{1.19, 1.163, 1.22};
  row.distinct_experts = 36.1;
  row.bytes_per_step = 98.76e6;
  row.floor_share = 0.411;
  row.quality = Quality{16320, 64, 3.1536, {0.012, 0.009, 0.0151}, 0.02345, 0.9321};
  row.routing = {};
  row.routing.layers = 2520;
  row.routing.distinct_experts = 90972;  // 36.1 per layer
  row.routing.distinct_plain = 119700;
  row.routing.plain_rows[0] = 40320;
  row.routing.rerouted_tokens = 10080;
  row.routing.underfilled_tokens = 504;
  row.routing.plain_steps[4] = 7;
  return row;
}

inline ResultRow mixed_row(const ResultRow& decode) {
  ResultRow row = decode;
  row.steps = "mixed";
  row.quality.reset();
  row.speedup.reset();
  row.steps_measured = 11;
  row.step_ms = {61.25, 60.5, 66.5};
  return row;
}

inline Report sample_report() {
  Report report;
  report.facts = {"carpool ab models/books --a topk --b oea:k0=5",
                  "0123456789ab",
                  "A processor, 2 threads on 2 CPUs",
                  "models/books (qwen3_moe)",
                  {{"cold copies", "3"}, {"seed", "7"}}};
  report.rows = {plain_row(16), oea_row(16), mixed_row(plain_row(16)), mixed_row(oea_row(16))};
  return report;
}

}  // namespace carpool
