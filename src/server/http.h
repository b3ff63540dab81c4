// One HTTP exchange as a handler sees it: a request that is whole and within limits, and ways to answer.
//
// Owns HttpRequest, Response and the interface Exchange. Knows neither routes nor the engine; Beast stays in
// http_server.cc. Read next: http_server.h (limits, sessions), router.h (which handler answers what).
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace carpool {

namespace asio = boost::asio;

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // without query, percent-decoded once
  std::string query;   // after '?', raw
  Headers headers;     // names in lower case, in order
  std::string body;
  std::string request_id;  // ours; also the client's X-Request-Id when it is printable and short is kept in client_id
  std::string client_id;
  double received = 0;  // now_seconds() when the last byte of it was there

  std::string_view header(std::string_view lower_case_name) const;  // "" when absent
};

struct Response {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  Headers headers;
};
Response json_response(const json::value& value, int status = 200);

// The client closed its end or stopped reading for too long: nothing more can be written. Thrown by the writing calls;
// handlers let it pass.
struct ClientGone {};

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;
  virtual asio::any_io_executor executor() const = 0;

  // The whole answer; once.
  virtual asio::awaitable<void> respond(Response response) = 0;

  // Or a stream of server-sent events (200, text/event-stream, chunked, no buffering by proxies).
  virtual asio::awaitable<void> begin_events(Headers headers) = 0;
  // "event: NAME\ndata: DATA\n\n" (no event line when `name` is empty). Returns when the socket took it. `data` has no
  // line breaks.
  virtual asio::awaitable<void> event(std::string_view data, std::string_view name = "") = 0;
  // A comment line, so that proxies keep the connection open.
  virtual asio::awaitable<void> ping() = 0;
  virtual asio::awaitable<void> end_events() = 0;
  virtual bool begun() const = 0;  // respond or begin_events was called

  // Called once, on executor(), as soon as the client is seen to be gone while the handler runs (also when nothing is
  // being written). Immediately when it already is.
  virtual void on_gone(std::function<void()> callback) = 0;
};

}  // namespace carpool
