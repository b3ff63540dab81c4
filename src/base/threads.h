// The pool of worker threads that every kernel runs on.
//
// Owns ThreadPool: pinned threads that spin for a short while after a job and then park, and default_threads(), which
// honours the affinity mask and the cgroup CPU quota. A job is a number of tasks handed out in ascending order
// through one atomic counter; results must not depend on who runs which task. Does not own what tasks do.
#pragma once

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

class ThreadPool {
 public:
  // `threads` >= 1 counts the caller, who works too as worker 0 and is never pinned (its thread is not ours). Pins
  // worker i >= 1 to the i-th CPU of the affinity mask when `pin` and there are that many CPUs.
  // Error{kNoMemory} when the system refuses a thread.
  explicit ThreadPool(int threads, bool pin = true);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;
  // Runs task(i, worker) for i in [0, tasks), worker in [0, size()); returns when all are done. One caller at a time;
  // tasks must not throw and must not call run().
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
