// The way of a request: host and origin, route, key, handler, errors, log line. See router.h.
#include "server/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/system/system_error.hpp>
#include <new>
#include <optional>
#include <stdexcept>

#include "base/error.h"
#include "base/time.h"
#include "server/api_error.h"

namespace carpool {

#define ROUTE(method, path, access, handler) boost::asio::awaitable<void> handler(Call& call);
#include "server/routes.def"
#undef ROUTE

namespace {

constexpr int kGone = 499;  // in log and metrics: the client left before its answer was complete
constexpr size_t kLoggedPath = 120;
constexpr const char* kCorsHeaders = "authorization, content-type, x-api-key, x-request-id, anthropic-version";

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return out;
}

bool matches(const Route& route, std::string_view path) {
  const std::string_view pattern = route.path;
  if (!pattern.ends_with("/*")) return pattern == path;
  const std::string_view stem = pattern.substr(0, pattern.size() - 1);
  return path.size() > stem.size() && path.starts_with(stem);
}

// "HOST:PORT" or "[V6]:PORT" without its port, in lower case.
std::string host_of(std::string_view host) {
  const size_t end = host.starts_with('[') ? host.find(']') : std::string_view::npos;
  if (end != std::string_view::npos) return lower(host.substr(0, end + 1));
  return lower(host.substr(0, host.find(':')));
}

[[noreturn]] void forbid(const std::string& message) {
  throw ApiError(403, "permission_error", "origin_not_allowed", message);
}

// A page of another site must reach neither a server on this machine (Origin) nor, by a name that was made to point
// here, a server that trusts its own address (Host). Returns the Origin that the answer may be shown to; "" = none.
std::string check_origin(const HttpRequest& request, const ServiceOptions& options) {
  const std::string_view host = request.header("host");
  if (!options.hosts.empty() && !host.empty()) {
    const auto same = [&](const std::string& allowed) { return host_of(host) == lower(allowed); };
    if (std::none_of(options.hosts.begin(), options.hosts.end(), same)) {
      forbid("the Host header names another machine; --allowed-host adds names");
    }
  }
  const std::string origin(request.header("origin"));
  if (origin.empty()) return "";
  for (const std::string& allowed : options.cors_origins) {
    if (allowed == "*" || lower(allowed) == lower(origin)) return origin;
  }
  const size_t scheme = origin.find("://");
  if (scheme != std::string::npos && lower(origin.substr(scheme + 3)) == lower(host)) return "";  // our own page
  forbid("pages of this origin may not call the server; --cors-origin allows them");
}

// A picture or a link in a page of another site brings no Origin, but browsers say where it is.
void check_site(const HttpRequest& request) {
  const std::string_view site = request.header("sec-fetch-site");
  if (!request.header("origin").empty() || (site != "cross-site" && site != "same-site")) return;
  forbid("pages of other sites may not call the server");
}

// An exchange that remembers its status and adds the headers every answer has.
class Recorder final : public Exchange {
 public:
  explicit Recorder(Exchange& inner) : inner_(inner) {}

  int status = 0;
  std::string cors_origin;

  const HttpRequest& request() const override { return inner_.request(); }
  asio::any_io_executor executor() const override { return inner_.executor(); }
  asio::awaitable<void> respond(Response response) override {
    status = response.status;
    add_headers(response.headers);
    return inner_.respond(std::move(response));
  }
  asio::awaitable<void> begin_events(Headers headers) override {
    status = 200;
    add_headers(headers);
    return inner_.begin_events(std::move(headers));
  }
  asio::awaitable<void> event(std::string_view data, std::string_view name) override {
    return inner_.event(data, name);
  }
  asio::awaitable<void> ping() override { return inner_.ping(); }
  asio::awaitable<void> end_events() override { return inner_.end_events(); }
  bool begun() const override { return inner_.begun(); }
  void on_gone(std::function<void()> callback) override { inner_.on_gone(std::move(callback)); }

 private:
  void add_headers(Headers& headers) const {
    if (cors_origin.empty()) return;
    headers.emplace_back("access-control-allow-origin", cors_origin);
    headers.emplace_back("access-control-expose-headers", "x-request-id, x-carpool-routing, retry-after");
    headers.emplace_back("vary", "Origin");
  }
  Exchange& inner_;
};

// Methods of a path, "GET, HEAD, POST"; empty for an unknown path.
std::string methods_of(std::string_view path) {
  std::vector<std::string> methods;
  for (const Route& route : routes()) {
    if (matches(route, path)) methods.emplace_back(route.method);
  }
  if (methods.empty()) return "";
  if (std::find(methods.begin(), methods.end(), "GET") != methods.end()) methods.emplace_back("HEAD");
  methods.emplace_back("OPTIONS");
  std::string text;
  for (const std::string& m : methods) text += (text.empty() ? "" : ", ") + m;
  return text;
}

// The route of a method and path; null when the path is unknown, or has other methods only.
const Route* find_route(std::string_view method, std::string_view path) {
  const std::string_view wanted = method == "HEAD" ? "GET" : method;  // the session leaves the body out
  for (const Route& route : routes()) {
    if (wanted == route.method && matches(route, path)) return &route;
  }
  return nullptr;
}

Caller admit(const Service& service, const HttpRequest& request, Access access) {
  switch (access) {
    case Access::kOpen:
      return {};
    case Access::kKey:
      return service.authenticate(request, false);
    case Access::kOperator:
      return service.authenticate(request, !service.options().keys.empty());
    case Access::kAdmin:
      break;
  }
  return service.authenticate(request, true);
}

// What an exception says to the client. What is our fault goes to the log in full and to him in general.
ApiError error_of(const std::exception_ptr& exception, Log& log, const std::string& id) {
  const auto internal = [&](const char* what) {
    log.error("a request failed inside", {{"id", id}, {"error", what}});
    return ApiError(500, "server_error", "internal_error", "the server failed on this request; its log says why");
  };
  try {
    std::rethrow_exception(exception);
  } catch (const ApiError& e) {
    return e;
  } catch (const RequestError& e) {
    return from(e);
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::kUsage) return bad_request("invalid_value", e.what());
    return internal(e.what());
  } catch (const std::bad_alloc&) {
    return internal("out of memory");
  } catch (const std::exception& e) {
    return internal(e.what());
  } catch (...) {
    return internal("an unknown exception");
  }
}

// Anthropic's clients look for a type beside the error, and for an event of that name.
bool speaks_messages(const HttpRequest& request) { return request.path.starts_with("/v1/messages"); }

asio::awaitable<void> send_error(Exchange& exchange, const ApiError& error, const std::string& allow) {
  json::object body = error.body();
  const bool messages = speaks_messages(exchange.request());
  if (messages) body["type"] = "error";
  if (exchange.begun()) {
    const std::string data = json::serialize(body);
    co_await exchange.event(data, messages ? "error" : "");
    co_await exchange.end_events();
    co_return;
  }
  Response response = json_response(body, error.status());
  if (error.retry_after() > 0) response.headers.emplace_back("retry-after", std::to_string(error.retry_after()));
  if (!allow.empty()) response.headers.emplace_back("allow", allow);
  if (error.status() == 401) response.headers.emplace_back("www-authenticate", "Bearer");
  co_await exchange.respond(std::move(response));
}

asio::awaitable<void> answer_options(Recorder& exchange, const std::string& allow) {
  Response response = json_response(json::object{});
  response.headers.emplace_back("allow", allow);
  if (!exchange.cors_origin.empty()) {
    response.headers.emplace_back("access-control-allow-methods", allow);
    response.headers.emplace_back("access-control-allow-headers", kCorsHeaders);
    response.headers.emplace_back("access-control-max-age", "600");
  }
  co_await exchange.respond(std::move(response));
}

// Everything between the request and its answer; throws what went wrong. `route` and `allow` are for the log and for
// the error.
asio::awaitable<void> dispatch(Call& call, Recorder& recorder, const Route*& route, std::string& allow) {
  const HttpRequest& request = call.exchange.request();
  recorder.cors_origin = check_origin(request, call.service.options());
  route = find_route(request.method, request.path);
  if (!route || route->access != Access::kOpen) check_site(request);
  const std::string methods = methods_of(request.path);
  if (request.method == "OPTIONS" && !methods.empty()) co_return co_await answer_options(recorder, methods);
  // A path that is unknown is no business of those without a key either.
  call.caller = admit(call.service, request, route ? route->access : Access::kKey);
  if (!route && !methods.empty()) {
    allow = methods;
    throw ApiError(405, "invalid_request_error", "method_not_allowed", fmt::format("this path takes {}", methods));
  }
  if (!route) {
    throw not_found("route_not_found", fmt::format("there is no {}", escape(request.path, kLoggedPath)));
  }
  co_await route->handler(call);
  if (!recorder.begun()) throw std::logic_error("a handler left its request without an answer");
}

void log_request(const Call& call, const Route* route, int status, double seconds) {
  const HttpRequest& request = call.exchange.request();
  // Probes and scrapes come every few seconds; they are no news.
  const bool quiet = status < 400 && request.method == "GET";
  const auto count = [](int n) { return n < 0 ? json::value(nullptr) : json::value(n); };
  call.service.log().write(quiet ? LogLevel::kDebug : LogLevel::kInfo, "request",
                           {{"id", request.request_id},
                            {"client_id", request.client_id},
                            {"method", escape(request.method, 16)},
                            {"path", route ? std::string(route->path) : escape(request.path, kLoggedPath)},
                            {"status", status},
                            {"ms", static_cast<int64_t>(seconds * 1e3)},
                            {"tenant", call.caller.tenant},
                            {"prompt_tokens", count(call.prompt_tokens)},
                            {"completion_tokens", count(call.completion_tokens)},
                            {"cached_tokens", count(call.cached_tokens)},
                            {"prefix", call.prefix},
                            {"routing", call.routing}});
}

}  // namespace

const std::vector<Route>& routes() {
  static const std::vector<Route> table = {
#define ROUTE(method, path, access, handler) {method, path, Access::access, handler},
#include "server/routes.def"
#undef ROUTE
  };
  return table;
}

asio::awaitable<void> answer(Exchange& exchange, Service& service) {
  const double start = exchange.request().received > 0 ? exchange.request().received : now_seconds();
  Recorder recorder(exchange);
  Call call{recorder, service, {}, "", -1, -1, -1, "", std::make_shared<std::atomic<bool>>(false), {}};
  const Route* route = nullptr;
  std::string allow;
  std::exception_ptr failure;
  bool gone = false;
  try {
    co_await dispatch(call, recorder, route, allow);
  } catch (const ClientGone&) {
    gone = true;
  } catch (...) {
    failure = std::current_exception();
  }
  if (failure) {
    const ApiError error = error_of(failure, service.log(), exchange.request().request_id);
    if (error.status() == 429 || error.status() == 503) service.metrics().refused(error.code().c_str());
    try {
      co_await send_error(recorder, error, allow);
    } catch (const ClientGone&) {
      gone = true;
    }
  }
  const int status = gone ? kGone : recorder.status;
  service.metrics().http(route ? route->path : "other", status);
  log_request(call, route, status, now_seconds() - start);
  if (gone) throw ClientGone{};
}

}  // namespace carpool
