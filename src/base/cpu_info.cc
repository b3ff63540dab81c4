// Reads CPUID and XGETBV once. An instruction set counts only when the processor has it and the system saves its
// registers; on other architectures every flag stays false and only the name, cache and CPU count are filled.
#include "base/cpu_info.h"

#include <cstdint>
#include <fstream>
#include <thread>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace carpool {
namespace {

// "32768K" -> bytes; 0 when the file is absent or unreadable.
size_t l3_bytes_from_sysfs() {
  for (int index = 0; index < 8; ++index) {
    const std::string dir = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    std::ifstream level_file(dir + "level"), size_file(dir + "size");
    int level = 0;
    size_t size = 0;
    char unit = 0;
    if (!(level_file >> level) || level != 3 || !(size_file >> size)) continue;
    size_file >> unit;
    return unit == 'K' ? size << 10 : unit == 'M' ? size << 20 : size;
  }
  return 0;
}

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
  const unsigned subleaves = a;
  info.avx2 = ymm && bit(b, 5);
  info.avx512f = zmm && bit(b, 16);
  info.avx512dq = zmm && bit(b, 17);
  info.avx512bw = zmm && bit(b, 30);
  info.avx512vl = zmm && bit(b, 31);
  info.avx512vnni = zmm && bit(c, 11);
  if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) info.avx512bf16 = zmm && bit(a, 5);
}
#else
void read_features(CpuInfo&) {}
#endif

CpuInfo read_cpu() {
  CpuInfo info;
  info.model = model_from_proc();
  info.l3_bytes = l3_bytes_from_sysfs();
  info.logical_cpus = static_cast<int>(std::thread::hardware_concurrency());
  read_features(info);
  return info;
}

}  // namespace

const CpuInfo& cpu_info() {
  static const CpuInfo info = read_cpu();
  return info;
}

}  // namespace carpool
