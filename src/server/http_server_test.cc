// The server as clients see it: keep-alive, streams, clients that leave or stall, limits of time and number, the end.
// What is wrong with bytes of requests is http_framing_test.cc's.
#include "server/http_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <mutex>
#include <thread>

#include "server/api_error.h"
#include "server/http_client_test_util.h"

namespace carpool {
namespace {

asio::awaitable<void> echo(Exchange& exchange) {
  Response response;
  response.content_type = "text/plain";
  response.body = exchange.request().method + " " + exchange.request().path + " " + exchange.request().body;
  co_await exchange.respond(response);
}

HttpOptions on_any_port() {
  HttpOptions options;
  options.port = 0;
  return options;
}

// Waits on the executor until `flag` is true; the overall limit of the tests ends it otherwise.
asio::awaitable<void> until(Exchange& exchange, const std::atomic<bool>& flag) {
  asio::steady_timer timer(exchange.executor());
  while (!flag) {
    timer.expires_after(std::chrono::milliseconds(1));
    co_await timer.async_wait(asio::use_awaitable);
  }
}

// The same on the test's own thread; false after half a minute.
bool comes_true(const std::function<bool()>& condition) {
  for (int i = 0; i < 30000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

std::string error_code(const RawResponse& response) {
  return std::string(parse_json(response.body, "response").at("error").at("code").as_string());
}

// A handler that answers after its client went away, and counts who left.
struct Leaving {
  std::atomic<int> begun{0}, gone{0};
  asio::awaitable<void> operator()(Exchange& exchange) {
    std::atomic<bool> left{false};
    exchange.on_gone([this, &left] {
      ++gone;
      left = true;
    });
    ++begun;
    co_await until(exchange, left);
  }
};

TEST(HttpServer, AnswersAGetAndAPostOnOneConnection) {
  HttpServer server(on_any_port(), echo);
  server.start();
  RawClient client(server.port());
  const RawResponse first = client.ask(request_text("GET", "/a"));
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(first.body, "GET /a ");
  EXPECT_EQ(first.header("content-type"), "text/plain");
  EXPECT_FALSE(first.has("connection"));
  const RawResponse second = client.ask(request_text("POST", "/b", "{}"));
  EXPECT_EQ(second.body, "POST /b {}");
  EXPECT_EQ(first.header("x-request-id").size(), 20u);
  EXPECT_NE(first.header("x-request-id"), second.header("x-request-id"));
}

TEST(HttpServer, StreamsEventsAndKeepsTheConnection) {
  HttpServer server(on_any_port(), [](Exchange& exchange) -> asio::awaitable<void> {
    Headers headers;
    headers.emplace_back("x-carpool-routing", "topk");
    co_await exchange.begin_events(headers);
    co_await exchange.event("{\"a\":1}");
    co_await exchange.event("{}", "message_stop");
    co_await exchange.ping();
    co_await exchange.event("two\nlines");
    co_await exchange.end_events();
  });
  server.start();
  RawClient client(server.port());
  for (int i = 0; i < 2; ++i) {
    client.send(request_text("POST", "/", "{}"));
    const RawResponse head = client.read_head();
    EXPECT_EQ(head.status, 200);
    EXPECT_EQ(head.header("content-type"), "text/event-stream; charset=utf-8");
    EXPECT_EQ(head.header("cache-control"), "no-cache");
    EXPECT_EQ(head.header("x-accel-buffering"), "no");
    EXPECT_EQ(head.header("x-carpool-routing"), "topk");
    std::optional<RawEvent> event = client.read_event();
    ASSERT_TRUE(event);
    EXPECT_EQ(event->data, "{\"a\":1}");
    event = client.read_event();
    ASSERT_TRUE(event);
    EXPECT_EQ(event->name, "message_stop");
    event = client.read_event();
    ASSERT_TRUE(event);
    EXPECT_EQ(event->comment, " ping");
    event = client.read_event();
    ASSERT_TRUE(event);
    EXPECT_EQ(event->data, "two\nlines");
    EXPECT_FALSE(client.read_event());
  }
}

TEST(HttpServer, GivesHandlersTheWholeRequest) {
  HttpRequest seen;
  HttpServer server(on_any_port(), [&](Exchange& exchange) -> asio::awaitable<void> {
    seen = exchange.request();
    co_await echo(exchange);
  });
  server.start();
  RawClient client(server.port());
  const RawResponse response =
      client.ask(request_text("POST", "/p%41?q=%41", "{}", "X-Request-Id: mine\r\nX-REQUEST-ID: other\r\n"));
  EXPECT_EQ(seen.method, "POST");
  EXPECT_EQ(seen.path, "/pA");
  EXPECT_EQ(seen.query, "q=%41");
  EXPECT_EQ(seen.body, "{}");
  EXPECT_EQ(seen.header("host"), "127.0.0.1");
  EXPECT_EQ(seen.header("absent"), "");
  EXPECT_EQ(seen.client_id, "mine");
  EXPECT_EQ(seen.request_id, response.header("x-request-id"));
  EXPECT_GT(seen.received, 0);
  client.ask(request_text("GET", "/", "", "X-Request-Id: a b\r\n"));
  EXPECT_EQ(seen.client_id, "");  // not printable throughout
}

TEST(HttpServer, AnswersHeadWithoutTheBody) {
  HttpServer server(on_any_port(), echo);
  server.start();
  RawClient client(server.port());
  const RawResponse head = client.ask(request_text("HEAD", "/a"));
  EXPECT_EQ(head.header("content-length"), "8");
  EXPECT_EQ(client.ask(request_text("GET", "/a")).body, "GET /a ");
}

TEST(HttpServer, InvitesABodyThatIsAnnounced) {
  HttpOptions options = on_any_port();
  options.limits.body = 100;
  HttpServer server(options, echo);
  server.start();
  RawClient client(server.port());
  client.send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.read_head().status, 100);
  client.send("{}");
  EXPECT_EQ(client.read_response().body, "POST / {}");
  // A body that is there already needs no invitation, and one that is too large gets none.
  client.send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}");
  EXPECT_EQ(client.read_response().body, "POST / {}");
  client.send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 101\r\n\r\n");
  EXPECT_EQ(client.read_response().status, 413);
}

TEST(HttpServer, ClosesWhenTheClientAsksForIt) {
  HttpServer server(on_any_port(), echo);
  server.start();
  for (const char* request :
       {"GET / HTTP/1.1\r\nHost: a\r\nConnection: foo, Close\r\n\r\n", "GET / HTTP/1.0\r\n\r\n"}) {
    RawClient client(server.port());
    client.send(request);
    const RawResponse response = client.read_response();
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.header("connection"), "close");
    EXPECT_TRUE(client.closed_by_server());
  }
}

TEST(HttpServer, StreamsToHttp10WithoutChunks) {
  HttpServer server(on_any_port(), [](Exchange& exchange) -> asio::awaitable<void> {
    co_await exchange.begin_events({});
    co_await exchange.event("1");
    co_await exchange.end_events();
  });
  server.start();
  RawClient client(server.port());
  client.send("GET / HTTP/1.0\r\n\r\n");
  EXPECT_FALSE(client.read_head().has("transfer-encoding"));
  EXPECT_EQ(client.read_to_end(), "data: 1\n\n");
}

TEST(HttpServer, TurnsExceptionsOfHandlersIntoAnswers) {
  HttpServer server(on_any_port(), [](Exchange& exchange) -> asio::awaitable<void> {
    const std::string& path = exchange.request().path;
    if (path == "/api") throw unavailable("overloaded", "too much", 7);
    if (path == "/bug") throw std::runtime_error("secret");
    if (path == "/odd") {
      Response response;
      response.headers.emplace_back("x-odd", "a\r\nevil: 1");
      co_await exchange.respond(response);
    }
  });
  server.start();
  RawClient client(server.port());
  RawResponse response = client.ask(request_text("GET", "/api"));
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.header("retry-after"), "7");
  EXPECT_EQ(error_code(response), "overloaded");
  response = client.ask(request_text("GET", "/bug"));
  EXPECT_EQ(response.status, 500);
  EXPECT_EQ(error_code(response), "internal_error");
  EXPECT_EQ(response.body.find("secret"), std::string::npos);
  EXPECT_EQ(client.ask(request_text("GET", "/nothing")).status, 500);
  response = client.ask(request_text("GET", "/odd"));
  EXPECT_EQ(response.header("x-odd"), "a  evil: 1");
  EXPECT_FALSE(response.has("evil"));
}

TEST(HttpServer, CutsAStreamWhoseHandlerFailed) {
  HttpServer server(on_any_port(), [](Exchange& exchange) -> asio::awaitable<void> {
    co_await exchange.begin_events({});
    co_await exchange.event("1");
    throw std::runtime_error("late");
  });
  server.start();
  RawClient client(server.port());
  client.send(request_text("POST", "/", "{}"));
  client.read_head();
  EXPECT_EQ(client.read_event()->data, "1");
  EXPECT_THROW(client.read_event(), std::runtime_error);
}

TEST(HttpServer, KeepsPipelinedRequestsWhileAHandlerRuns) {
  std::atomic<bool> go{false};
  HttpServer server(on_any_port(), [&](Exchange& exchange) -> asio::awaitable<void> {
    if (exchange.request().path == "/slow") co_await until(exchange, go);
    co_await echo(exchange);
  });
  server.start();
  RawClient client(server.port());
  client.send(request_text("GET", "/slow"));
  const std::string large(100000, 'x');  // more than is read ahead
  client.send(request_text("GET", "/next") + request_text("POST", "/large", large));
  RawClient other(server.port());
  EXPECT_EQ(other.ask(request_text("GET", "/other")).body, "GET /other ");
  go = true;
  EXPECT_EQ(client.read_response().body, "GET /slow ");
  EXPECT_EQ(client.read_response().body, "GET /next ");
  EXPECT_EQ(client.read_response().body, "POST /large " + large);
}

TEST(HttpServer, SeesClientsLeaveWhileAHandlerRuns) {
  Leaving leaving;
  HttpServer server(on_any_port(), std::ref(leaving));
  server.start();
  int clients = 0;
  // Also behind more bytes than are read ahead. (Behind more than the kernel takes, their end could not be seen.)
  for (const std::string& more : {std::string(), std::string("GET /next"), std::string(40000, 'x')}) {
    for (int way = 0; way < 3; ++way) {
      RawClient client(server.port());
      client.send(request_text("POST", "/", "{}") + more);
      ++clients;
      ASSERT_TRUE(comes_true([&] { return leaving.begun == clients; }));
      if (way == 0) client.close();
      if (way == 1) client.close_abruptly();
      if (way == 2) client.half_close();
      EXPECT_TRUE(comes_true([&] { return leaving.gone == clients; })) << more.size() << " " << way;
    }
  }
  EXPECT_TRUE(comes_true([&] { return server.connections() == 0; }));
}

TEST(HttpServer, TellsHandlersAtOnceThatTheClientLeftBefore) {
  std::atomic<bool> go{false}, begun{false}, told{false};
  HttpServer server(on_any_port(), [&](Exchange& exchange) -> asio::awaitable<void> {
    begun = true;
    co_await until(exchange, go);
    exchange.on_gone([&] { told = true; });
  });
  server.start();
  {
    RawClient client(server.port());
    client.send(request_text("GET", "/"));
    ASSERT_TRUE(comes_true([&] { return begun.load(); }));
  }
  RawClient(server.port()).close();
  std::this_thread::sleep_for(
      std::chrono::milliseconds(50));  // so that the end of the first is seen; either way is right
  go = true;
  EXPECT_TRUE(comes_true([&] { return told.load(); }));
}

TEST(HttpServer, EndsStreamsOfClientsThatLeft) {
  std::atomic<int> begun{0}, gone{0};
  HttpServer server(on_any_port(), [&](Exchange& exchange) -> asio::awaitable<void> {
    ++begun;
    asio::steady_timer timer(exchange.executor());
    try {
      co_await exchange.begin_events({});
      for (;;) {
        co_await exchange.event("x");
        timer.expires_after(std::chrono::milliseconds(1));
        co_await timer.async_wait(asio::use_awaitable);
      }
    } catch (const ClientGone&) {
      ++gone;
      throw;
    }
  });
  server.start();
  for (int i = 1; i <= 8; ++i) {
    RawClient client(server.port());
    client.send(request_text("POST", "/", "{}"));
    client.read_head();
    for (int events = 0; events < i; ++events) ASSERT_TRUE(client.read_event());
    if (i % 3 == 0) client.close_abruptly();
    if (i % 3 == 1) client.close();
    if (i % 3 == 2) client.half_close();
    EXPECT_TRUE(comes_true([&] { return gone == i; }));
  }
  EXPECT_TRUE(comes_true([&] { return server.connections() == 0; }));
}

TEST(HttpServer, GivesUpOnClientsThatDoNotRead) {
  HttpOptions options = on_any_port();
  options.limits.write_stall_s = 0.3;
  std::atomic<int> gone{0};
  HttpServer server(options, [&](Exchange& exchange) -> asio::awaitable<void> {
    if (exchange.request().path == "/other") {
      co_await echo(exchange);
      co_return;
    }
    try {
      if (exchange.request().path == "/whole") {
        Response response;
        response.body.assign(50 << 20, 'x');
        co_await exchange.respond(std::move(response));
      } else {
        co_await exchange.begin_events({});
        const std::string data(10000, 'x');
        for (;;) co_await exchange.event(data);
      }
    } catch (const ClientGone&) {
      ++gone;
      throw;
    }
  });
  server.start();
  RawClient stream(server.port(), 60, 4096), whole(server.port(), 60, 4096), other(server.port());
  stream.send(request_text("POST", "/stream", "{}"));
  whole.send(request_text("POST", "/whole", "{}"));
  while (gone < 2) EXPECT_EQ(other.ask(request_text("GET", "/other")).status, 200);
  EXPECT_TRUE(comes_true([&] { return server.connections() == 1; }));
}

TEST(HttpServer, SendsAllToAClientThatReadsSlowly) {
  HttpServer server(on_any_port(), [](Exchange& exchange) -> asio::awaitable<void> {
    co_await exchange.begin_events({});
    for (int i = 0; i < 500; ++i) co_await exchange.event(std::to_string(i) + std::string(10000, 'x'));
    co_await exchange.end_events();
  });
  server.start();
  RawClient client(server.port(), 60, 64 << 10);
  client.send(request_text("POST", "/", "{}"));
  client.read_head();
  for (int i = 0; i < 500; ++i) {
    if (i % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ASSERT_EQ(client.read_event()->data, std::to_string(i) + std::string(10000, 'x'));
  }
  EXPECT_FALSE(client.read_event());
}

TEST(HttpServer, RefusesRequestsThatDoNotArriveInTime) {
  HttpOptions options = on_any_port();
  options.limits.header_s = options.limits.body_idle_s = 2;  // who sends nothing by then is closed without a word
  HttpServer server(options, echo);
  server.start();
  const std::string whole = request_text("POST", "/", std::string(2000, 'x'));
  std::vector<RawClient> clients;
  for (const size_t part : {size_t{1}, size_t{30}, whole.size() - 2000, whole.size() - 1}) {
    clients.emplace_back(server.port());
    clients.back().send(whole.substr(0, part));
  }
  for (RawClient& client : clients) {
    const RawResponse response = client.read_response();
    EXPECT_EQ(response.status, 408);
    EXPECT_EQ(error_code(response), "request_timeout");
  }
  // Bytes that come too slowly are no better than none: of a head ...
  RawClient slow_head(server.port());
  slow_head.send("GET /");
  while (!slow_head.readable_within(20)) slow_head.send("x");
  EXPECT_EQ(slow_head.read_response().status, 408);
  // ... and of a body, though never idle for long.
  RawClient slow_body(server.port());
  slow_body.send(request_text("POST", "/", "", "Content-Length: 1000000\r\n"));
  while (!slow_body.readable_within(20)) slow_body.send("x");
  EXPECT_EQ(slow_body.read_response().status, 408);
}

TEST(HttpServer, TakesBodiesThatAreLongButNotSlow) {
  HttpOptions options = on_any_port();
  options.limits.body_idle_s = 5;
  HttpServer server(options, echo);
  server.start();
  RawClient client(server.port());
  client.send(request_text("POST", "/", "", "Content-Length: 40000\r\n"));
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 40; ++i) {
    client.send(std::string(1000, 'x'));
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
  }
  EXPECT_GT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5)) << "longer than it may be idle";
  EXPECT_EQ(client.read_response().status, 200);
}

TEST(HttpServer, ClosesConnectionsThatStayIdle) {
  HttpOptions options = on_any_port(), others = on_any_port();
  options.limits.header_s = 0.2;  // of the first request
  HttpServer server(options, echo);
  server.start();
  RawClient never(server.port());
  EXPECT_TRUE(never.closed_by_server());
  others.limits.keep_alive_s = 0.2;  // of the next
  HttpServer other(others, echo);
  other.start();
  RawClient once(other.port());
  EXPECT_EQ(once.ask(request_text("GET", "/")).status, 200);
  EXPECT_TRUE(once.closed_by_server());
  EXPECT_TRUE(comes_true([&] { return server.connections() + other.connections() == 0; }));
}

TEST(HttpServer, BoundsTheBytesOfAllBodiesTogether) {
  HttpOptions options = on_any_port();
  options.limits.bodies = 50000;
  std::atomic<bool> go{false};
  std::atomic<int> begun{0};
  HttpServer server(options, [&](Exchange& exchange) -> asio::awaitable<void> {
    ++begun;
    co_await until(exchange, go);
    co_await echo(exchange);
  });
  server.start();
  const std::string request = request_text("POST", "/", std::string(20000, 'x'));
  RawClient first(server.port()), second(server.port()), third(server.port());
  first.send(request);
  second.send(request);
  ASSERT_TRUE(comes_true([&] { return begun == 2; }));
  const RawResponse refused = third.ask(request);
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.header("retry-after"), "1");
  go = true;
  EXPECT_EQ(first.read_response().status, 200);
  EXPECT_EQ(second.read_response().status, 200);
  // What was held is free again, a moment after its answer has arrived.
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(comes_true([&] { return RawClient(server.port()).ask(request).status == 200; }));
  }
}

TEST(HttpServer, ServesManyStreamsAtOnce) {
  HttpServer server(on_any_port(), [](Exchange& exchange) -> asio::awaitable<void> {
    asio::steady_timer timer(exchange.executor());
    co_await exchange.begin_events({});
    for (int i = 0; i < 20; ++i) {
      co_await exchange.event(exchange.request().path + " " + std::to_string(i));
      if (i % 3 != 0) continue;
      timer.expires_after(std::chrono::milliseconds(1));
      co_await timer.async_wait(asio::use_awaitable);
    }
    co_await exchange.end_events();
  });
  server.start();
  std::vector<RawClient> clients;
  for (int i = 0; i < 200; ++i) {
    clients.emplace_back(server.port(), 60);
    clients.back().send(request_text("POST", "/" + std::to_string(i), "{}"));
  }
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(clients[static_cast<size_t>(i)].read_head().status, 200);
    for (int event = 0; event < 20; ++event)
      ASSERT_EQ(clients[static_cast<size_t>(i)].read_event()->data,
                "/" + std::to_string(i) + " " + std::to_string(event));
    EXPECT_FALSE(clients[static_cast<size_t>(i)].read_event());
  }
}

}  // namespace
}  // namespace carpool
