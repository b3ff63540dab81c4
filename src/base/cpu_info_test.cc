// The processor's features against what the kernel of the system reports.
#include "base/cpu_info.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

namespace carpool {
namespace {

TEST(CpuInfo, FeaturesAreThoseTheSystemReports) {
  std::ifstream file("/proc/cpuinfo");
  std::string line, flags;
  while (flags.empty() && std::getline(file, line)) {
    if (line.rfind("flags", 0) == 0) flags = line.substr(line.find(':') + 1) + " ";
  }
  if (flags.empty()) GTEST_SKIP() << "/proc/cpuinfo lists no flags here";
  const auto has = [&](const std::string& flag) { return flags.find(" " + flag + " ") != std::string::npos; };
  const CpuInfo& info = cpu_info();
  EXPECT_EQ(info.avx2, has("avx2"));
  EXPECT_EQ(info.fma, has("fma"));
  EXPECT_EQ(info.f16c, has("f16c"));
  EXPECT_EQ(info.avx512f, has("avx512f"));
  EXPECT_EQ(info.avx512bw, has("avx512bw"));
  EXPECT_EQ(info.avx512vl, has("avx512vl"));
  EXPECT_EQ(info.avx512dq, has("avx512dq"));
  EXPECT_EQ(info.avx512vnni, has("avx512_vnni"));
  EXPECT_EQ(info.avx512bf16, has("avx512_bf16"));
  EXPECT_EQ(info.avxvnni, has("avx_vnni"));
}

TEST(CpuInfo, FeaturesAreNamedOnlyWhenTheyAreThere) {
  CpuInfo info;
  EXPECT_TRUE(feature_names(info).empty());
  info.avxvnni = info.fma = info.avx512bf16 = true;
  EXPECT_EQ(feature_names(info), (std::vector<std::string>{"fma", "avx512bf16", "avxvnni"}));
  info.avx2 = info.f16c = info.avx512f = info.avx512bw = info.avx512vl = info.avx512dq = info.avx512vnni = true;
  EXPECT_EQ(feature_names(info).size(), 10u);
}

TEST(CpuInfo, TheModelHasANameAndThereIsAtLeastOneCpu) {
  EXPECT_FALSE(cpu_info().model.empty());
  EXPECT_EQ(cpu_info().model.find_first_of("\n\t"), std::string::npos);
  EXPECT_GE(cpu_info().logical_cpus, 1);
}

TEST(CpuInfo, TheThirdLevelCacheIsAtLeastThatOfOneCpuInSysfs) {
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");
  size_t kib = 0;
  if (!(file >> kib)) GTEST_SKIP() << "no third-level cache in sysfs";
  EXPECT_GE(cpu_info().l3_bytes, kib << 10);
  EXPECT_EQ(cpu_info().l3_bytes % 1024, 0u);
}

// A made-up sysfs of four CPUs in two complexes.
class ThirdLevelCache : public testing::Test {
 protected:
  ThirdLevelCache() {
    char name[] = "/tmp/carpool_caches_XXXXXX";
    root_ = ::mkdtemp(name);
    for (int cpu = 0; cpu < 4; ++cpu) {
      write(cpu, 0, "level", "1");
      write(cpu, 0, "size", "32K");
      write(cpu, 0, "shared_cpu_list", std::to_string(cpu));
      write(cpu, 3, "level", "3");
      write(cpu, 3, "size", cpu < 2 ? "16384K" : "8M");
      write(cpu, 3, "shared_cpu_list", cpu < 2 ? "0-1" : "2-3");
    }
  }
  ~ThirdLevelCache() override { std::filesystem::remove_all(root_); }
  std::string file(int cpu, int index, const std::string& name) const {
    return root_ + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cache/index" + std::to_string(index) + "/" +
           name;
  }
  void write(int cpu, int index, const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(file(cpu, index, name)).parent_path());
    std::ofstream(file(cpu, index, name)) << text << "\n";
  }
  size_t mib(const std::vector<int>& cpus) const { return third_level_cache_bytes(cpus, root_) >> 20; }
  std::string root_;
};

TEST_F(ThirdLevelCache, EachComplexOfTheUsableCpusCountsOnce) {
  EXPECT_EQ(mib({0, 1, 2, 3}), 24u);
  EXPECT_EQ(mib({0, 1}), 16u);
  EXPECT_EQ(mib({1, 3}), 24u);
  EXPECT_EQ(mib({3}), 8u);
}

TEST_F(ThirdLevelCache, WhatTheSystemDoesNotSayIsZeroOrOneForAll) {
  EXPECT_EQ(mib({}), 0u);
  EXPECT_EQ(mib({7}), 0u);
  for (int cpu = 0; cpu < 4; ++cpu) std::filesystem::remove(file(cpu, 3, "shared_cpu_list"));
  EXPECT_EQ(mib({0, 1, 2, 3}), 16u);
}

}  // namespace
}  // namespace carpool
