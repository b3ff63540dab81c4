// The facts and warnings of doctor, on machines made of files; and the two commands through run_cli.
#include "cli/doctor.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/cpu_info.h"
#include "cli/commands.h"

namespace carpool {
namespace {

namespace fs = std::filesystem;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A folder that stands for / and goes away with the test.
class FakeRoot {
 public:
  FakeRoot() : path_(fs::temp_directory_path() / ("carpool_doctor_" + std::to_string(getpid()))) {
    fs::create_directories(path_);
  }
  ~FakeRoot() { fs::remove_all(path_); }
  void write(const std::string& file, const std::string& text) const {
    fs::create_directories((path_ / file).parent_path());
    std::ofstream(path_ / file) << text;
  }
  std::string path() const { return path_.string(); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

// A machine with nothing to worry about.
DoctorReport healthy() {
  DoctorReport r;
  r.machine.processor = "A processor";
  r.machine.features = {"avx2", "avx512vnni"};
  r.machine.logical_cpus = r.machine.usable_cpus = 8;
  r.machine.quota_cpus = INFINITY;
  r.machine.caches = {{1, "Data", "32K"}, {3, "Unified", "32768K"}};
  r.machine.available_memory_bytes = uint64_t{64} * 1000000000;
  r.machine.huge_pages = "madvise";
  r.machine.governor = "performance";
  r.isas = {"scalar", "avx2"};
  r.isa = "avx2";
  r.isa_reason = "the fastest that processor and system support";
  r.threads = 8;
  r.command = "carpool doctor";
  r.commit = "abc";
  r.bandwidth = {{1, {12.5, 12.0, 13.0}}, {8, {40, 38.5, 41.25}}};
  return r;
}

// Runs the program with the results of `words` in a file; the exit code.
int run(const std::vector<std::string>& words) {
  std::vector<const char*> argv = {"carpool"};
  for (const std::string& w : words) argv.push_back(w.c_str());
  return run_cli(static_cast<int>(argv.size()), argv.data());
}

json::value read_json(const std::string& path) { return parse_json(read_text_file(path), path); }

TEST(Doctor, ReadsTheMachineFromItsFiles) {
  const FakeRoot root;
  root.write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 5000 kB\n");
  root.write("proc/self/cgroup", "0::/\n");
  root.write("sys/fs/cgroup/cpu.max", "150000 100000\n");
  root.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  root.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  for (const auto& [index, level, type, size] :
       std::vector<std::tuple<const char*, const char*, const char*, const char*>>{{"0", "1", "Data", "48K"},
                                                                                   {"1", "2", "Unified", "2048K"}}) {
    const std::string folder = std::string("sys/devices/system/cpu/cpu0/cache/index") + index + "/";
    root.write(folder + "level", level);
    root.write(folder + "type", type);
    root.write(folder + "size", size);
  }
  const MachineState m = read_machine(root.path());
  EXPECT_EQ(m.available_memory_bytes, 5000u * 1024);
  EXPECT_EQ(m.quota_cpus, 1.5);
  EXPECT_LE(m.usable_cpus, 2);
  EXPECT_EQ(m.huge_pages, "madvise");
  EXPECT_EQ(m.governor, "powersave");
  ASSERT_EQ(m.caches.size(), 2u);
  EXPECT_EQ(m.caches[0].level, 1);
  EXPECT_EQ(m.caches[1].type, "Unified");
  EXPECT_EQ(m.caches[1].size, "2048K");
}

TEST(Doctor, WhatTheSystemDoesNotSayIsUnknown) {
  const FakeRoot root;
  const MachineState m = read_machine(root.path());
  EXPECT_TRUE(m.caches.empty());
  EXPECT_FALSE(m.available_memory_bytes);
  EXPECT_TRUE(m.huge_pages.empty());
  EXPECT_TRUE(m.governor.empty());
  EXPECT_TRUE(std::isinf(m.quota_cpus));
  DoctorReport r = healthy();
  r.machine = m;
  EXPECT_TRUE(contains(doctor_text(r), "governor      unknown"));
  EXPECT_EQ(m.features, feature_names(cpu_info()));
  r.machine.features.clear();
  EXPECT_TRUE(contains(doctor_text(r), "extensions    none that kernels use"));
}

TEST(Doctor, AHealthyMachineHasNoWarning) { EXPECT_TRUE(warnings(healthy()).empty()); }

TEST(Doctor, EveryWorryHasItsWarning) {
  const auto only = [](auto change) {
    DoctorReport r = healthy();
    change(r);
    const std::vector<std::string> found = warnings(r);
    return found.size() == 1 ? found[0] : std::to_string(found.size()) + " warnings";
  };
  EXPECT_TRUE(contains(only([](auto& r) { r.isas = {"scalar"}, r.isa = "scalar"; }), "no AVX2"));
  EXPECT_TRUE(contains(only([](auto& r) { r.isa = "scalar"; }), "avx2 would be faster"));
  EXPECT_TRUE(contains(only([](auto& r) { r.machine.quota_cpus = 2.5; }), "2.50 of 8 CPUs"));
  EXPECT_TRUE(contains(only([](auto& r) { r.threads = 9; }), "more than the 8 usable CPUs"));
  EXPECT_TRUE(
      contains(only([](auto& r) { r.machine.available_memory_bytes.reset(); }), "does not say how much memory"));
  EXPECT_TRUE(contains(only([](auto& r) { r.machine.available_memory_bytes = 512000000; }), "only 512 MB"));
  EXPECT_TRUE(contains(only([](auto& r) { r.machine.governor.clear(); }), "governor is unknown"));
  EXPECT_TRUE(contains(only([](auto& r) { r.machine.governor = "powersave"; }), "governor is powersave"));
  EXPECT_TRUE(contains(only([](auto& r) { r.machine.huge_pages = "never"; }), "huge pages are off"));
}

TEST(Doctor, TextAndJsonHoldEveryFact) {
  DoctorReport r = healthy();
  r.machine.quota_cpus = 2.5;
  const std::string text = doctor_text(r);
  for (const char* part :
       {"A processor", "extensions    avx2, avx512vnni\n", "8 usable of 8", "2.50 CPUs", "avx2 (of scalar, avx2)",
        "64.0 GB", "L1d 32K", "L3 32768K", "madvise", "performance", "12.5 GB/s with 1 thread ",
        "40.0 GB/s with 8 threads", "38.5 to 41.2", "at least 25.0 ms", "warning: "}) {
    EXPECT_TRUE(contains(text, part)) << part << "\n" << text;
  }
  const json::value root = doctor_json(r);
  EXPECT_EQ(root.at("quota_cpus").as_double(), 2.5);
  ASSERT_EQ(root.at("extensions").as_array().size(), 2u);
  EXPECT_EQ(root.at("extensions").as_array().at(1).as_string(), "avx512vnni");
  EXPECT_EQ(root.at("isas").as_array().size(), 2u);
  EXPECT_EQ(root.at("results").as_array().at(1).at("read_gbps").as_double(), 40);
  EXPECT_EQ(root.at("results").as_array().at(1).at("read_gbps_max").as_double(), 41.25);
  EXPECT_EQ(root.at("warnings").as_array().size(), 1u);
}

TEST(DoctorCommand, ThreadsAndIsaChangeWhatIsMeasured) {
  const FakeRoot folder;
  const std::string path = folder.file("doctor.json");
  ASSERT_EQ(run({"doctor", "--threads", "1", "--isa", "scalar", "--json", path}), 0);
  json::value root = read_json(path);
  EXPECT_EQ(root.at("isa").as_string(), "scalar");
  ASSERT_EQ(root.at("results").as_array().size(), 1u);
  EXPECT_GT(root.at("results").as_array().at(0).at("read_gbps").as_double(), 0);
  ASSERT_EQ(run({"doctor", "--threads", "2", "--json", path}), 0);
  root = read_json(path);
  EXPECT_EQ(root.at("threads").as_int64(), 2);
  EXPECT_EQ(root.at("results").as_array().size(), 2u);
  EXPECT_TRUE(contains(std::string(root.at("command").as_string()), "carpool doctor --threads 2 --json "));
  EXPECT_EQ(run({"doctor", "--isa", "sse9"}), static_cast<int>(ErrorKind::kConfig));
}

}  // namespace
}  // namespace carpool
