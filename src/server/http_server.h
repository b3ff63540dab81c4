// The HTTP/1.1 side: sockets, limits, time-outs, sessions, and how they end.
//
// Owns HttpServer: 1-2 I/O threads, an acceptor that stops at the connection limit (a reserved descriptor still answers
// 503), sessions that read whole requests within limits (docs/server.md), hand them to a handler one at a time, and
// watch for clients that go away or stop reading. Framing errors end the connection (400/408/413/414/431/501). Knows no
// routes. Read next: http.h, router.h.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <functional>
#include <memory>
#include <string>

#include "server/http.h"

namespace carpool {

struct HttpLimits {
  size_t body = size_t{8} << 20;
  size_t header_line = 8 << 10, header_total = 32 << 10, header_count = 100, target = 8 << 10;
  size_t chunks = 65536;             // per body; and 64 bytes each on average after the first 100
  double header_s = 10, body_idle_s = 30, write_stall_s = 30, keep_alive_s = 60;
  int connections = 2048;
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;  // 0 = any free one
  int threads = 2;
  HttpLimits limits;
};

// For metrics and log, on I/O threads.
struct HttpObserver {
  std::function<void(int delta)> connections;
  std::function<void(int status, const char* code)> refused;  // before any handler ran
};

class HttpServer {
 public:
  using Handler = std::function<asio::awaitable<void>(Exchange&)>;

  // Binds. Error{kUnavailable} when the port is busy, kUsage for a host that is no address.
  HttpServer(const HttpOptions& options, Handler handler, HttpObserver observer = {});
  ~HttpServer();  // closes everything at once and joins

  int port() const;
  int connections() const;
  void start();
  // Stops accepting and closes idle connections; busy ones close after their response.
  void stop_accepting();
  asio::any_io_executor executor();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carpool
