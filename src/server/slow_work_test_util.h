// Work that keeps the worker threads of a service busy for as long as a test wants.
#pragma once

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "server/canary_service_test_util.h"

namespace carpool {

// Pieces of work of one tenant, each of which ends when it is let, in the order in which they begin.
class SlowWork {
 public:
  SlowWork(Service& service, int tenant, int pieces) : io_(1) {
    for (int i = 0; i < pieces; ++i) asio::co_spawn(io_, piece(service, tenant), asio::detached);
    std::promise<void> all_sent;
    asio::post(io_, [&all_sent] { all_sent.set_value(); });
    thread_ = std::thread([this] { io_.run_for(kTestPatience); });
    all_sent.get_future().wait();
  }
  ~SlowWork() {
    let(1 << 20);
    thread_.join();
  }
  void let(int pieces) {
    const std::lock_guard lock(mutex_);
    let_ += pieces;
    changed_.notify_all();
  }
  // Waits until so many pieces have begun.
  void wait_begun(int pieces) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kTestPatience, [&] { return begun_ >= pieces; })) << begun_;
  }
  int begun() {
    const std::lock_guard lock(mutex_);
    return begun_;
  }

 private:
  asio::awaitable<void> piece(Service& service, int tenant) {
    auto work = [this] {
      std::unique_lock lock(mutex_);
      const int turn = ++begun_;
      changed_.notify_all();
      changed_.wait_for(lock, kTestPatience, [&] { return let_ >= turn; });
      return turn;
    };
    const int turn = co_await service.offload({tenant, false}, work, FairWorkers::Entry::kOfAnAdmitted);
    EXPECT_GT(turn, 0);
  }

  asio::io_context io_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int begun_ = 0, let_ = 0;
  std::thread thread_;
};

}  // namespace carpool
