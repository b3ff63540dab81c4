// What processor this is and which instruction sets may be used: CPUID, and XGETBV for what the system saves.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace carpool {

struct CpuInfo {
  std::string model;  // "AMD EPYC ..."
  bool avx2 = false, fma = false, f16c = false;
  bool avx512f = false, avx512bw = false, avx512vl = false, avx512dq = false;
  bool avx512vnni = false, avx512bf16 = false;  // dot products of int8 and of bfloat16
  bool avxvnni = false;                         // the first of them in registers of 256 bits
  size_t l3_bytes = 0;                          // of all third-level caches of the usable CPUs; 0 = unknown
  int logical_cpus = 0;
};

// Bytes of all distinct third-level caches of `cpus`: processors of several complexes have one in each. `root` is where
// /sys is found, for tests.
size_t third_level_cache_bytes(std::span<const int> cpus, const std::string& root = "");

// The names of the features that are there, spelled as the members, in their order.
std::vector<std::string> feature_names(const CpuInfo& info);

// Read once and kept; thread-safe.
const CpuInfo& cpu_info();

}  // namespace carpool
