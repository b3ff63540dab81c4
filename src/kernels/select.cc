// Chooses a table once at start: by name, or the fastest that processor and system support. A new instruction set is
// one folder, one line in tables.h and one line in kTables.
#include <fmt/format.h>

#include "base/cpu_info.h"
#include "base/error.h"
#include "kernels/tables.h"

namespace carpool {
namespace {

struct Row {
  const Kernels* table;
  bool (*runs)(const CpuInfo&);
};

// Slowest first.
constexpr Row kTables[] = {
    {&kScalarKernels, [](const CpuInfo&) { return true; }},
#if defined(__x86_64__)
    {&kAvx2Kernels, [](const CpuInfo& c) { return c.avx2 && c.fma && c.f16c; }},
    {&kAvx512Kernels,
     [](const CpuInfo& c) { return c.avx512f && c.avx512bw && c.avx512vl && c.avx512dq && c.avx2 && c.fma; }},
#endif
};

}  // namespace

const std::vector<const Kernels*>& available_kernels() {
  static const std::vector<const Kernels*> tables = [] {
    std::vector<const Kernels*> found;
    for (const Row& row : kTables) {
      if (row.runs(cpu_info())) found.push_back(row.table);
    }
    return found;
  }();
  return tables;
}

const Kernels& select_kernels(std::string_view name) {
  if (name == "auto") return *available_kernels().back();
  for (const Kernels* table : available_kernels()) {
    if (name == table->name) return *table;
  }
  std::string known = "auto";
  for (const Row& row : kTables) {
    if (name == row.table->name) {
      throw Error(ErrorKind::kUnavailable, fmt::format("this processor ({}) cannot run the {} kernels",
                                                       escape(cpu_info().model), row.table->name));
    }
    known += std::string(", ") + row.table->name;
  }
  throw Error(ErrorKind::kConfig, fmt::format("unknown instruction set \"{}\"; known: {}", escape(name), known));
}

}  // namespace carpool
