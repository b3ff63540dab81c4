// Reads CPUID and XGETBV once. An instruction set counts only when the processor has it and the system saves its
// registers; on other architectures every flag stays false and only the name, cache and CPU count are filled.
#include "base/cpu_info.h"

#include <cstdint>
#include <fstream>
#include <set>
#include <thread>
#include <utility>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/threads.h"

namespace carpool {
namespace {

std::string model_from_proc() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("model name", 0) != 0 && line.rfind("Model", 0) != 0) continue;
    const size_t start = line.find_first_not_of(": \t", line.find(':'));
    if (start != std::string::npos) return line.substr(start);
  }
  return "unknown processor";
}

#if defined(__x86_64__)
bool bit(unsigned word, int index) { return ((word >> index) & 1u) != 0; }

// XCR0: which register states the system saves. Only valid when CPUID says OSXSAVE.
uint64_t saved_states() {
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

void read_features(CpuInfo& info) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || !bit(c, 27)) return;
  const uint64_t saved = saved_states();
  const bool ymm = (saved & 0x6) == 0x6;           // SSE and AVX state
  const bool zmm = ymm && (saved & 0xe0) == 0xe0;  // opmask, upper halves, upper registers
  info.fma = ymm && bit(c, 12);
  info.f16c = ymm && bit(c, 29);
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return;
  info.avx2 = ymm && bit(b, 5);
  info.avx512f = zmm && bit(b, 16);
  info.avx512dq = zmm && bit(b, 17);
  info.avx512bw = zmm && bit(b, 30);
  info.avx512vl = zmm && bit(b, 31);
  info.avx512vnni = zmm && bit(c, 11);
  if (a < 1 || __get_cpuid_count(7, 1, &a, &b, &c, &d) == 0) return;  // EAX of leaf 7.0: its last subleaf
  info.avxvnni = ymm && bit(a, 4);
  info.avx512bf16 = zmm && bit(a, 5);
}
#else
void read_features(CpuInfo&) {}
#endif

CpuInfo read_cpu() {
  CpuInfo info;
  info.model = model_from_proc();
  info.l3_bytes = third_level_cache_bytes(usable_cpus());
  info.logical_cpus = static_cast<int>(std::thread::hardware_concurrency());
  read_features(info);
  return info;
}

}  // namespace

size_t third_level_cache_bytes(std::span<const int> cpus, const std::string& root) {
  size_t total = 0;
  std::set<std::string> counted;  // lists of the CPUs that share one
  for (const int cpu : cpus) {
    for (int index = 0; index < 8; ++index) {
      const std::string dir =
          root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cache/index" + std::to_string(index) + "/";
      std::ifstream level_file(dir + "level"), size_file(dir + "size"), shared_file(dir + "shared_cpu_list");
      int level = 0;
      size_t size = 0;
      char unit = 0;
      std::string shared;
      if (!(level_file >> level) || level != 3 || !(size_file >> size)) continue;
      size_file >> unit;
      if (!(shared_file >> shared)) shared = "unknown";  // one for all is the safer guess
      if (counted.insert(shared).second) total += unit == 'K' ? size << 10 : unit == 'M' ? size << 20 : size;
    }
  }
  return total;
}

std::vector<std::string> feature_names(const CpuInfo& info) {
  const std::pair<bool, const char*> all[] = {{info.avx2, "avx2"},
                                              {info.fma, "fma"},
                                              {info.f16c, "f16c"},
                                              {info.avx512f, "avx512f"},
                                              {info.avx512bw, "avx512bw"},
                                              {info.avx512vl, "avx512vl"},
                                              {info.avx512dq, "avx512dq"},
                                              {info.avx512vnni, "avx512vnni"},
                                              {info.avx512bf16, "avx512bf16"},
                                              {info.avxvnni, "avxvnni"}};
  std::vector<std::string> names;
  for (const auto& [there, name] : all) {
    if (there) names.emplace_back(name);
  }
  return names;
}

const CpuInfo& cpu_info() {
  static const CpuInfo info = read_cpu();
  return info;
}

}  // namespace carpool
