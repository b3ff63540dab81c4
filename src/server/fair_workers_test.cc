// Turns among tenants, limits, and the end. Catalogue: O7 of the reliability reference.
#include "server/fair_workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>

#include "server/api_error.h"

namespace carpool {
namespace {

using Entry = FairWorkers::Entry;

// A thread of `workers` that is busy until open().
class Held {
 public:
  Held(FairWorkers& workers, int tenant) {
    workers.post(tenant, Entry::kRefusable, [state = state_](bool) {
      state->begun.set_value();
      state->opened.get_future().wait();
    });
    state_->begun.get_future().wait();
  }
  void open() { state_->opened.set_value(); }

 private:
  struct State {
    std::promise<void> begun, opened;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

std::string refusal(FairWorkers& workers, int tenant, Entry entry = Entry::kRefusable) {
  try {
    workers.post(tenant, entry, [](bool) {});
  } catch (const ApiError& e) {
    return std::to_string(e.status()) + " " + e.code() + (e.retry_after() > 0 ? "" : " for good");
  }
  return "";
}

TEST(FairWorkers, TurnsGoRoundAmongTenantsHoweverMuchOneHasSent) {
  FairWorkers workers(1, {});
  Held held(workers, 0);
  std::string order;
  std::promise<void> all;
  const auto post = [&](int tenant) {
    workers.post(tenant, Entry::kRefusable, [&order, &all, tenant](bool go) {
      order += go ? static_cast<char>('0' + tenant) : 'x';
      if (order.size() == 106) all.set_value();
    });
  };
  for (int i = 0; i < 100; ++i) post(0);
  for (int i = 0; i < 3; ++i) post(1);
  for (int i = 0; i < 2; ++i) post(2);
  post(3);
  held.open();
  all.get_future().wait();
  EXPECT_EQ(order, "012301201" + std::string(97, '0'));
}

TEST(FairWorkers, ATenantsShareAndTheWholeQueueAreBounded) {
  FairWorkers workers(1, {8, 0.25, 6});
  Held held(workers, 0);
  for (const int tenant : {0, 1, 2, 3}) {
    if (tenant == 3) {
      EXPECT_EQ(refusal(workers, 0), "429 key_queue_full") << "others have room";
    }
    EXPECT_EQ(refusal(workers, tenant), "");
    EXPECT_EQ(refusal(workers, tenant), "");
  }
  EXPECT_EQ(refusal(workers, 4), "503 overloaded");
  EXPECT_EQ(refusal(workers, 0, Entry::kOfAnAdmitted), "") << "what has cost something goes on";
  held.open();
}

TEST(FairWorkers, OneTenantAloneMayHaveTheWholeQueue) {
  FairWorkers workers(1, {8, 0.25, 1});
  Held held(workers, 0);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(refusal(workers, 0), "") << i;
  EXPECT_EQ(refusal(workers, 0), "503 overloaded");
  held.open();
}

TEST(FairWorkers, StopLetsEndWhatHasBegunAndTellsWhoWaits) {
  FairWorkers workers(2, {});
  Held first(workers, 0), second(workers, 1);
  std::atomic<int> done{0}, told{0};
  for (int i = 0; i < 10; ++i) workers.post(i % 3, Entry::kRefusable, [&](bool go) { ++(go ? done : told); });
  std::future<void> stopped = std::async(std::launch::async, [&] { workers.stop(); });
  while (refusal(workers, 7, Entry::kOfAnAdmitted).empty()) std::this_thread::yield();
  EXPECT_EQ(refusal(workers, 7), "503 draining");
  EXPECT_EQ(stopped.wait_for(std::chrono::milliseconds(0)), std::future_status::timeout) << "two have begun";
  first.open();
  second.open();
  stopped.wait();
  EXPECT_EQ(done, 0);
  EXPECT_EQ(told, 10);
  workers.stop();
}

TEST(FairWorkers, WorkOfManyThreadsIsDoneOnce) {
  constexpr int kThreads = 4, kEach = 2000;
  std::atomic<int> done{0};
  auto alive = std::make_shared<int>(0);
  {
    FairWorkers workers(2, {kThreads * kEach, 0.25, kThreads});
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kEach; ++i) workers.post(t % 3, Entry::kOfAnAdmitted, [&done, alive](bool) { ++done; });
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(done, kThreads * kEach);
  EXPECT_EQ(alive.use_count(), 1) << "nothing of the work is kept";
}

}  // namespace
}  // namespace carpool
