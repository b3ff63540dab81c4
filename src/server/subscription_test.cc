// Events on their way from the engine's thread to coroutines, and requests that end because nobody waits for them.
// Catalogue: H17 of the reliability reference, T27 of the known problems.
#include "server/subscription.h"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/api_error.h"
#include "server/canary_service_test_util.h"
#include "server/http_client_test_util.h"
#include "server/http_server.h"

namespace carpool {
namespace {

// False when it has not come after half a minute.
bool comes_true(const std::function<bool()>& condition) {
  for (int i = 0; i < 30000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

struct Loop {
  explicit Loop(EngineOptions options = {}) : loop(canary_engine(model, nullptr, options), LoopLimits()) {
    loop.start();
  }
  ~Loop() { model.open(); }
  // Nothing runs or waits, and all blocks are free again.
  bool rests() {
    return comes_true([this] {
      const LoopState state = loop.state();
      return state.running == 0 && state.waiting == 0 && state.kv_free_blocks == state.kv_total_blocks;
    });
  }

  GatedModel model;
  EngineLoop loop;
};

// Runs `work` on an executor of its own until it ends.
void run(const std::function<asio::awaitable<void>(asio::any_io_executor)>& work) {
  asio::io_context io;
  bool ended = false;
  asio::co_spawn(io, work(io.get_executor()), [&](std::exception_ptr error) {
    ended = true;
    if (error) std::rethrow_exception(error);
  });
  io.run_for(kTestPatience);
  EXPECT_TRUE(ended) << "the coroutine still waits";
}

std::vector<int> expected(const std::string& prompt, int n) {
  return CanaryModel::expected(std::vector<int>(prompt.begin(), prompt.end()), n);
}

// All tokens until the end; no wait may pass without an event.
asio::awaitable<std::vector<int>> tokens_of(Subscription& subscription) {
  std::vector<int> tokens;
  for (;;) {
    const std::vector<Event> events = co_await subscription.next(kTestPatience.count());
    EXPECT_FALSE(events.empty());
    if (events.empty()) co_return tokens;
    for (const Event& event : events) {
      EXPECT_EQ(event.id, subscription.id());
      if (event.token >= 0) tokens.push_back(event.token);
      if (event.finish != FinishReason::kNone) co_return tokens;
    }
  }
}

TEST(Subscription, BringsTheEventsOfItsRequest) {
  Loop l;
  run([&](asio::any_io_executor executor) -> asio::awaitable<void> {
    Subscription subscription(l.loop, executor, canary_request("hello", 50));
    EXPECT_EQ(co_await tokens_of(subscription), expected("hello", 50));
  });
  EXPECT_TRUE(l.rests());
}

TEST(Subscription, PassesOnWhyARequestIsNotTaken) {
  Loop l;
  asio::io_context io;
  try {
    Subscription subscription(l.loop, io.get_executor(), canary_request("", 5));
    FAIL();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
  }
}

TEST(Subscription, ReturnsWithoutEventsAfterATime) {
  Loop l;
  l.model.close();
  run([&](asio::any_io_executor executor) -> asio::awaitable<void> {
    Subscription subscription(l.loop, executor, canary_request("hello", 5));
    for (int i = 0; i < 3; ++i) {
      const std::vector<Event> events = co_await subscription.next(0.01);
      EXPECT_TRUE(events.empty());
    }
    l.model.open();
    EXPECT_EQ(co_await tokens_of(subscription), expected("hello", 5));
  });
}

TEST(Subscription, GivesASlowReaderEverythingAtOnce) {
  Loop l;
  run([&](asio::any_io_executor executor) -> asio::awaitable<void> {
    Subscription first(l.loop, executor, canary_request("hello", 20));
    Subscription moved(std::move(first));
    EXPECT_TRUE(l.rests());  // this holds the executor up meanwhile
    const std::vector<Event> events = co_await moved.next(kTestPatience.count());
    EXPECT_GE(events.size(), 20u);
    EXPECT_EQ(events.back().finish, FinishReason::kLength);
  });
}

TEST(Subscription, BringsTheLastEventAfterACancel) {
  Loop l;
  run([&](asio::any_io_executor executor) -> asio::awaitable<void> {
    l.model.close();  // or all 3000 are there before the cancel
    Subscription subscription(l.loop, executor, canary_request("hello", 3000));
    l.model.wait_held();
    l.model.pass();
    (void)co_await subscription.next(kTestPatience.count());
    subscription.cancel();
    subscription.cancel();
    l.model.open();
    EXPECT_LT((co_await tokens_of(subscription)).size(), 3000u);
  });
  EXPECT_TRUE(l.rests());
}

TEST(Subscription, CancelsWhatNobodyWaitsFor) {
  Loop l;
  run([&](asio::any_io_executor executor) -> asio::awaitable<void> {
    l.model.close();
    std::optional<Subscription> unread(std::in_place, l.loop, executor, canary_request("never read", 3000));
    l.model.wait_held();
    std::optional<Subscription> untaken(std::in_place, l.loop, executor, canary_request("not even begun", 3000));
    untaken.reset();
    unread.reset();
    std::optional<Subscription> running(std::in_place, l.loop, executor, canary_request("running", 3000));
    l.model.open();
    (void)co_await running->next(kTestPatience.count());
    running.reset();
  });
  EXPECT_TRUE(l.rests());
}

TEST(Subscription, SaysThatTheRequestWasLost) {
  Loop l;
  run([&](asio::any_io_executor executor) -> asio::awaitable<void> {
    l.model.close();  // or the request has ended before the model breaks down
    Subscription subscription(l.loop, executor, canary_request("hello", 3000));
    l.model.wait_held();
    l.model.pass();
    (void)co_await subscription.next(kTestPatience.count());
    l.model.break_down();
    l.model.open();
    int status = 0;
    std::string code;
    try {
      for (;;) {
        const std::vector<Event> events = co_await subscription.next(kTestPatience.count());
        if (events.empty()) break;
      }
    } catch (const ApiError& error) {
      status = error.status();
      code = error.code();
    }
    EXPECT_EQ(status, 503);
    EXPECT_EQ(code, "engine_dead");
  });
}

TEST(Subscription, LeavesNothingOfAnExecutorBehind) {
  Loop l;
  l.model.close();
  for (int i = 0; i < 10; ++i) {
    asio::io_context io;
    const auto read = [&]() -> asio::awaitable<void> {
      Subscription subscription(l.loop, asio::make_strand(io), canary_request("hello", 5));
      (void)co_await subscription.next(0.002);
    };
    asio::co_spawn(asio::make_strand(io), read(), [](std::exception_ptr) {});
    if (i % 2 == 0) io.run();
    if (i % 2 == 1) io.run_one();  // ends while the coroutine waits
  }
  l.model.open();  // the engine's events of all of them have nowhere to go
  EXPECT_TRUE(l.rests());
}

TEST(Subscription, LosesNoWakeUps) {
  Loop l({.max_batch = 32, .chunk = 64});
  asio::io_context io;
  std::atomic<int> right{0}, ended{0};
  constexpr int kReaders = 100;
  const auto read = [&](asio::any_io_executor executor, int i) -> asio::awaitable<void> {
    const std::string prompt = "reader " + std::to_string(i);
    Subscription subscription(l.loop, executor, canary_request(prompt, 40));
    if (co_await tokens_of(subscription) == expected(prompt, 40)) ++right;
  };
  for (int i = 0; i < kReaders; ++i) {
    const asio::any_io_executor strand = asio::make_strand(io);
    asio::co_spawn(strand, read(strand, i), [&](std::exception_ptr) { ++ended; });
  }
  std::thread other([&] { io.run_for(2 * kTestPatience); });
  io.run_for(2 * kTestPatience);
  other.join();
  EXPECT_EQ(ended, kReaders);
  EXPECT_EQ(right, kReaders);
}

TEST(Subscription, EndsWithItsClientInEveryState) {
  Loop l({.max_batch = 2, .chunk = 16});
  HttpOptions options;
  options.port = 0;
  std::atomic<int> submitted{0};
  HttpServer server(options, [&](Exchange& exchange) -> asio::awaitable<void> {
    Subscription subscription(l.loop, exchange.executor(), canary_request(exchange.request().path, 3000));
    exchange.on_gone([&] { subscription.cancel(); });
    ++submitted;
    if (exchange.request().body == "stream") {
      const Headers none;
      co_await exchange.begin_events(none);
      for (;;) {
        const std::vector<Event> events = co_await subscription.next(1);
        for (const Event& event : events) {
          co_await exchange.event(std::to_string(event.token));
          if (event.finish != FinishReason::kNone) co_return;
        }
      }
    }
    Response response;
    response.body = std::to_string((co_await tokens_of(subscription)).size());
    co_await exchange.respond(std::move(response));
  });
  server.start();
  for (const bool held : {true, false}) {
    for (int way = 0; way < 3; ++way) {
      if (held) l.model.close();
      submitted = 0;
      std::vector<RawClient> clients;
      for (int i = 0; i < 6; ++i) {  // two run, four wait
        clients.emplace_back(server.port());
        clients.back().send(request_text("POST", "/" + std::to_string(i), i % 2 == 0 ? "stream" : "whole"));
      }
      ASSERT_TRUE(comes_true([&] { return submitted == 6; }));
      for (RawClient& client : clients) {
        if (way == 0) client.close();
        if (way == 1) client.close_abruptly();
        if (way == 2) client.half_close();
      }
      if (held) l.model.open();
      EXPECT_TRUE(comes_true([&] { return server.connections() == 0; })) << held << way;
      EXPECT_TRUE(l.rests()) << held << way;
    }
  }
}

}  // namespace
}  // namespace carpool
