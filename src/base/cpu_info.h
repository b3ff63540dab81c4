// What processor this is and which instruction sets may be used: CPUID, and XGETBV for what the system saves.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace carpool {

struct CpuInfo {
  std::string model;  // "AMD EPYC ..."
  bool avx2 = false, fma = false, f16c = false;
  bool avx512f = false, avx512bw = false, avx512vl = false, avx512dq = false;
  size_t l3_bytes = 0;  // of all third-level caches of the usable CPUs; 0 = unknown
  int logical_cpus = 0;
};

// Bytes of all distinct third-level caches of `cpus`: processors of several complexes have one in each. `root` is where
// /sys is found, for tests.
size_t third_level_cache_bytes(std::span<const int> cpus, const std::string& root = "");

// Read once and kept; thread-safe.
const CpuInfo& cpu_info();

}  // namespace carpool
