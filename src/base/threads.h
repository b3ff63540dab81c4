// The pool of worker threads that every kernel runs on.
//
// Owns ThreadPool: pinned threads that spin for a short while after a job and then park, and default_threads(), which
// honours the affinity mask and the cgroup CPU quota. A job is a number of tasks handed out in ascending order
// through one atomic counter; results must not depend on who runs which task. Does not own what tasks do.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace carpool {

// A non-owning reference to a callable (task, worker) -> void; no allocation.
class TaskRef {
 public:
  template <class F>
  TaskRef(const F& f)  // NOLINT(google-explicit-constructor): call sites pass lambdas
      : object_(&f), call_([](const void* o, int task, int worker) { (*static_cast<const F*>(o))(task, worker); }) {}
  void operator()(int task, int worker) const { call_(object_, task, worker); }

 private:
  const void* object_;
  void (*call_)(const void*, int, int);
};

// Whose threads are bound to one CPU each.
enum class Pin {
  kNone,
  kWorkers,  // the threads the pool makes; the caller's thread is not the pool's, and stays as it is
  kAll,      // and worker 0, the thread that makes the pool, until the pool is destroyed
};

struct PoolOptions {
  Pin pin = Pin::kWorkers;
  // How long a thread looks for work before it parks; then it costs no CPU time, and waking it takes 5 to 50 us. Longer
  // than the serial code between two operations of a step (routing of a large batch: up to 300 us), far shorter than
  // a pause between requests. 0 = park at once.
  std::chrono::microseconds spin{500};
};

class ThreadPool {
 public:
  // `threads` >= 1 counts the caller, who works too as worker 0. Worker i is pinned to the i-th CPU of the affinity
  // mask that the making thread has now, if the options say so and there are that many CPUs; a system that refuses
  // keeps its own placement. Nobody spins when there are more threads than default_threads(). Pin::kAll narrows the
  // making thread's own mask for the life of the pool: usable_cpus() and default_threads() say 1 in it, and threads and
  // pools it makes meanwhile inherit one CPU. So ask, and start other threads, before; and call run() from that thread.
  // The destructor gives the mask back, on whatever thread it runs. Error{kNoMemory} when the system refuses a thread.
  ThreadPool(int threads, const PoolOptions& options);
  explicit ThreadPool(int threads, bool pin = true)
      : ThreadPool(threads, PoolOptions{.pin = pin ? Pin::kWorkers : Pin::kNone}) {}
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;
  // Seconds, since the pool was made, that run() waited for other threads after it had no task left itself: what
  // unequal tasks and the meeting at the end cost. To be called between jobs.
  double waited_seconds() const;
  // Runs task(i, worker) for i in [0, tasks), worker in [0, size()); returns when all are done. Tasks are handed out in
  // ascending order: those of one worker ascend, and task i is taken only after every lower one was. One caller at a
  // time; tasks must not throw and must not call run(). Allocates nothing.
  void run(int tasks, TaskRef task);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// CPUs of the calling thread's affinity mask, ascending; empty when the system does not say.
std::vector<int> usable_cpus();

// CPUs that the cgroup quotas of this process allow, tightest along the path; infinity when there is none.
double cgroup_cpus(const std::string& root = "");

// CPUs this process may use: min(affinity mask, cgroup v2/v1 quota rounded up), at least 1. `root` is where /sys and
// /proc are found, for tests.
int default_threads(const std::string& root = "");

}  // namespace carpool
