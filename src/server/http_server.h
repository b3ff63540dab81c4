// The HTTP/1.1 side: sockets, limits, time-outs, sessions, and how they end.
//
// Owns HttpServer: 1-2 I/O threads, an acceptor that goes on answering at the connection limit (503, and a reserved
// descriptor when there are no others), sessions that read whole requests within limits (docs/server.md), hand them to
// a handler one at a time, and watch for clients that go away or stop reading. Framing errors end the connection
// (400/408/413/414/417/431/501/505). Knows no routes. Read next: http.h, http_parser.h, http_session.h, router.h.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <functional>
#include <memory>
#include <string>

#include "server/http.h"
#include "server/http_parser.h"

namespace carpool {

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
  // Runs on the exchange's executor, which runs one piece of a connection's work at a time. ClientGone ends the
  // connection; other exceptions become an answer if none has begun (ApiError its own, else 500).
  using Handler = std::function<asio::awaitable<void>(Exchange&)>;

  // Binds; clients that connect wait for start(). Error{kUnavailable} when the port is busy, kUsage for a host that is
  // no address ("localhost" is 127.0.0.1).
  HttpServer(const HttpOptions& options, Handler handler, HttpObserver observer = {});
  ~HttpServer();  // stop()

  int port() const;
  int connections() const;
  void start();  // once
  // Stops accepting and closes idle connections; busy ones close after their response.
  void stop_accepting();
  // Closes everything at once and joins. Handlers see their client gone, and whatever they wait for is cancelled. The
  // executors live on until the destructor: threads on which handlers had work done (Service::offload) are to be joined
  // between the two, because what they finish comes back to an executor. Not on an I/O thread.
  void stop();
  asio::any_io_executor executor();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Lets this process have as many descriptors as the operating system allows it; returns how many.
size_t raise_descriptor_limit();

}  // namespace carpool
