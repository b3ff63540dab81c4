// An HTTP client that keeps thousands of requests under way on one thread, and notes when every piece of a reply came.
//
// Owns ServerUrl, LoadClient (Beast and Asio coroutines; Beast stays in load_client.cc), the closed loop (at most so
// many requests at once) and the open loop (Poisson arrivals). Every request opens a connection of its own, as
// bench_serving does: its times include the handshake, and no request waits for another one's connection. No request is
// repeated and none is dropped: what fails is an outcome, too. No TLS. Read next: load_backend.h, load_server.h.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "measure/load_backend.h"
#include "measure/load_metrics.h"

namespace carpool {

// More connections at once are never opened.
inline constexpr int kMostConnections = 4096;

struct ServerUrl {
  std::string host, port;  // "127.0.0.1", "8080"
  std::string prefix;      // of paths, without a slash at its end
  std::string text() const;
};

// "http://HOST:PORT/PREFIX", "HOST:PORT", "http://[::1]:8080"; without a port 80, as URLs say. Error{kUsage}; https is
// refused.
ServerUrl parse_url(std::string_view text);

using LoadHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpAnswer {
  int status = 0;  // 0: none came
  std::string body;
  std::string failure, message;  // why none came, or not a whole one
  bool ok() const { return failure.empty() && status >= 200 && status < 300; }
};

struct LoadPlan {
  std::vector<LoadRequest> requests;
  LoadBackend backend = LoadBackend::kNative;
  double request_rate = std::numeric_limits<double>::infinity();  // per second
  int max_concurrency = 0;                                        // 0 = kMostConnections
  uint64_t seed = 42;                                             // of the arrivals
  std::function<void(int done, int total)> progress;              // after every request
};

struct LoadRun {
  std::vector<LoadOutcome> outcomes;  // as the requests of the plan
  double duration = 0;                // s, first dispatch to last reply
  int most_open = 0;                  // connections at once
  bool limited = false;               // an open loop met kMostConnections: it was no open loop any more
};

class LoadClient {
 public:
  // `headers` go with every request. A request that takes longer than `timeout_s` (> 0) in all is given up.
  // Error{kUnavailable} when the host's name has no address.
  LoadClient(ServerUrl url, LoadHeaders headers, double timeout_s);
  ~LoadClient();

  const ServerUrl& url() const;
  // One call; waits for it. `timeout_s` 0 = the client's. `bearer` replaces the client's authorization.
  HttpAnswer call(const std::string& method, const std::string& path, const std::string& body = "",
                  double timeout_s = 0, const std::string& bearer = "");
  // POSTs many bodies, 16 at a time; the answers in their order.
  std::vector<HttpAnswer> post_all(const std::string& path, const std::vector<std::string>& bodies);
  LoadRun run(const LoadPlan& plan);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carpool
