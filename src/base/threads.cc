// ThreadPool and default_threads().
//
// One job at a time. Its tasks live in one 64-bit word, (task count << 32 | next task): a worker claims a task with one
// fetch_add and learns from the same word whether the claim is good, so a worker that comes late, even from an earlier
// job, either gets a task of the current job or nothing. Only a worker with a good claim reads the job's callable, and
// the job cannot end before that worker reports, so the callable never changes under it.
//
// A job costs few moves of cache lines between cores: the word and the callable share one line, written once by run();
// the others report on a second line, which run() only reads. System calls happen only for threads that are parked.
// Read next: threads_test.cc.
#include "base/threads.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

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

constexpr int kMaxCpus = 8192;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// A set of CPUs as the system calls want it.
class CpuSet {
 public:
  CpuSet() : set_(CPU_ALLOC(kMaxCpus)), size_(CPU_ALLOC_SIZE(kMaxCpus)) {
    if (set_ != nullptr) CPU_ZERO_S(size_, set_);
  }
  explicit CpuSet(int cpu) : CpuSet() {
    if (set_ != nullptr) CPU_SET_S(static_cast<size_t>(cpu), size_, set_);
  }
  ~CpuSet() {
    if (set_ != nullptr) CPU_FREE(set_);
  }
  CpuSet(const CpuSet&) = delete;
  CpuSet& operator=(const CpuSet&) = delete;

  // Of thread `tid`, 0 = the calling one; false when the system refuses.
  bool read(pid_t tid) { return set_ != nullptr && sched_getaffinity(tid, size_, set_) == 0; }
  bool apply(pid_t tid) const { return set_ != nullptr && sched_setaffinity(tid, size_, set_) == 0; }
  bool holds(int cpu) const { return CPU_ISSET_S(static_cast<size_t>(cpu), size_, set_); }

 private:
  cpu_set_t* set_;
  size_t size_;
};

// Best effort: a system that refuses keeps its own placement.
void pin_self(int cpu) { CpuSet(cpu).apply(0); }

// Binds the calling thread to one CPU for the life of this object, and gives it its mask back from any thread.
class CallerPin {
 public:
  explicit CallerPin(int cpu) : tid_(static_cast<pid_t>(syscall(SYS_gettid))) {
    pinned_ = before_.read(0) && CpuSet(cpu).apply(0);
  }
  ~CallerPin() {
    // The thread may be gone: signal 0 asks whether this process still has it.
    if (pinned_ && syscall(SYS_tgkill, getpid(), tid_, 0) == 0) before_.apply(tid_);
  }
  CallerPin(const CallerPin&) = delete;
  CallerPin& operator=(const CallerPin&) = delete;

 private:
  pid_t tid_;
  CpuSet before_;
  bool pinned_ = false;
};

// A place to park while nothing changes. Whoever waits announces itself first and looks at the condition again before
// it sleeps; whoever changes the condition looks for announcements afterwards. All four steps are sequentially
// consistent, so one of the two always sees the other, and a change that nobody parks for costs one load.
class ParkingLot {
 public:
  // Returns at once when `ready()`, else sleeps until a wake() that follows, or sooner.
  template <class Ready>
  void park(Ready ready) {
    parked_.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = changes_.load(std::memory_order_seq_cst);
    if (!ready()) syscall(SYS_futex, address(), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
    parked_.fetch_sub(1, std::memory_order_seq_cst);
  }
  // Wakes at most `count` of the sleepers. To be called after a sequentially consistent write of what ready() reads.
  void wake(int count) {
    if (parked_.load(std::memory_order_seq_cst) == 0) return;
    changes_.fetch_add(1, std::memory_order_seq_cst);
    syscall(SYS_futex, address(), FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
  }

 private:
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "the system call wants the plain word");
  uint32_t* address() { return reinterpret_cast<uint32_t*>(&changes_); }

  std::atomic<uint32_t> changes_{0};
  std::atomic<int> parked_{0};
};

// Looks for `ready()` until so much time has passed without a job; whether it came. The time starts anew whenever
// jobs() changes: a job that was over before this thread could see it still says that more may follow.
template <class Ready, class Jobs>
bool spin_until(Ready ready, Jobs jobs, std::chrono::microseconds spin) {
  uint32_t seen = jobs();
  auto until = std::chrono::steady_clock::now() + spin;
  for (;;) {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      pause_cpu();
    }
    const auto now = std::chrono::steady_clock::now();
    if (const uint32_t next = jobs(); next != seen) {
      seen = next;
      until = now + spin;
    } else if (now >= until) {
      return false;
    }
  }
}

// Waits until `ready()`, which loads with sequential consistency: looks, then parks. Whoever is woken for a job that
// others finished meanwhile looks again before it parks.
template <class Ready, class Jobs>
void wait_until(Ready ready, Jobs jobs, std::chrono::microseconds spin, ParkingLot& lot) {
  while (!ready()) {
    if (spin.count() > 0 && spin_until(ready, jobs, spin)) return;
    lot.park(ready);
  }
}

constexpr size_t kLine = 64;  // bytes of a cache line

uint32_t next_of(uint64_t tickets) { return static_cast<uint32_t>(tickets); }
uint32_t count_of(uint64_t tickets) { return static_cast<uint32_t>(tickets >> 32); }
bool has_task(uint64_t tickets) { return next_of(tickets) < count_of(tickets); }

}  // namespace

struct ThreadPool::Impl {
  // Line of the job: written by run() between jobs, moved to whoever claims. The callable is read under a good claim
  // only.
  alignas(kLine) std::atomic<uint64_t> tickets{0};  // task count << 32 | next task
  std::optional<TaskRef> task;
  std::atomic<uint32_t> jobs{0};  // started since the pool was made, modulo 2^32
  // Line of the reports: tasks that the pool's own threads have done since it was made, modulo 2^32.
  alignas(kLine) std::atomic<uint32_t> reported{0};
  // Lines that change only when somebody parks.
  alignas(kLine) ParkingLot idle;  // workers without a job
  std::atomic<bool> stop{false};
  alignas(kLine) ParkingLot caller;  // run(), waiting for the last reports

  alignas(kLine) std::chrono::microseconds spin{0};
  std::chrono::steady_clock::duration waited{0};  // by run()
  std::vector<std::thread> threads;
  std::optional<CallerPin> caller_pin;

  // Does tasks while there are any; how many.
  uint32_t drain(int worker) {
    for (uint32_t done = 0;;) {
      const uint64_t ticket = tickets.fetch_add(1, std::memory_order_acq_rel);
      if (!has_task(ticket)) return done;
      (*task)(static_cast<int>(next_of(ticket)), worker);
      ++done;
      if (next_of(ticket) + 1 == count_of(ticket)) return done;  // that was the last: spare the line another move
    }
  }

  void work(int worker) {
    const auto wanted = [this] {
      return has_task(tickets.load(std::memory_order_seq_cst)) || stop.load(std::memory_order_seq_cst);
    };
    const auto started = [this] { return jobs.load(std::memory_order_relaxed); };
    for (;;) {
      wait_until(wanted, started, spin, idle);
      if (stop.load(std::memory_order_acquire)) return;
      const uint32_t done = drain(worker);
      if (done == 0) continue;
      // All tasks of one drain belong to one job, which cannot end before this report.
      reported.fetch_add(done, std::memory_order_seq_cst);
      caller.wake(1);
    }
  }

  void join() {
    stop.store(true, std::memory_order_seq_cst);
    idle.wake(std::numeric_limits<int>::max());
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }
};

ThreadPool::ThreadPool(int threads, const PoolOptions& options) : impl_(std::make_unique<Impl>()) {
  CARPOOL_CHECK(threads >= 1);
  const std::vector<int> cpus = usable_cpus();
  const bool enough_cpus = static_cast<size_t>(threads) <= cpus.size();
  // Spinning on a CPU that another worker needs would only delay it.
  if (threads <= default_threads()) impl_->spin = options.spin;
  try {
    for (int worker = 1; worker < threads; ++worker) {
      const int cpu = options.pin != Pin::kNone && enough_cpus ? cpus[static_cast<size_t>(worker)] : -1;
      impl_->threads.emplace_back([impl = impl_.get(), worker, cpu] {
        if (cpu >= 0) pin_self(cpu);
        impl->work(worker);
      });
    }
  } catch (const std::system_error& e) {
    const size_t started = impl_->threads.size() + 1;
    impl_->join();
    throw Error(ErrorKind::kNoMemory, "the system refused thread " + std::to_string(started + 1) + " of " +
                                          std::to_string(threads) + ": " + e.what());
  }
  if (options.pin == Pin::kAll && enough_cpus) impl_->caller_pin.emplace(cpus[0]);  // last: threads inherit masks
}

ThreadPool::~ThreadPool() { impl_->join(); }

double ThreadPool::waited_seconds() const { return std::chrono::duration<double>(impl_->waited).count(); }

int ThreadPool::size() const { return static_cast<int>(impl_->threads.size()) + 1; }

void ThreadPool::run(int tasks, TaskRef task) {
  if (tasks <= 0) return;
  if (impl_->threads.empty() || tasks == 1) {
    for (int i = 0; i < tasks; ++i) task(i, 0);
    return;
  }
  Impl& impl = *impl_;
  const uint32_t before = impl.reported.load(std::memory_order_relaxed);  // nobody reports between jobs
  const auto count = static_cast<uint32_t>(tasks);
  impl.task.emplace(task);
  impl.jobs.store(impl.jobs.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  impl.tickets.store(static_cast<uint64_t>(count) << 32, std::memory_order_seq_cst);
  impl.idle.wake(tasks - 1);  // more could only look on
  const uint32_t others = count - impl.drain(0);
  const auto complete = [&] { return impl.reported.load(std::memory_order_seq_cst) - before == others; };
  if (complete()) return;
  const auto start = std::chrono::steady_clock::now();
  wait_until(complete, [] { return 0u; }, impl.spin, impl.caller);
  impl.waited += std::chrono::steady_clock::now() - start;
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
  CpuSet set;
  if (!set.read(0)) return cpus;
  for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
    if (set.holds(cpu)) cpus.push_back(cpu);
  }
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
