// Chooses a table once at start: by name, or the fastest that processor and system support. A new instruction set is
// one folder, one line in tables.h and one line in tables().
#include <fmt/format.h>

#include <algorithm>

#include "base/cpu_info.h"
#include "base/error.h"
#include "kernels/tables.h"

namespace carpool {
namespace {

struct Row {
  const Kernels* table;
  std::vector<std::string> needs;  // of feature_names()
};

// Slowest first. What a table needs is what its folder is compiled for, in CMakeLists.txt.
const std::vector<Row>& tables() {
  static const std::vector<Row> rows = {
      {&kScalarKernels, {}},
#if defined(__x86_64__)
      {&kAvx2Kernels, {"avx2", "fma", "f16c"}},
      {&kAvx512Kernels, {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni"}},
#endif
  };
  return rows;
}

std::vector<std::string> missing(const Row& row, const CpuInfo& cpu) {
  const std::vector<std::string> there = feature_names(cpu);
  std::vector<std::string> absent;
  for (const std::string& need : row.needs) {
    if (std::find(there.begin(), there.end(), need) == there.end()) absent.push_back(need);
  }
  return absent;
}

}  // namespace

const std::vector<const Kernels*>& available_kernels() {
  static const std::vector<const Kernels*> available = [] {
    std::vector<const Kernels*> found;
    for (const Row& row : tables()) {
      if (missing(row, cpu_info()).empty()) found.push_back(row.table);
    }
    return found;
  }();
  return available;
}

std::vector<std::string> missing_features(const Kernels& table, const CpuInfo& cpu) {
  for (const Row& row : tables()) {
    if (row.table == &table) return missing(row, cpu);
  }
  return {};
}

const Kernels& select_kernels(std::string_view name) {
  if (name == "auto") return *available_kernels().back();
  for (const Kernels* table : available_kernels()) {
    if (name == table->name) return *table;
  }
  std::string known = "auto";
  for (const Row& row : tables()) {
    if (name == row.table->name) {
      throw Error(ErrorKind::kUnavailable,
                  fmt::format("this processor ({}) cannot run the {} kernels: it lacks {}", escape(cpu_info().model),
                              row.table->name, fmt::join(missing(row, cpu_info()), ", ")));
    }
    known += std::string(", ") + row.table->name;
  }
  throw Error(ErrorKind::kConfig, fmt::format("unknown instruction set \"{}\"; known: {}", escape(name), known));
}

}  // namespace carpool
