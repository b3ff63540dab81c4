// Threads for the slow work of requests - templates, tokenising, grammars -, whose turns go round among tenants.
//
// Owns FairWorkers: a bounded queue per tenant and the threads that serve them round robin, so that somebody with one
// piece of work waits for at most one of everybody else's before a thread takes it, however many they have sent. A
// piece that has begun is not interrupted; budgets of the work itself bound it. Does not know HTTP beyond the refusals.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace carpool {

class FairWorkers {
 public:
  struct Limits {
    int waiting = 4096;       // pieces of work of all tenants, without those that have begun
    double key_share = 0.25;  // of that, for one tenant, when there are several
    int tenants = 1;          // how many there are
  };
  // kRefusable: the first work of a request, which counts against the limits. kOfAnAdmitted: a later part of one that
  // has cost something already; only its turn is a matter of the queue.
  enum class Entry { kRefusable, kOfAnAdmitted };
  // Called once, on a thread of ours: with true to do the work, with false when stop() came before its turn. Must not
  // throw.
  using Work = std::function<void(bool go)>;

  FairWorkers(int threads, const Limits& limits);
  ~FairWorkers() { stop(); }

  // Thread-safe; returns at once. Throws ApiError 429 key_queue_full, 503 overloaded, 503 draining after stop(); then
  // `work` is never called.
  void post(int tenant, Entry entry, Work work);
  int waiting() const;  // pieces of work that have not begun
  // Ends the threads: what has begun ends, what waits is called with false. Once is as good as twice.
  void stop();

 private:
  void run();
  bool take(Work& work);  // whose turn it is; false when there is nothing

  const Limits limits_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, std::deque<Work>> waiting_;  // by tenant, none empty
  std::deque<int> turns_;                    // the tenants of `waiting_`, in the order of their turns
  int size_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace carpool
