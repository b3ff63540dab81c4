// Which tables a test program holds to the contracts of the kernels.
//
// Those of this machine; or, in the program of avx512/CMakeLists.txt, the AVX-512 table in emulation, on processors
// that the emulation can run on. That program is made of the same test objects: it differs in having the table.
// For tests only.
#pragma once

#include "base/cpu_info.h"
#include "kernels/kernels.h"

namespace carpool {

// Its address is null where no such table is linked.
extern const Kernels kEmulatedAvx512Kernels __attribute__((weak));

inline std::vector<const Kernels*> tables_under_test() {
  const CpuInfo& cpu = cpu_info();
  if (&kEmulatedAvx512Kernels != nullptr && cpu.avx2 && cpu.fma && cpu.f16c) return {&kEmulatedAvx512Kernels};
  return available_kernels();
}

}  // namespace carpool
