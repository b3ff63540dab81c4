// ThreadPool under many short jobs and more threads than CPUs, and the CPU limits of fake cgroup trees.
#include "base/threads.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
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

TEST(ThreadPool, TasksAreTakenInAscendingOrder) {
  const int threads = 4, tasks = 400;
  ThreadPool pool(threads);
  for (int job = 0; job < 50; ++job) {
    std::vector<std::vector<int>> taken(threads);
    std::atomic<int> started{0};
    std::atomic<int> too_early{0};
    pool.run(tasks, [&](int task, int worker) {
      taken[static_cast<size_t>(worker)].push_back(task);
      // Every lower task was taken before this one; at most the other workers have not counted theirs yet.
      if (started.fetch_add(1) < task - (threads - 1)) ++too_early;
    });
    EXPECT_EQ(too_early, 0);
    for (const std::vector<int>& of_worker : taken) EXPECT_TRUE(std::is_sorted(of_worker.begin(), of_worker.end()));
  }
}

TEST(ThreadPool, JobsOfManySizesAndPausesNeverHangWhateverTheSpin) {
  for (const int spin_us : {0, 1, 50, 500}) {
    for (const int threads : {2, 3, 6}) {
      ThreadPool pool(threads, PoolOptions{.pin = Pin::kNone, .spin = std::chrono::microseconds(spin_us)});
      int64_t done = 0, wanted = 0;
      std::vector<int64_t> sums(static_cast<size_t>(threads), 0);
      for (int job = 0; job < 300; ++job) {
        const int tasks = 1 + job * 7 % 20;
        if (job % 10 == 0) std::this_thread::sleep_for(std::chrono::microseconds(job % 7 * 60));
        pool.run(tasks, [&](int task, int worker) { sums[static_cast<size_t>(worker)] += task + 1; });
        wanted += tasks * (tasks + 1) / 2;
      }
      for (const int64_t s : sums) done += s;
      EXPECT_EQ(done, wanted) << threads << " threads, spin " << spin_us;
    }
  }
}

// Thread ids by worker: each task waits until all are taken, so that every worker has one.
std::vector<pid_t> thread_ids(ThreadPool& pool) {
  std::vector<pid_t> ids(static_cast<size_t>(pool.size()));
  std::atomic<int> arrived{0};
  pool.run(pool.size(), [&](int, int worker) {
    ids[static_cast<size_t>(worker)] = static_cast<pid_t>(syscall(SYS_gettid));
    ++arrived;
    while (arrived < pool.size()) std::this_thread::yield();
  });
  return ids;
}

// The letter of /proc for a thread: R runs or could, S sleeps.
char state_of(pid_t tid) {
  std::ifstream file("/proc/self/task/" + std::to_string(tid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(") ");
  return name_end == std::string::npos || name_end + 2 >= text.size() ? '?' : text[name_end + 2];
}

bool sleeps_sooner_or_later(pid_t tid) {
  for (int i = 0; i < 2000; ++i) {
    if (state_of(tid) == 'S') return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

TEST(ThreadPool, AnIdlePoolSleeps) {
  for (const int spin_us : {0, 500}) {
    ThreadPool pool(2, PoolOptions{.spin = std::chrono::microseconds(spin_us)});
    EXPECT_TRUE(sleeps_sooner_or_later(thread_ids(pool)[1])) << spin_us;
  }
}

TEST(ThreadPool, AWorkerWithSpinLeftDoesNotSleep) {
  if (default_threads() < 2) GTEST_SKIP() << "nobody spins on a single CPU";
  ThreadPool pool(2, PoolOptions{.spin = std::chrono::hours(1)});
  const pid_t worker = thread_ids(pool)[1];
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(state_of(worker), 'R');
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(ThreadPool, MoreThreadsThanCpusNeverSpin) {
  ThreadPool pool(default_threads() + 1, PoolOptions{.spin = std::chrono::hours(1)});
  for (const pid_t worker : thread_ids(pool)) {
    if (worker == getpid()) continue;  // the caller: this test
    EXPECT_TRUE(sleeps_sooner_or_later(worker));
  }
}

// The CPUs that each worker of a pool may run on.
std::vector<std::vector<int>> masks(ThreadPool& pool) {
  std::vector<std::vector<int>> result(static_cast<size_t>(pool.size()));
  std::atomic<int> arrived{0};
  pool.run(pool.size(), [&](int, int worker) {
    result[static_cast<size_t>(worker)] = usable_cpus();
    ++arrived;
    while (arrived < pool.size()) std::this_thread::yield();
  });
  return result;
}

TEST(ThreadPoolPinning, EachChoiceBindsItsThreadsAndDestructionGivesTheCallersMaskBack) {
  const std::vector<int> before = usable_cpus();
  if (before.size() < 2) GTEST_SKIP() << "one CPU: every mask is the same";
  for (const Pin pin : {Pin::kNone, Pin::kWorkers, Pin::kAll}) {
    {
      ThreadPool pool(2, PoolOptions{.pin = pin});
      const auto found = masks(pool);
      EXPECT_EQ(found[0], pin == Pin::kAll ? std::vector<int>{before[0]} : before);
      EXPECT_EQ(found[1], pin == Pin::kNone ? before : std::vector<int>{before[1]});
    }
    EXPECT_EQ(usable_cpus(), before);
  }
}

TEST(ThreadPoolPinning, MoreThreadsThanCpusAreNotPinned) {
  const std::vector<int> before = usable_cpus();
  ThreadPool pool(static_cast<int>(before.size()) + 1, PoolOptions{.pin = Pin::kAll});
  for (const auto& mask : masks(pool)) EXPECT_EQ(mask, before);
}

TEST(ThreadPoolPinning, TheMaskComesBackWhenAnotherThreadDestroysThePool) {
  const std::vector<int> before = usable_cpus();
  auto pool = std::make_unique<ThreadPool>(1, PoolOptions{.pin = Pin::kAll});
  EXPECT_EQ(usable_cpus(), std::vector<int>{before[0]});
  std::thread([&] { pool.reset(); }).join();
  EXPECT_EQ(usable_cpus(), before);
}

TEST(ThreadPoolPinning, APoolOutlivesTheThreadThatMadeIt) {
  const std::vector<int> before = usable_cpus();
  std::unique_ptr<ThreadPool> pool;
  std::thread([&] { pool = std::make_unique<ThreadPool>(2, PoolOptions{.pin = Pin::kAll}); }).join();
  std::atomic<int> runs{0};
  pool->run(5, [&](int, int) { ++runs; });
  EXPECT_EQ(runs, 5);
  pool.reset();
  EXPECT_EQ(usable_cpus(), before);
}

// A directory tree that stands for / in the functions under test.
class FakeRoot {
 public:
  FakeRoot() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(testing::TempDir()) /
            (std::string("carpool_root_") + test->name() + "_" + std::to_string(::getpid()));
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
