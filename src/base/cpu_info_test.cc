// The processor's features against what the kernel of the system reports.
#include "base/cpu_info.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <thread>

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
}

TEST(CpuInfo, TheModelHasANameAndThereIsAtLeastOneCpu) {
  EXPECT_FALSE(cpu_info().model.empty());
  EXPECT_EQ(cpu_info().model.find_first_of("\n\t"), std::string::npos);
  EXPECT_GE(cpu_info().logical_cpus, 1);
}

TEST(CpuInfo, TheThirdLevelCacheIsThatOfSysfs) {
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");
  size_t kib = 0;
  if (!(file >> kib)) GTEST_SKIP() << "no third-level cache in sysfs";
  EXPECT_EQ(cpu_info().l3_bytes, kib << 10);
}

}  // namespace
}  // namespace carpool
