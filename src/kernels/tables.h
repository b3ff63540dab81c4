// The tables that this build contains, one per instruction set; select.cc decides which of them may run.
//
// Every table is a compile-time constant in its own folder, built with its own flags. Only the x86 build has the AVX
// ones. Read next: select.cc, generic/.
#pragma once

#include "base/cpu_info.h"
#include "kernels/kernels.h"

namespace carpool {

extern const Kernels kScalarKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

// What `cpu` lacks of the features that the code of one of those tables takes for granted, as feature_names() spells
// them; the table may run when there is none. Defined in select.cc.
std::vector<std::string> missing_features(const Kernels& table, const CpuInfo& cpu);

}  // namespace carpool
