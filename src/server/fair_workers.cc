// Read first: fair_workers.h.
#include "server/fair_workers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/api_error.h"

namespace carpool {
namespace {

constexpr int kRetry = 1;  // seconds, said to the refused: the work of most requests takes milliseconds

}  // namespace

FairWorkers::FairWorkers(int threads, const Limits& limits) : limits_(limits) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

void FairWorkers::post(int tenant, Entry entry, Work work) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) throw unavailable("draining", "the server is shutting down", kRetry);
    const auto found = waiting_.find(tenant);
    const int mine = found == waiting_.end() ? 0 : static_cast<int>(found->second.size());
    if (entry == Entry::kRefusable) {
      const int share = std::max(1, static_cast<int>(limits_.key_share * limits_.waiting));
      if (limits_.tenants > 1 && mine >= share) {
        throw ApiError(429, "rate_limit_error", "key_queue_full",
                       fmt::format("{} requests of this key wait to be tokenized, and its share is {}", mine, share))
            .retry_after(kRetry);
      }
      if (size_ >= limits_.waiting) {
        throw unavailable("overloaded", fmt::format("the queue is full: {} requests wait to be tokenized", size_),
                          kRetry);
      }
    }
    waiting_[tenant].push_back(std::move(work));
    if (mine == 0) turns_.push_back(tenant);
    ++size_;
  }
  changed_.notify_one();
}

int FairWorkers::waiting() const {
  const std::lock_guard lock(mutex_);
  return size_;
}

void FairWorkers::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

bool FairWorkers::take(Work& work) {
  if (turns_.empty()) return false;
  const int tenant = turns_.front();
  turns_.pop_front();
  const auto queue = waiting_.find(tenant);
  work = std::move(queue->second.front());
  queue->second.pop_front();
  --size_;
  if (queue->second.empty()) {
    waiting_.erase(queue);
  } else {
    turns_.push_back(tenant);
  }
  return true;
}

void FairWorkers::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    Work work;
    if (take(work)) {
      const bool go = !stopping_;
      lock.unlock();
      work(go);
      work = nullptr;  // what it holds may be the last of a request
      lock.lock();
    } else if (stopping_) {
      return;
    } else {
      changed_.wait(lock);
    }
  }
}

}  // namespace carpool
