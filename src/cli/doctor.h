// What this machine is to carpool: processor, usable CPUs, kernel tables, memory, and what to worry about.
//
// Owns the facts behind `carpool doctor` (read from /proc and /sys below a root that tests replace) and the warnings
// that follow from them. The read speed is measured by the command itself; nothing here takes a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "measure/result.h"

namespace carpool {

struct Cache {
  int level = 0;
  std::string type;  // "Data", "Instruction", "Unified"
  std::string size;  // as the system says it, "32768K"
};

struct MachineState {
  std::string processor;
  std::vector<std::string> features;  // instruction-set extensions that may be used: "avx2", "avx512vnni"
  int logical_cpus = 0;
  int usable_cpus = 0;        // affinity mask and cgroup quota
  double quota_cpus = 0;      // of the cgroups; infinity when there is none
  std::vector<Cache> caches;  // of the first CPU
  std::optional<uint64_t> available_memory_bytes;
  std::string huge_pages;  // "madvise", "always", "never"; empty when unknown
  std::string governor;    // of the first CPU; empty when unknown
};
MachineState read_machine(const std::string& root = "");

// Read speed with so many threads, GB/s of 10^9 bytes: median and range of several probes.
struct Bandwidth {
  int threads = 0;
  Estimate gbps;
};

struct DoctorReport {
  MachineState machine;
  std::vector<std::string> isas;  // that run here, fastest last
  std::string isa;                // that will be used
  std::string isa_reason;
  int threads = 0;  // that will be used
  std::string command, commit;
  std::vector<Bandwidth> bandwidth;
};

// One sentence each, the most costly first.
std::vector<std::string> warnings(const DoctorReport& report);
std::string doctor_text(const DoctorReport& report);
json::value doctor_json(const DoctorReport& report);

}  // namespace carpool
