// Products of every format on every instruction set: the ladder from the scalar kernels to the best.
//
// Owns the timing loop of `carpool bench kernels`: Ops::matmul of one matrix [N, K] with 1..n rows, on one thread and
// on all, with the matrix in cache (hot: the same one again) and from memory (cold: as many copies in turn as make four
// last-level caches). All cells run once per repeat. What is timed is a whole call, quantisation of the rows included.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "measure/bench_report.h"
#include "tensor/format.h"

namespace carpool {

struct KernelOptions {
  std::vector<Format> formats;
  std::vector<std::string> isas;
  std::vector<int> rows = {1, 2, 4, 8, 16, 32};
  std::vector<int> threads = {1};  // each in turn
  int64_t k = 2048, n = 1024;      // matrix of n outputs by k inputs
  int repeats = 5;
  double seconds = 0.02;  // of a cell and repeat, at least one call
  uint64_t seed = 1;
  size_t probe_bytes = 0;  // of BenchProbe
  BenchProgress progress;
};

struct KernelRow {
  Format format{};
  std::string isa;
  int threads = 0;
  int rows = 0;
  bool cold = false;
  double bytes = 0;  // of the matrix
  double macs = 0;   // of a call
  Estimate call_ms;
  Estimate read_gbps;  // probe of each repeat with as many threads: median, least, most
  double gbps() const { return bytes / (call_ms.value * 1e6); }
  double gmacs() const { return macs / (call_ms.value * 1e6); }
};

// Error{kUsage} for options out of range, kConfig for columns that a format cannot hold.
void check_kernels(const KernelOptions& options);

// check_kernels, then all cells; hot cells only of matrices that take at most half of the last-level cache.
// Error{kNoMemory} when the copies do not fit, kConfig for an instruction set that this machine has not.
std::vector<KernelRow> run_kernels(const KernelOptions& options);

// Sets the tables (one per format and place) and rows of `report`.
void report_kernels(const std::vector<KernelRow>& rows, int repeats, BenchReport& report);

}  // namespace carpool
