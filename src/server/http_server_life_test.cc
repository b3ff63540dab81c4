// How many clients a server takes, what it says to the others, and how it ends. Catalogue: O1 of the reliability
// reference.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "server/api_error.h"
#include "server/http_client_test_util.h"
#include "server/http_server.h"

namespace carpool {
namespace {

asio::awaitable<void> answer(Exchange& exchange) {
  Response response;
  response.body = "{}";
  co_await exchange.respond(response);
}

HttpOptions on_any_port() {
  HttpOptions options;
  options.port = 0;
  return options;
}

bool comes_true(const std::function<bool()>& condition) {
  for (int i = 0; i < 30000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

void expect_overloaded(RawClient& client) {
  client.try_send(request_text("GET", "/"));
  const RawResponse response = client.read_response();
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.header("retry-after"), "1");
  EXPECT_EQ(response.header("connection"), "close");
  EXPECT_EQ(parse_json(response.body, "response").at("error").at("code").as_string(), "overloaded");
}

// Waits without an end of its own.
asio::awaitable<void> wait_for_ever(Exchange& exchange) {
  asio::steady_timer timer(exchange.executor());
  timer.expires_after(std::chrono::hours(1));
  co_await timer.async_wait(asio::use_awaitable);
}

size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

TEST(HttpServerLife, RefusesAPortThatIsBusyAndAHostThatIsNone) {
  HttpServer server(on_any_port(), answer);
  HttpOptions options;
  options.port = server.port();
  try {
    HttpServer second(options, answer);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
    EXPECT_NE(std::string(error.what()).find(std::to_string(options.port)), std::string::npos);
  }
  options = on_any_port();
  options.host = "no.such\nhost";
  try {
    HttpServer third(options, answer);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  }
  options.host = "localhost";
  EXPECT_GT(HttpServer(options, answer).port(), 0);
}

TEST(HttpServerLife, TakesAPortAgainAtOnce) {
  HttpOptions options = on_any_port();
  for (int i = 0; i < 3; ++i) {
    HttpServer server(options, answer);
    server.start();
    options.port = server.port();
    RawClient client(server.port());
    EXPECT_EQ(client.ask(request_text("GET", "/")).status, 200);
  }
}

TEST(HttpServerLife, RefusesConnectionsOverTheLimitAndTakesOthersLater) {
  HttpOptions options = on_any_port();
  options.limits.connections = 4;
  options.limits.give_way_s = 1000;
  std::atomic<int> open{0}, refused{0};
  HttpObserver observer;
  observer.connections = [&](int delta) { open += delta; };
  observer.refused = [&](int status, const char* code) {
    refused += status == 503 && code == std::string("overloaded");
  };
  HttpServer server(options, answer, observer);
  server.start();
  {
    std::vector<RawClient> clients;
    for (int i = 0; i < 4; ++i) {
      clients.emplace_back(server.port());
      EXPECT_EQ(clients.back().ask(request_text("GET", "/")).status, 200);
    }
    EXPECT_EQ(server.connections(), 4);
    EXPECT_EQ(open, 4);
    std::vector<RawClient> others;  // more of them than may wait for their refusal to arrive
    for (int i = 0; i < 20; ++i) others.emplace_back(server.port());
    ASSERT_TRUE(comes_true([&] { return refused == 20; }));
    for (size_t i = 0; i < 4; ++i) expect_overloaded(others[i]);
    EXPECT_EQ(clients[0].ask(request_text("GET", "/")).status, 200);
  }
  EXPECT_TRUE(comes_true([&] { return server.connections() == 0 && open == 0; }));
  RawClient client(server.port());
  EXPECT_EQ(client.ask(request_text("GET", "/")).status, 200);
}

TEST(HttpServerLife, IdleConnectionsGiveWayWhenThereAreTooMany) {
  HttpOptions options = on_any_port();
  options.limits.connections = 2;
  options.limits.give_way_s = 0;
  std::atomic<bool> go{false}, busy{false};
  HttpServer server(options, [&](Exchange& exchange) -> asio::awaitable<void> {
    if (exchange.request().path == "/busy") {
      busy = true;
      asio::steady_timer timer(exchange.executor());
      while (!go) {
        timer.expires_after(std::chrono::milliseconds(1));
        co_await timer.async_wait(asio::use_awaitable);
      }
    }
    co_await answer(exchange);
  });
  server.start();
  RawClient working(server.port()), idle(server.port());
  working.send(request_text("GET", "/busy"));
  ASSERT_TRUE(comes_true([&] { return busy.load(); }));
  EXPECT_EQ(idle.ask(request_text("GET", "/")).status, 200);
  ASSERT_TRUE(comes_true([&] { return server.connections() == 2; }));
  // At once, or after the server has seen that the first one is idle.
  EXPECT_TRUE(comes_true([&] { return RawClient(server.port()).ask(request_text("GET", "/")).status == 200; }));
  EXPECT_TRUE(idle.closed_by_server());
  go = true;
  EXPECT_EQ(working.read_response().status, 200);
}

TEST(HttpServerLife, AnswersAHundredClientsThatComeAtOnce) {
  HttpOptions options = on_any_port();
  HttpServer server(options, answer);
  std::vector<RawClient> clients;
  for (int i = 0; i < 100; ++i) {
    clients.emplace_back(server.port());
    clients.back().send(request_text("GET", "/"));
  }
  server.start();  // all of them wait by now
  for (RawClient& client : clients) EXPECT_EQ(client.read_response().status, 200);
}

TEST(HttpServerLife, AnswersWhenThereAreNoDescriptorsLeft) {
#ifdef CARPOOL_SANITIZED
  GTEST_SKIP()
      << "UBSan opens a pipe to look at an object whose type it has not in its cache, and reports it when it gets none";
#endif
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  HttpServer server(on_any_port(), answer);
  server.start();
  RawClient early(server.port());
  EXPECT_EQ(early.ask(request_text("GET", "/")).status, 200);
  rlimit few = before;
  few.rlim_cur = 128;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<int> filler;
  for (int fd = open("/dev/null", O_RDONLY); fd >= 0; fd = open("/dev/null", O_RDONLY)) filler.push_back(fd);
  ASSERT_FALSE(filler.empty());
  for (int i = 0; i < 3; ++i) {
    close(filler.back());
    {
      RawClient client(server.port());  // with the last descriptor
      const RawResponse response = client.read_response();
      EXPECT_EQ(response.status, 503);
      EXPECT_EQ(response.header("retry-after"), "1");
    }
    filler.back() = open("/dev/null", O_RDONLY);
  }
  EXPECT_EQ(early.ask(request_text("GET", "/")).status, 200);
  for (const int fd : filler) close(fd);
  RawClient late(server.port());
  EXPECT_EQ(late.ask(request_text("GET", "/")).status, 200);
  setrlimit(RLIMIT_NOFILE, &before);
}

// Bytes that the heap has given out; a sanitizer has one of its own, of which this knows nothing.
size_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

// As many as there are descriptors for, ours and the server's: 9,900 where the limit is 20,000.
TEST(HttpServerLife, TenThousandIdleConnectionsCostLittleMemoryAndHoldNobodyUp) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const size_t descriptors = raise_descriptor_limit();
#ifdef CARPOOL_SANITIZED
  constexpr size_t kMost = 1000;
#else
  constexpr size_t kMost = 10'000;
#endif
  ASSERT_GT(descriptors, 400u);
  const size_t count = std::min(kMost, (descriptors - 200) / 2);
  HttpOptions options = on_any_port();
  options.limits.connections = static_cast<int>(count);
  options.limits.give_way_s = 0;
  options.limits.keep_alive_s = options.limits.header_s = 600;
  HttpServer server(options, answer);
  server.start();
  {
    std::vector<RawClient> clients;
    clients.reserve(count + 1);
    const std::string request = request_text("GET", "/");
    clients.emplace_back(server.port(), 120);
    EXPECT_EQ(clients.back().ask(request).status, 200);
    const size_t first = heap_bytes();
    while (clients.size() < count) {
      clients.emplace_back(server.port(), 120);
      // Half of them have been answered, the others have never asked.
      if (clients.size() % 2 == 0) {
        ASSERT_EQ(clients.back().ask(request).status, 200) << clients.size();
      }
    }
    ASSERT_TRUE(comes_true([&] { return server.connections() == static_cast<int>(count); }));
    const double each = static_cast<double>(heap_bytes() - first) / static_cast<double>(count);
    RecordProperty("connections", static_cast<int>(count));
    RecordProperty("bytes_each", static_cast<int>(each));
#ifndef CARPOOL_SANITIZED
    EXPECT_LT(each, 6000) << "of heap for an idle connection, the client's side included";
#endif
    for (size_t i = 1; i < count; i += 97) EXPECT_EQ(clients[i].ask(request).status, 200) << i;
    // One more takes the place of the one that is idle for longest.
    EXPECT_EQ(RawClient(server.port()).ask(request).status, 200);
    // It is one of the first, the very first as a rule: a thread of the server may note a bit late who is idle.
    const auto closed = [](RawClient& client) { return client.readable_within(0); };
    const auto early = clients.begin() + 8;
    EXPECT_TRUE(comes_true([&] { return std::any_of(clients.begin(), early, closed); }));
    EXPECT_EQ(std::count_if(clients.begin(), clients.end(), closed), 1);
    const auto it = std::find_if(clients.begin(), early, closed);
    EXPECT_TRUE(it != early && it->closed_by_server());
    for (RawClient& client : clients) client.close_abruptly();  // leaves no port waiting
  }
  EXPECT_TRUE(comes_true([&] { return server.connections() == 0; }));
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST(HttpServerLife, RaisesTheDescriptorLimit) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 128;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  EXPECT_EQ(raise_descriptor_limit(), before.rlim_max);
  rlimit after{};
  getrlimit(RLIMIT_NOFILE, &after);
  EXPECT_EQ(after.rlim_cur, before.rlim_max);
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST(HttpServerLife, LeavesNoDescriptorsBehind) {
  const size_t before = open_descriptors();
  {
    HttpServer server(on_any_port(), answer);
    server.start();
    for (int i = 0; i < 50; ++i) {
      RawClient client(server.port());
      if (i % 2 == 0) client.ask(request_text("GET", "/"));
      if (i % 5 == 0) client.try_send("nonsense\r\n");
      if (i % 3 == 0) client.close_abruptly();
    }
    EXPECT_TRUE(comes_true([&] { return server.connections() == 0; }));
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(HttpServerLife, StoppingClosesIdleConnectionsAndLetsBusyOnesFinish) {
  std::atomic<bool> go{false}, busy{false};
  HttpServer server(on_any_port(), [&](Exchange& exchange) -> asio::awaitable<void> {
    if (exchange.request().path == "/busy") {
      co_await exchange.begin_events({});
      busy = true;
      asio::steady_timer timer(exchange.executor());
      while (!go) {
        timer.expires_after(std::chrono::milliseconds(1));
        co_await timer.async_wait(asio::use_awaitable);
      }
      co_await exchange.event("last");
      co_await exchange.end_events();
      co_return;
    }
    co_await answer(exchange);
  });
  server.start();
  RawClient idle(server.port()), working(server.port());
  EXPECT_EQ(idle.ask(request_text("GET", "/")).status, 200);
  working.send(request_text("GET", "/busy"));
  ASSERT_TRUE(comes_true([&] { return busy.load(); }));
  server.stop_accepting();
  EXPECT_TRUE(idle.closed_by_server());
  EXPECT_TRUE(comes_true([&] {
    try {
      RawClient late(server.port());
      return false;
    } catch (const std::runtime_error&) {
      return true;
    }
  }));
  go = true;
  working.read_head();
  EXPECT_EQ(working.read_event()->data, "last");
  EXPECT_FALSE(working.read_event());
  EXPECT_TRUE(working.closed_by_server());
  working.close();
  EXPECT_TRUE(comes_true([&] { return server.connections() == 0; }));
}

TEST(HttpServerLife, EndsWithClientsInEveryState) {
  for (int round = 0; round < 5; ++round) {
    std::atomic<int> begun{0}, gone{0}, ended{0};
    asio::thread_pool elsewhere(1);
    struct Count {
      std::atomic<int>& n;
      ~Count() { ++n; }
    };
    const auto handler = [&](Exchange& exchange) -> asio::awaitable<void> {
      const Count count{ended};
      exchange.on_gone([&gone] { ++gone; });
      ++begun;
      const std::string& path = exchange.request().path;
      if (path == "/wait") co_await wait_for_ever(exchange);
      if (path == "/elsewhere") {
        const auto work = []() -> asio::awaitable<int> {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          co_return 1;
        };
        // Without a way to cancel it: Asio's own would touch freed memory when the work ends meanwhile.
        co_await asio::co_spawn(elsewhere, work,
                                asio::bind_cancellation_slot(asio::cancellation_slot(), asio::use_awaitable));
      }
      if (path == "/stream") {
        co_await exchange.begin_events({});
        const std::string data(1000, 'x');
        for (;;) co_await exchange.event(data);
      }
    };
    std::optional<HttpServer> server(std::in_place, on_any_port(), handler);
    server->start();
    std::vector<RawClient> clients;
    for (const char* path : {"/wait", "/elsewhere", "/stream", "/wait", "/stream"}) {
      clients.emplace_back(server->port());
      clients.back().send(request_text("POST", path, "{}"));
    }
    RawClient fresh(server->port()), partial(server->port()), malformed(server->port());
    partial.send("POST / HTTP/1.1\r\n");
    malformed.send("nonsense\r\n");
    if (round > 0) {
      ASSERT_TRUE(comes_true([&] { return begun == 5; }));
    }
    server.reset();
    EXPECT_EQ(ended, begun);
    EXPECT_LE(gone, begun);
    if (round > 0) {
      EXPECT_GE(gone, 4);  // the one elsewhere may have been answered before
    }
    EXPECT_TRUE(fresh.closed_by_server());
  }
}

// A thread that did work for a handler lets go of the handler's executor a moment after the handler went on, when the
// server may have stopped already.
TEST(HttpServerLife, ClientsThatComeWhileItStopsAreLetGo) {
  for (int round = 0; round < 60; ++round) {
    std::atomic<int> balance{0};
    HttpObserver observer;
    observer.connections = [&balance](int change) { balance += change; };
    HttpOptions options = on_any_port();
    options.threads = 3;
    HttpServer server(options, answer, observer);
    server.start();
    std::atomic<bool> over{false};
    std::atomic<int> came{0};
    std::thread clients([&, port = server.port()] {
      while (!over) {
        try {
          RawClient client(port);
          client.try_send(request_text("GET", "/"));
          ++came;
        } catch (const std::runtime_error&) {
          break;  // nobody listens any more
        }
      }
    });
    EXPECT_TRUE(comes_true([&] { return came > round; }));
    server.stop();
    over = true;
    clients.join();
    EXPECT_EQ(server.connections(), 0) << "somebody was not told";
    EXPECT_EQ(balance, 0);
  }
}

TEST(HttpServerLife, ExecutorsOutliveStop) {
  std::optional<HttpServer> server(std::in_place, on_any_port(), answer);
  server->start();
  EXPECT_EQ(RawClient(server->port()).ask(request_text("GET", "/", "")).status, 200);
  auto kept = std::make_shared<int>(1);
  std::promise<void> stopped;
  std::thread late([executor = server->executor(), kept, done = stopped.get_future()]() mutable {
    done.wait();
    asio::post(executor, [kept = std::move(kept)] { ++*kept; });
  });
  server->stop();
  server->stop();  // again is nothing
  EXPECT_EQ(server->connections(), 0);
  stopped.set_value();
  late.join();
  EXPECT_EQ(kept.use_count(), 2) << "what comes late waits in the executor";
  server.reset();
  EXPECT_EQ(kept.use_count(), 1) << "and ends with it, without having run";
  EXPECT_EQ(*kept, 1);
}

TEST(HttpServerLife, EndsWithoutHavingStarted) {
  HttpServer server(on_any_port(), answer);
  RawClient client(server.port());
  EXPECT_GT(server.port(), 0);
}

}  // namespace
}  // namespace carpool
