// What processor this is and which instruction sets may be used: CPUID, and XGETBV for what the system saves.
#pragma once

#include <string>

namespace carpool {

struct CpuInfo {
  std::string model;  // "AMD EPYC ..."
  bool avx2 = false, fma = false, f16c = false;
  bool avx512f = false, avx512bw = false, avx512vl = false, avx512dq = false, avx512vnni = false, avx512bf16 = false;
  size_t l3_bytes = 0;  // 0 = unknown
  int logical_cpus = 0;
};

// Read once and kept; thread-safe.
const CpuInfo& cpu_info();

}  // namespace carpool
