// ThreadPool and default_threads().
//
// One job at a time. Its tasks live in one 64-bit word, (task count << 32 | next task): a worker claims a task with one
// fetch_add and learns from the same word whether the claim is good, so a worker that comes late, even from an earlier
// job, either gets a task of the current job or nothing. Only a worker with a good claim reads the job's callable, and
// the job cannot end before that worker reports, so the callable never changes under it. Read next: threads_test.cc.
#include "base/threads.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <system_error>
#include <thread>
#include <vector>

#include "base/cgroup.h"
#include "base/error.h"

namespace carpool {
namespace {

constexpr std::chrono::microseconds kSpin{30};  // longer than the gap between two operations of one layer
constexpr int kMaxCpus = 8192;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Best effort: a system that refuses keeps its own placement.
void pin_to(std::thread& thread, int cpu) {
  cpu_set_t* set = CPU_ALLOC(kMaxCpus);
  if (set == nullptr) return;
  const size_t size = CPU_ALLOC_SIZE(kMaxCpus);
  CPU_ZERO_S(size, set);
  CPU_SET_S(cpu, size, set);
  pthread_setaffinity_np(thread.native_handle(), size, set);
  CPU_FREE(set);
}

// Waits until `word` differs from `old`: spins when allowed, then parks.
int wait_for_change(const std::atomic<int>& word, int old, bool spin) {
  if (spin) {
    const auto until = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < 32; ++i) {
        const int now = word.load(std::memory_order_acquire);
        if (now != old) return now;
        pause_cpu();
      }
    } while (std::chrono::steady_clock::now() < until);
  }
  word.wait(old, std::memory_order_acquire);
  return word.load(std::memory_order_acquire);
}

}  // namespace

struct ThreadPool::Impl {
  const TaskRef* task = nullptr;  // written by run() between jobs, read only under a good claim
  bool spin = false;
  std::vector<std::thread> threads;
  alignas(64) std::atomic<uint64_t> tickets{0};  // task count << 32 | next task
  alignas(64) std::atomic<int> pending{0};       // tasks not reported yet
  alignas(64) std::atomic<int> epoch{0};         // jobs started; what idle workers watch
  std::atomic<bool> stop{false};

  void drain(int worker) {
    int done = 0;
    for (;;) {
      const uint64_t ticket = tickets.fetch_add(1, std::memory_order_acq_rel);
      const auto index = static_cast<uint32_t>(ticket);
      if (index >= static_cast<uint32_t>(ticket >> 32)) break;
      (*task)(static_cast<int>(index), worker);
      ++done;
    }
    if (done > 0 && pending.fetch_sub(done, std::memory_order_acq_rel) == done) pending.notify_all();
  }

  void work(int worker) {
    int seen = 0;
    while (!stop.load(std::memory_order_acquire)) {
      seen = wait_for_change(epoch, seen, spin);
      drain(worker);
    }
  }

  void start_epoch() {
    epoch.fetch_add(1, std::memory_order_acq_rel);
    epoch.notify_all();
  }

  void join() {
    stop.store(true, std::memory_order_release);
    start_epoch();
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }
};

ThreadPool::ThreadPool(int threads, bool pin) : impl_(std::make_unique<Impl>()) {
  CARPOOL_CHECK(threads >= 1);
  const std::vector<int> cpus = usable_cpus();
  // Spinning on a CPU that another worker needs would only delay it.
  impl_->spin = threads <= default_threads();
  try {
    for (int worker = 1; worker < threads; ++worker) {
      Impl* impl = impl_.get();
      impl->threads.emplace_back([impl, worker] { impl->work(worker); });
      if (pin && static_cast<size_t>(threads) <= cpus.size()) {
        pin_to(impl->threads.back(), cpus[static_cast<size_t>(worker)]);
      }
    }
  } catch (const std::system_error& e) {
    const size_t started = impl_->threads.size() + 1;
    impl_->join();
    throw Error(ErrorKind::kNoMemory, "the system refused thread " + std::to_string(started + 1) + " of " +
                                          std::to_string(threads) + ": " + e.what());
  }
}

ThreadPool::~ThreadPool() { impl_->join(); }

int ThreadPool::size() const { return static_cast<int>(impl_->threads.size()) + 1; }

void ThreadPool::run(int tasks, TaskRef task) {
  if (tasks <= 0) return;
  if (impl_->threads.empty() || tasks == 1) {
    for (int i = 0; i < tasks; ++i) task(i, 0);
    return;
  }
  Impl& impl = *impl_;
  impl.task = &task;
  impl.pending.store(tasks, std::memory_order_relaxed);
  impl.tickets.store(static_cast<uint64_t>(static_cast<uint32_t>(tasks)) << 32, std::memory_order_release);
  impl.start_epoch();
  impl.drain(0);
  int left = impl.pending.load(std::memory_order_acquire);
  while (left != 0) left = wait_for_change(impl.pending, left, impl.spin);
}

namespace {

std::optional<std::string> first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line)) return std::nullopt;
  return line;
}

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

double ratio(double quota, double period) { return quota > 0 && period > 0 ? quota / period : kUnlimited; }

// cgroup v2 "cpu.max": "QUOTA PERIOD" or "max PERIOD".
double quota_v2(const std::string& dir) {
  const auto line = first_line(dir + "/cpu.max");
  double quota = 0, period = 0;
  if (!line || !(std::istringstream(*line) >> quota >> period)) return kUnlimited;
  return ratio(quota, period);
}

// cgroup v1: quota -1 means none.
double quota_v1(const std::string& dir) {
  const auto quota_line = first_line(dir + "/cpu.cfs_quota_us");
  const auto period_line = first_line(dir + "/cpu.cfs_period_us");
  double quota = 0, period = 0;
  if (!quota_line || !period_line) return kUnlimited;
  if (!(std::istringstream(*quota_line) >> quota) || !(std::istringstream(*period_line) >> period)) return kUnlimited;
  return ratio(quota, period);
}

// The tightest quota from the group up to the mount point: a parent's limit binds its children.
template <class Read>
double tightest(const std::string& mount, const ControlGroup& group, Read read) {
  double limit = kUnlimited;
  for (const std::string& folder : folders_upwards(mount, group)) limit = std::min(limit, read(folder));
  return limit;
}

}  // namespace

std::vector<int> usable_cpus() {
  std::vector<int> cpus;
  cpu_set_t* set = CPU_ALLOC(kMaxCpus);
  if (set == nullptr) return cpus;
  const size_t size = CPU_ALLOC_SIZE(kMaxCpus);
  CPU_ZERO_S(size, set);
  if (sched_getaffinity(0, size, set) == 0) {
    for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
      if (CPU_ISSET_S(cpu, size, set)) cpus.push_back(cpu);
    }
  }
  CPU_FREE(set);
  return cpus;
}

double cgroup_cpus(const std::string& root) {
  const std::string mount = root + "/sys/fs/cgroup";
  double limit = kUnlimited;
  for (const ControlGroup& group : control_groups(root)) {
    if (group.version2()) {
      limit = std::min({limit, tightest(mount, group, quota_v2), tightest(mount + "/unified", group, quota_v2)});
    } else if (group.lists("cpu")) {
      limit = std::min({limit, tightest(mount + "/" + group.controllers, group, quota_v1),
                        tightest(mount + "/cpu", group, quota_v1)});
    }
  }
  return limit;
}

int default_threads(const std::string& root) {
  const int cpus = std::max<int>(1, static_cast<int>(usable_cpus().size()));
  const double quota = std::ceil(cgroup_cpus(root));
  return quota < cpus ? std::max(1, static_cast<int>(quota)) : cpus;
}

}  // namespace carpool
