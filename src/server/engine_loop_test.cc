// The engine's thread under load, cancels, drain and death. Steps are held by a gate where an order matters, so nothing
// here depends on time.
#include "server/engine_loop.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/api_error.h"
#include "server/canary_service_test_util.h"

namespace carpool {
namespace {

// A loop of the gated canary; the gate opens before the loop is destroyed.
struct Loop {
  explicit Loop(const LoopLimits& limits = {}, EngineOptions options = {}, LoopObserver observer = {}) {
    loop.emplace(canary_engine(model, nullptr, options), limits);
    loop->observe(std::move(observer));
    loop->start();
  }
  ~Loop() { model.open(); }

  std::shared_ptr<CollectSink> submit(Request request) {
    auto sink = std::make_shared<CollectSink>();
    last_id = loop->submit(std::move(request), sink);
    return sink;
  }
  // What submit() throws, as "status code retry_after"; "" when it takes the request.
  std::string refusal(Request request) {
    try {
      submit(std::move(request));
      return "";
    } catch (const ApiError& e) {
      return std::to_string(e.status()) + " " + e.code() + (e.retry_after() > 0 ? " retry" : "");
    }
  }
  // The engine is within a step that will not end, with one request in it.
  std::shared_ptr<CollectSink> hold() {
    model.close();
    auto sink = submit(canary_request("held", 4));
    model.wait_held();
    return sink;
  }

  GatedModel model;
  std::optional<EngineLoop> loop;
  RequestId last_id = 0;
};

std::vector<int> expected(const std::string& prompt, int n) {
  return CanaryModel::expected(std::vector<int>(prompt.begin(), prompt.end()), n);
}

TEST(EngineLoop, ARequestIsCountedFromItsSubmissionOn) {
  Loop l;
  const auto held = l.hold();  // taken from the inbox, and its step has not ended
  EXPECT_EQ(l.loop->state().running + l.loop->state().waiting, 1);
  const auto next = l.submit(canary_request("next", 4));
  EXPECT_EQ(l.loop->state().running + l.loop->state().waiting, 2);
  l.model.open();
}

TEST(EngineLoop, BringsEveryRequestItsOwnTokensInOrder) {
  Loop l({}, {.max_batch = 8, .chunk = 16});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&l, t] {
      std::vector<std::pair<std::string, std::shared_ptr<CollectSink>>> mine;
      for (int i = 0; i < 10; ++i) {
        const std::string prompt = "thread " + std::to_string(t) + " request " + std::to_string(i);
        auto sink = std::make_shared<CollectSink>();
        l.loop->submit(canary_request(prompt, 20 + i), sink);
        mine.emplace_back(prompt, sink);
      }
      for (int i = 0; i < 10; ++i) {
        auto& [prompt, sink] = mine[static_cast<size_t>(i)];
        EXPECT_EQ(sink->end(), "length");
        EXPECT_EQ(sink->tokens(), expected(prompt, 20 + i)) << prompt;
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(EngineLoop, EventsCarryTheIdThatSubmitReturned) {
  Loop l;
  const auto first = l.submit(canary_request("a", 2));
  const RequestId id = l.last_id;
  const auto second = l.submit(canary_request("b", 2));
  EXPECT_NE(l.last_id, id);
  EXPECT_EQ(first->end(), "length");
  EXPECT_EQ(second->end(), "length");
  for (const Event& e : first->events()) EXPECT_EQ(e.id, id);
}

TEST(EngineLoop, RefusesWhenTheQueueIsFullWithoutWaitingForTheStep) {
  Loop l({.max_queued = 4}, {.max_batch = 2});
  std::vector<std::shared_ptr<CollectSink>> taken{l.hold()};
  for (int i = 0; i < 3; ++i) taken.push_back(l.submit(canary_request("queued", 4)));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(l.refusal(canary_request("over", 4)), "503 overloaded retry");
  l.model.open();
  for (const auto& sink : taken) EXPECT_EQ(sink->end(), "length");
  EXPECT_EQ(l.submit(canary_request("later", 4))->end(), "length") << "the queue is free again";
}

TEST(EngineLoop, RefusesATenantOverItsShareAndNobodyElse) {
  Loop l({.max_queued = 8, .key_share = 0.25, .tenants = 2}, {.max_batch = 2});
  l.hold();  // tenant 0's first
  l.submit(canary_request("second of tenant 0", 4));
  EXPECT_EQ(l.refusal(canary_request("third of tenant 0", 4)), "429 key_queue_full retry");
  EXPECT_EQ(l.refusal(canary_request("first of tenant 1", 4, 1)), "");
}

TEST(EngineLoop, OneTenantAloneMayFillTheQueue) {
  Loop l({.max_queued = 8, .key_share = 0.25, .tenants = 1}, {.max_batch = 2});
  l.hold();
  for (int i = 1; i < 8; ++i) EXPECT_EQ(l.refusal(canary_request("more", 4)), "");
  EXPECT_EQ(l.refusal(canary_request("ninth", 4)), "503 overloaded retry");
}

TEST(EngineLoop, RefusesValuesOutOfRangeWithTheirField) {
  Loop l;
  try {
    l.submit(canary_request("hello", -5));
    FAIL() << "was taken";
  } catch (const ApiError& e) {
    EXPECT_EQ(e.status(), 400);
    EXPECT_EQ(e.param(), "max_tokens");
  }
  EXPECT_EQ(l.refusal(canary_request("", 4)).substr(0, 3), "400");
  EXPECT_EQ(l.refusal(canary_request("hello", 1 << 30)).substr(0, 3), "400");
}

TEST(EngineLoop, CancelEndsARequestInEveryState) {
  Loop l({}, {.max_batch = 1});
  l.model.close();
  const auto running = l.submit(canary_request("running", 1000));
  const RequestId running_id = l.last_id;
  l.model.wait_held();
  const auto waiting = l.submit(canary_request("waiting", 1000));  // still in the inbox
  const RequestId waiting_id = l.last_id;
  l.loop->cancel(waiting_id);
  l.loop->cancel(running_id);
  l.loop->cancel(running_id);
  l.loop->cancel(123456);
  l.model.open();
  EXPECT_EQ(running->end(), "cancelled");
  EXPECT_EQ(waiting->end(), "cancelled");
  EXPECT_TRUE(waiting->tokens().empty());
  l.loop->cancel(running_id);
  EXPECT_EQ(l.submit(canary_request("next", 4))->end(), "length");
}

TEST(EngineLoop, CancelledRequestsGiveTheirPlaceInTheQueueBack) {
  Loop l({.max_queued = 2}, {.max_batch = 1});
  const auto held = l.hold();
  const auto queued = l.submit(canary_request("queued", 1000));
  const RequestId id = l.last_id;
  EXPECT_EQ(l.refusal(canary_request("over", 4)), "503 overloaded retry");
  l.loop->cancel(id);
  l.model.open();
  EXPECT_EQ(queued->end(), "cancelled");
  EXPECT_EQ(held->end(), "length");
  EXPECT_EQ(l.submit(canary_request("next", 4))->end(), "length");
}

TEST(EngineLoop, DrainLetsOpenRequestsEndAndRefusesNewOnes) {
  Loop l({}, {.max_batch = 1});
  const auto running = l.hold();
  const auto waiting = l.submit(canary_request("waiting", 4));
  l.loop->drain(std::chrono::steady_clock::now() + std::chrono::hours(1));
  EXPECT_FALSE(l.loop->drained());
  EXPECT_TRUE(l.loop->state().draining);
  EXPECT_EQ(l.refusal(canary_request("new", 4)), "503 draining retry");
  l.model.open();
  EXPECT_EQ(running->end(), "length");
  EXPECT_EQ(waiting->end(), "length");
  while (!l.loop->drained()) std::this_thread::yield();
}

TEST(EngineLoop, TheDrainDeadlineEndsTheRest) {
  Loop l({}, {.max_batch = 1});
  l.model.close();
  const auto running = l.submit(canary_request("running", 4000));
  l.model.wait_held();
  const auto waiting = l.submit(canary_request("waiting", 4000));
  l.loop->drain(std::chrono::steady_clock::now());
  l.model.open();
  EXPECT_EQ(running->end(), "draining");
  EXPECT_EQ(waiting->end(), "draining");
  while (!l.loop->drained()) std::this_thread::yield();
  EXPECT_TRUE(l.loop->state().alive);
}

TEST(EngineLoop, DeathTellsEverybodyAndNothingHangs) {
  std::atomic<int> deaths{0};
  std::string why;
  LoopObserver observer;
  observer.died = [&](const std::string& what) {
    why = what;
    ++deaths;
  };
  Loop l({}, {.max_batch = 1}, observer);
  l.model.close();
  const auto running = l.submit(canary_request("running", 100));
  l.model.wait_held();
  const auto waiting = l.submit(canary_request("waiting", 100));
  std::atomic<bool> destroyed{false};
  const std::shared_ptr<void> witness(nullptr, [&](void*) { destroyed = true; });
  bool ran = false;
  l.loop->between_steps([w = witness, &ran](Engine&) { ran = true; });
  l.model.break_down();
  l.model.open();
  EXPECT_EQ(running->end(), "engine_dead");
  EXPECT_EQ(waiting->end(), "engine_dead");
  while (deaths == 0) std::this_thread::yield();
  EXPECT_EQ(why, "the canary fell off its perch");
  EXPECT_FALSE(l.loop->state().alive);
  EXPECT_FALSE(ran);
  EXPECT_EQ(witness.use_count(), 1) << "the work that did not run is gone";
  EXPECT_EQ(l.refusal(canary_request("new", 4)), "503 engine_dead");
  EXPECT_THROW(l.loop->between_steps([](Engine&) {}), ApiError);
  l.loop->cancel(1);
}

TEST(EngineLoop, WorkBetweenStepsRunsWhileRequestsRunAndStateShowsItWhenDone) {
  Loop l;
  const auto running = l.submit(canary_request("running", 2000));
  running->wait_for_tokens(1);
  std::promise<std::string> seen;
  l.loop->between_steps([](Engine& engine) { engine.set_policy(make_policy("oea:k0=3")); },
                        [&] { seen.set_value(l.loop->state().policy); });
  EXPECT_EQ(seen.get_future().get(), "oea:k0=3");
  l.loop->cancel(l.last_id);
  running->end();
}

TEST(EngineLoop, StateCountsWhatRunsAndWhatWaits) {
  Loop l({}, {.max_batch = 1, .kv_tokens = 1024});
  EXPECT_EQ(l.loop->state().kv_total_blocks, 64);
  EXPECT_EQ(l.loop->state().policy, "topk");
  EXPECT_TRUE(l.loop->state().alive);
  l.hold();
  l.submit(canary_request("waiting", 4));
  l.submit(canary_request("waiting", 4));
  EXPECT_EQ(l.loop->state().waiting, 3) << "the held one waits until its first step has ended";
  EXPECT_GT(l.loop->state().estimated_wait, 0);
}

TEST(EngineLoop, TellsItsObserverOfStepsTokensAndTimes) {
  std::mutex mutex;
  std::vector<RequestTimes> times;
  int inter_tokens = 0;
  int64_t rows = 0;
  LoopObserver observer;
  observer.step = [&](const Engine&, const StepReport& r) { rows += r.decode_rows + r.prefill_rows; };
  observer.inter_token = [&](double seconds) {
    EXPECT_GE(seconds, 0);
    ++inter_tokens;
  };
  observer.finished = [&](FinishReason reason, const RequestStats& stats, const RequestTimes& t) {
    EXPECT_EQ(reason, FinishReason::kLength);
    EXPECT_EQ(stats.prompt_tokens, 5);
    EXPECT_EQ(stats.completion_tokens, 8);
    const std::lock_guard lock(mutex);
    times.push_back(t);
  };
  {
    Loop l({}, {}, observer);
    EXPECT_EQ(l.submit(canary_request("hello", 8))->end(), "length");
  }  // joined
  ASSERT_EQ(times.size(), 1u);
  EXPECT_EQ(inter_tokens, 7);
  EXPECT_EQ(rows, 5 + 7);
  EXPECT_GE(times[0].queue, 0);
  EXPECT_GE(times[0].prefill, 0);
  EXPECT_GE(times[0].first_token, times[0].queue);
  EXPECT_GE(times[0].total, times[0].first_token);
}

TEST(EngineLoop, StopTellsWhoIsOpenAndRefusesFromThenOn) {
  Loop l({}, {.max_batch = 1});
  l.model.close();  // or it has ended before stop()
  const auto running = l.submit(canary_request("running", 4000));
  const auto waiting = l.submit(canary_request("waiting", 4000));
  l.model.wait_held();
  l.model.pass();
  running->wait_for_tokens(1);
  l.model.wait_held();
  std::future<void> stopped = std::async(std::launch::async, [&] { l.loop->stop(); });
  const auto refuses = [&] {
    try {
      l.loop->require_room(0, 1);
      return false;
    } catch (const ApiError& e) {
      return e.code() == "draining";
    }
  };
  while (!refuses()) std::this_thread::yield();
  EXPECT_EQ(stopped.wait_for(std::chrono::milliseconds(0)), std::future_status::timeout) << "a step is under way";
  l.model.open();
  stopped.wait();
  EXPECT_EQ(running->end(), "draining");
  EXPECT_EQ(waiting->end(), "draining");
  EXPECT_LE(running->tokens().size(), 2u) << "the step that was under way is the last";
  EXPECT_TRUE(waiting->tokens().empty());
  EXPECT_EQ(l.refusal(canary_request("new", 4)), "503 draining retry");
  l.loop->stop();
}

TEST(EngineLoop, ALoopThatNeverStartedTellsWhoWaits) {
  GatedModel model;
  auto sink = std::make_shared<CollectSink>();
  {
    EngineLoop loop(canary_engine(model, nullptr, {}), {});
    loop.submit(canary_request("hello", 4), sink);
  }
  EXPECT_EQ(sink->end(), "draining");
}

TEST(EngineLoop, AQueueWithoutRoomIsRefused) {
  GatedModel model;
  EXPECT_THROW(EngineLoop(canary_engine(model, nullptr, {}), {.max_queued = 0}), Error);
}

TEST(YieldToIo, LowersTheThreadOnceAndItsChildren) {
  const auto niceness = [] { return ::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid())); };
  const int before = niceness();
  int once = 0, twice = 0, child = 0;
  std::thread([&] {
    yield_to_io();
    once = niceness();
    yield_to_io();
    twice = niceness();
    std::thread([&] { child = niceness(); }).join();
  }).join();
  EXPECT_EQ(once, std::min(before + 5, 19));
  EXPECT_EQ(twice, once);
  EXPECT_EQ(child, once);
  EXPECT_EQ(niceness(), before) << "this thread stays";
}

}  // namespace
}  // namespace carpool
