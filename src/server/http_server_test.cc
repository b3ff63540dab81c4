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

}  // namespace
}  // namespace carpool
