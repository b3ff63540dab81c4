// ThreadPool under many short jobs and more threads than CPUs, and the CPU limits of fake cgroup trees.
#include "base/threads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

namespace carpool {
namespace {

TEST(ThreadPool, EveryTaskRunsExactlyOnceAndItsWritesAreSeen) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (const int tasks : {0, 1, 2, 3, 17, 1000}) {
      std::vector<int> runs(static_cast<size_t>(tasks) + 1, 0);  // not atomic: each task owns its place
      std::atomic<int> bad_workers{0};
      pool.run(tasks, [&](int task, int worker) {
        ++runs[static_cast<size_t>(task)];
        if (worker < 0 || worker >= threads) ++bad_workers;
      });
      for (int i = 0; i < tasks; ++i) ASSERT_EQ(runs[static_cast<size_t>(i)], 1) << threads << " threads, task " << i;
      EXPECT_EQ(runs.back(), 0);
      EXPECT_EQ(bad_workers, 0);
    }
  }
}

TEST(ThreadPool, ManyShortJobsInARowLoseNoTask) {
  for (const int threads : {2, 5}) {
    ThreadPool pool(threads);
    std::vector<int> counts(7, 0);
    const int jobs = 5000;
    for (int job = 0; job < jobs; ++job) {
      const int tasks = 2 + job % 6;
      pool.run(tasks, [&](int task, int) { ++counts[static_cast<size_t>(task)]; });
    }
    EXPECT_EQ(counts[0], jobs);
    EXPECT_EQ(counts[1], jobs);
    EXPECT_EQ(counts[6], jobs / 6) << "jobs of seven tasks are every sixth";
  }
}

TEST(ThreadPool, AJobAfterAPauseWakesParkedWorkers) {
  ThreadPool pool(2);
  for (int job = 0; job < 20; ++job) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // far longer than the spin
    std::atomic<int> both{0};
    // Each task waits for the other: only two threads at work together can finish.
    pool.run(2, [&](int, int) {
      ++both;
      while (both < 2) std::this_thread::yield();
    });
    EXPECT_EQ(both, 2);
  }
}

TEST(ThreadPool, AWorkerNumberIsUsedByOneThreadAtATime) {
  const int threads = 4;
  ThreadPool pool(threads);
  std::vector<std::atomic<int>> inside(threads);
  std::atomic<int> clashes{0};
  for (int job = 0; job < 200; ++job) {
    pool.run(16, [&](int, int worker) {
      if (inside[static_cast<size_t>(worker)].fetch_add(1) != 0) ++clashes;
      inside[static_cast<size_t>(worker)].fetch_sub(1);
    });
  }
  EXPECT_EQ(clashes, 0);
}

TEST(ThreadPool, OneThreadRunsTasksInOrderOnTheCaller) {
  ThreadPool pool(1);
  std::vector<int> order;
  bool elsewhere = false;
  const auto self = std::this_thread::get_id();
  pool.run(5, [&](int task, int worker) {
    order.push_back(task);
    if (worker != 0 || std::this_thread::get_id() != self) elsewhere = true;
  });
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_FALSE(elsewhere);
}

TEST(ThreadPool, PoolsCanBeMadeAndDroppedWithoutAJob) {
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(1 + i % 4, i % 2 == 0);
    EXPECT_EQ(pool.size(), 1 + i % 4);
  }
}

TEST(ThreadPool, TheCallersAffinityStaysAsItWas) {
  const int before = default_threads();
  {
    ThreadPool pool(2);
  }
  EXPECT_EQ(default_threads(), before);
}

// A directory tree that stands for / in the functions under test.
class FakeRoot {
 public:
  FakeRoot() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(testing::TempDir()) / (std::string("carpool_root_") + test->name());
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST(CgroupCpus, WithoutFilesThereIsNoLimit) {
  const FakeRoot root;
  EXPECT_TRUE(std::isinf(cgroup_cpus(root.path())));
  EXPECT_EQ(default_threads(root.path()), default_threads("/nonexistent"));
  EXPECT_GE(default_threads(root.path()), 1);
}

TEST(CgroupCpus, VersionTwoQuotaIsReadAndMaxMeansNone) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/a/b\n");
  root.write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_TRUE(std::isinf(cgroup_cpus(root.path())));
  root.write("sys/fs/cgroup/a/b/cpu.max", "250000 100000\n");
  EXPECT_DOUBLE_EQ(cgroup_cpus(root.path()), 2.5);
}

TEST(CgroupCpus, TheTightestParentBinds) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/a/b/c\n");
  root.write("sys/fs/cgroup/a/b/c/cpu.max", "800000 100000\n");
  root.write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  EXPECT_DOUBLE_EQ(cgroup_cpus(root.path()), 1.5);
}

TEST(CgroupCpus, AContainerThatSeesItsGroupAsTheRootReadsTheMountPoint) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/docker/0123\n");
  root.write("sys/fs/cgroup/cpu.max", "300000 100000\n");
  EXPECT_DOUBLE_EQ(cgroup_cpus(root.path()), 3.0);
}

TEST(CgroupCpus, VersionOneQuotaIsReadUnderEitherName) {
  for (const std::string controllers : {"cpu", "cpu,cpuacct"}) {
    const FakeRoot root;
    root.write("proc/self/cgroup", "9:memory:/x\n4:" + controllers + ":/x/y\n");
    root.write("sys/fs/cgroup/" + controllers + "/x/y/cpu.cfs_quota_us", "-1\n");
    root.write("sys/fs/cgroup/" + controllers + "/x/y/cpu.cfs_period_us", "100000\n");
    EXPECT_TRUE(std::isinf(cgroup_cpus(root.path())));
    root.write("sys/fs/cgroup/" + controllers + "/x/cpu.cfs_quota_us", "50000\n");
    root.write("sys/fs/cgroup/" + controllers + "/x/cpu.cfs_period_us", "100000\n");
    EXPECT_DOUBLE_EQ(cgroup_cpus(root.path()), 0.5);
  }
}

TEST(CgroupCpus, MalformedFilesAreNoLimit) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "nonsense\n0::/a\n3:cpu:/a\n");
  for (const std::string text : {"", "abc", "100000", "0 100000", "-5 100000", "100000 0"}) {
    root.write("sys/fs/cgroup/a/cpu.max", text);
    root.write("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", text);
    root.write("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "x");
    EXPECT_TRUE(std::isinf(cgroup_cpus(root.path()))) << text;
  }
}

TEST(DefaultThreads, AQuotaIsRoundedUpAndNeverBelowOne) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/\n");
  root.write("sys/fs/cgroup/cpu.max", "10000 100000\n");
  EXPECT_EQ(default_threads(root.path()), 1);
  root.write("sys/fs/cgroup/cpu.max", "110000 100000\n");
  EXPECT_EQ(default_threads(root.path()), std::min(2, default_threads("/nonexistent")));
  root.write("sys/fs/cgroup/cpu.max", "900000000 100000\n");
  EXPECT_EQ(default_threads(root.path()), default_threads("/nonexistent")) << "affinity binds";
}

}  // namespace
}  // namespace carpool
