// available_memory() on made-up /proc and /sys trees: each source counts, the smallest wins.
#include "base/memory.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace carpool {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class Memory : public testing::Test {
 protected:
  Memory() {
    char name[] = "/tmp/carpool_memory_XXXXXX";
    root_ = ::mkdtemp(name);
  }
  ~Memory() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void write_meminfo(uint64_t mib) const {
    write("/proc/meminfo", "MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable:   " + std::to_string(mib * 1024) +
                               " kB\nBuffers: 3 kB\n");
  }
  void write_v2(const std::string& group, const std::string& limit, uint64_t usage_mib, uint64_t cache_mib) const {
    const std::string folder = "/sys/fs/cgroup" + group;
    write(folder + "/memory.max", limit + "\n");
    write(folder + "/memory.current", std::to_string(usage_mib * kMiB) + "\n");
    write(folder + "/memory.stat", "anon 5\nactive_file 7\ninactive_file " + std::to_string(cache_mib * kMiB) + "\n");
  }
  std::string root_;
};

TEST_F(Memory, WithoutAnySourceThereIsNoAnswer) { EXPECT_EQ(available_memory(root_), std::nullopt); }

TEST_F(Memory, WithoutControlGroupsMemAvailableIsTheAnswer) {
  write_meminfo(1000);
  EXPECT_EQ(available_memory(root_), 1000 * kMiB);
}

TEST_F(Memory, AVersion2LimitBelowMemAvailableWinsAndDroppableCacheDoesNotCount) {
  write_meminfo(1000);
  write("/proc/self/cgroup", "0::/app\n");
  write_v2("/app", std::to_string(500 * kMiB), 300, 0);
  EXPECT_EQ(available_memory(root_), 200 * kMiB);
  write_v2("/app", std::to_string(500 * kMiB), 300, 100);
  EXPECT_EQ(available_memory(root_), 300 * kMiB);
}

TEST_F(Memory, AVersion2LimitAboveMemAvailableOrNoneChangesNothing) {
  write_meminfo(1000);
  write("/proc/self/cgroup", "0::/app\n");
  write_v2("/app", std::to_string(5000 * kMiB), 300, 0);
  EXPECT_EQ(available_memory(root_), 1000 * kMiB);
  write_v2("/app", "max", 300, 0);
  EXPECT_EQ(available_memory(root_), 1000 * kMiB);
}

TEST_F(Memory, TheTightestGroupOnTheWayUpWins) {
  write_meminfo(1000);
  write("/proc/self/cgroup", "0::/a/b/c\n");
  write_v2("/a/b/c", "max", 10, 0);
  write_v2("/a", std::to_string(400 * kMiB), 250, 0);
  EXPECT_EQ(available_memory(root_), 150 * kMiB);
  write_v2("", std::to_string(300 * kMiB), 250, 0);  // a container sees its own group as the mount's top
  EXPECT_EQ(available_memory(root_), 50 * kMiB);
}

TEST_F(Memory, AGroupOverItsLimitLeavesNothing) {
  write_meminfo(1000);
  write("/proc/self/cgroup", "0::/\n");
  write_v2("", std::to_string(100 * kMiB), 150, 0);
  EXPECT_EQ(available_memory(root_), 0u);
}

TEST_F(Memory, Version1LimitsCountForTheMemoryControllerOnly) {
  write_meminfo(1000);
  write("/proc/self/cgroup", "12:cpu,cpuacct:/x\n4:pids,memory:/docker/abc\n0::/\n");
  const std::string top = "/sys/fs/cgroup/memory";
  write(top + "/docker/abc/memory.limit_in_bytes", std::to_string(600 * kMiB));
  write(top + "/docker/abc/memory.usage_in_bytes", std::to_string(500 * kMiB));
  write(top + "/docker/abc/memory.stat", "cache 1\ntotal_inactive_file " + std::to_string(20 * kMiB) + "\n");
  EXPECT_EQ(available_memory(root_), 120 * kMiB);
  write(top + "/memory.limit_in_bytes", "9223372036854771712");  // how version 1 spells "no limit"
  write(top + "/memory.usage_in_bytes", "1");
  EXPECT_EQ(available_memory(root_), 120 * kMiB);
  write(top + "/x/memory.limit_in_bytes", "5");  // another controller's path
  write(top + "/x/memory.usage_in_bytes", "0");
  EXPECT_EQ(available_memory(root_), 120 * kMiB);
}

TEST_F(Memory, APathOutsideOfTheNamespaceStaysInsideTheMount) {
  write_meminfo(1000);
  write("/proc/self/cgroup", "0::/../../elsewhere\n");
  write("/sys/elsewhere/memory.max", "1");
  write("/sys/elsewhere/memory.current", "0");
  EXPECT_EQ(available_memory(root_), 1000 * kMiB);
}

TEST_F(Memory, NonsenseInTheFilesIsSkipped) {
  write_meminfo(1000);
  write("/proc/self/cgroup", "\n:\n0\n0:\n0::/app\n");
  write("/sys/fs/cgroup/app/memory.max", "lots");
  write("/sys/fs/cgroup/app/memory.current", "-5");
  EXPECT_EQ(available_memory(root_), 1000 * kMiB);
}

TEST_F(Memory, WeightsThatDoNotFitEndWithBothNumbersAndExitCode71) {
  write_meminfo(1000);
  write("/proc/self/cgroup", "0::/app\n");
  write_v2("/app", std::to_string(500 * kMiB), 300, 0);
  require_memory(200 * kMiB, "the weights", root_);
  try {
    require_memory(17300 * kMiB, "the weights", root_);
    FAIL() << "200 MiB are left";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 71);
    EXPECT_STREQ(e.what(), "the weights needs 17300 MiB, 200 MiB are available");
  }
}

TEST(MemoryOfThisMachine, IsKnownAndNotZero) {
  const auto bytes = available_memory();
  ASSERT_TRUE(bytes);
  EXPECT_GT(*bytes, 0u);
}

TEST(RequireMemory, WhatFitsPassesAndWhatDoesNotIsRefusedWithBothNumbers) {
  require_memory(0, "nothing");
  require_memory(1, "a byte");
  try {
    require_memory(uint64_t{1} << 60, "a giant");
    FAIL() << "2^60 bytes are not available anywhere";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kNoMemory);
    EXPECT_TRUE(std::string(e.what()).starts_with("a giant needs 1099511627776 MiB, ")) << e.what();
    EXPECT_NE(std::string(e.what()).find(" MiB are available"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace carpool
