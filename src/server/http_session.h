// The requests of one connection, one after the other, and the answers to them.
//
// Owns Session (read a request within the time limits, run the handler, answer, again; refuse what is malformed and
// close so that the refusal arrives) and SessionShared, what all sessions of a server have in common. Bytes are
// http_connection.h's, framing of requests is http_parser.h's. Read next: http_server.cc, which makes sessions.
#pragma once

#include <atomic>
#include <boost/asio/cancellation_signal.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "server/api_error.h"
#include "server/http_connection.h"
#include "server/http_server.h"

namespace carpool {

struct SessionShared {
  HttpLimits limits;
  HttpServer::Handler handler;
  HttpObserver observer;
  std::atomic<bool> stopping{false};  // sessions end after their response
  std::atomic<bool> aborting{false};  // sessions end now
  std::atomic<size_t> body_bytes{0};  // of all requests that arrive or are answered

  std::string new_request_id();
  void refused(const ApiError& error) const;

 private:
  const uint64_t start_ = random_start();
  std::atomic<uint64_t> requests_{0};
  static uint64_t random_start();
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(asio::ip::tcp::socket socket, SessionShared& shared);

  asio::any_io_executor executor() { return connection_->executor(); }
  // Serves the connection until it ends. With `refusal`, says that at once and ends.
  asio::awaitable<void> run(const ApiError* refusal = nullptr);

  // From any thread. Since when no request is under way, in nanoseconds of the steady clock; 0 = one is, or this was
  // asked to give way.
  int64_t idle_since() const { return idle_since_.load(std::memory_order_relaxed); }
  bool give_way();  // closes it if it is idle; false when that was asked before or a request is under way
  void close_if_idle();
  // Ends it now: the client counts as gone, and whatever the handler waits for is cancelled.
  void abort();

  asio::cancellation_slot cancellation_slot() { return cancellation_.slot(); }

 private:
  asio::awaitable<bool> serve_one();
  class BodyShare;
  asio::awaitable<bool> read_request(RequestParser& parser, BodyShare& share);
  asio::awaitable<bool> handle(RequestParser& parser);
  asio::awaitable<void> refuse(ApiError error, bool head_only);
  asio::awaitable<void> linger();
  void now_idle(bool idle);

  const std::shared_ptr<Connection> connection_;
  SessionShared& shared_;
  asio::cancellation_signal cancellation_;
  bool first_ = true, idle_ = true;
  std::atomic<int64_t> idle_since_{0};
};

// An error answer as bytes, for those who write without a session; the connection is to be closed behind it.
std::string refusal_text(const ApiError& error, const std::string& request_id, bool head_only = false);

}  // namespace carpool
