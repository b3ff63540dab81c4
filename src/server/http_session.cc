// Read first: http_session.h. One coroutine per connection; SessionExchange is what a handler sees of it.
#include "server/http_session.h"

#include <boost/asio/post.hpp>
#include <boost/beast/http/status.hpp>
#include <cstdio>
#include <ctime>
#include <optional>
#include <random>

#include "base/time.h"

namespace carpool {
namespace {

using Clock = Connection::Clock;

constexpr std::chrono::seconds kLinger{2};
constexpr size_t kLingerBytes = 32 << 10;  // read and dropped behind a final response
constexpr double kMinBytesPerSecond = 1024;

std::string http_date() {
  char text[40];
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  return std::string(text, std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts));
}

// Whatever a value holds, it stays one line.
void append_header(std::string& head, std::string_view name, std::string_view value) {
  head.append(name).append(": ");
  for (const char c : value) {
    const unsigned char byte = static_cast<unsigned char>(c);
    head += byte == '\t' || (byte >= 0x20 && byte != 0x7f) ? c : ' ';
  }
  head += "\r\n";
}

std::string head_begin(int status, const std::string& request_id) {
  std::string head = "HTTP/1.1 " + std::to_string(status) + ' ';
  const auto reason = boost::beast::http::obsolete_reason(static_cast<boost::beast::http::status>(status));
  head.append(reason.data(), reason.size()).append("\r\n");
  append_header(head, "date", http_date());
  append_header(head, "x-request-id", request_id);
  return head;
}

std::string whole_response(const Response& response, const std::string& request_id, bool close, bool head_only) {
  std::string text = head_begin(response.status, request_id);
  append_header(text, "content-type", response.content_type);
  if (response.status != 204) append_header(text, "content-length", std::to_string(response.body.size()));
  for (const auto& [name, value] : response.headers) append_header(text, name, value);
  if (close) append_header(text, "connection", "close");
  text += "\r\n";
  if (!head_only && response.status != 204) text += response.body;
  return text;
}

Response error_response(const ApiError& error) {
  Response response = json_response(error.body(), error.status());
  if (error.retry_after() > 0) response.headers.emplace_back("retry-after", std::to_string(error.retry_after()));
  return response;
}

ApiError internal_error() { return ApiError(500, "server_error", "internal_error", "an internal error occurred"); }

}  // namespace

std::string refusal_text(const ApiError& error, const std::string& request_id, bool head_only) {
  return whole_response(error_response(error), request_id, true, head_only);
}

uint64_t SessionShared::random_start() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

std::string SessionShared::new_request_id() {
  // Distinct numbers stay distinct (the finish of splitmix64 can be undone); neither the count nor the start shows.
  uint64_t x = start_ + requests_.fetch_add(1, std::memory_order_relaxed) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  char text[24];
  std::snprintf(text, sizeof text, "req-%016llx", static_cast<unsigned long long>(x ^ (x >> 31)));
  return text;
}

void SessionShared::refused(const ApiError& error) const {
  if (observer.refused) observer.refused(error.status(), error.code().c_str());
}

namespace {

class SessionExchange : public Exchange {
 public:
  // `last`: the connection closes behind this answer.
  SessionExchange(Connection& connection, RequestParser& parser, bool last)
      : connection_(connection), request_(std::move(parser.request())), chunked_(!parser.http_1_0()), last_(last) {
    connection_.on_end([this] { gone(); });
  }
  ~SessionExchange() override { connection_.on_end({}); }
  SessionExchange(const SessionExchange&) = delete;
  SessionExchange& operator=(const SessionExchange&) = delete;

  const HttpRequest& request() const override { return request_; }
  asio::any_io_executor executor() const override { return connection_.executor(); }
  bool begun() const override { return begun_; }
  bool complete() const { return complete_; }

  asio::awaitable<void> respond(Response response) override {
    CARPOOL_CHECK(!begun_);
    begun_ = true;
    connection_.write(whole_response(response, request_.request_id, last_, request_.method == "HEAD"));
    co_await connection_.sent();
    complete_ = true;
  }

  asio::awaitable<void> begin_events(Headers headers) override {
    CARPOOL_CHECK(!begun_);
    begun_ = streaming_ = true;
    std::string head = head_begin(200, request_.request_id);
    append_header(head, "content-type", "text/event-stream; charset=utf-8");
    append_header(head, "cache-control", "no-cache");
    append_header(head, "x-accel-buffering", "no");
    if (chunked_) append_header(head, "transfer-encoding", "chunked");
    for (const auto& [name, value] : headers) append_header(head, name, value);
    if (last_ || !chunked_) append_header(head, "connection", "close");
    connection_.write(head += "\r\n");
    co_await room();
  }

  asio::awaitable<void> event(std::string_view data, std::string_view name) override {
    std::string text;
    text.reserve(data.size() + name.size() + 24);
    if (!name.empty()) text.append("event: ").append(name).append("\n");
    for (;;) {  // one data line per line of the data
      const size_t end = data.find('\n');
      text.append("data: ").append(data.substr(0, end)).append("\n");
      if (end == std::string_view::npos) break;
      data.remove_prefix(end + 1);
    }
    return send(text += "\n");
  }

  asio::awaitable<void> ping() override { return send(": ping\n\n"); }

  asio::awaitable<void> end_events() override {
    CARPOOL_CHECK(streaming_ && !complete_);
    if (chunked_) connection_.write("0\r\n\r\n");
    co_await connection_.sent();
    complete_ = chunked_;
  }

  void on_gone(std::function<void()> callback) override {
    on_gone_ = std::move(callback);
    if (connection_.ended()) gone();
  }

 private:
  asio::awaitable<void> send(std::string_view text) {
    CARPOOL_CHECK(streaming_ && !complete_);
    if (chunked_) {
      char size[20];
      connection_.write({size, static_cast<size_t>(std::snprintf(size, sizeof size, "%zx\r\n", text.size()))});
    }
    connection_.write(text);
    if (chunked_) connection_.write("\r\n");
    return room();
  }

  // A stream to a client that has closed its end is of use to nobody, even while it could still be written.
  asio::awaitable<void> room() {
    if (connection_.ended()) throw ClientGone{};
    co_await connection_.sent(Connection::kWriteAhead);
  }

  void gone() {
    if (!on_gone_) return;
    const auto call = std::exchange(on_gone_, {});
    call();
  }

  Connection& connection_;
  HttpRequest request_;
  const bool chunked_, last_;
  bool begun_ = false, streaming_ = false, complete_ = false;
  std::function<void()> on_gone_;
};

}  // namespace

// What one request holds of the memory that all bodies may take.
class Session::BodyShare {
 public:
  explicit BodyShare(SessionShared& shared) : shared_(shared) {}
  ~BodyShare() { shared_.body_bytes -= held_; }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;

  void grow_to(size_t bytes) {
    const size_t more = bytes - held_;
    held_ = bytes;
    if ((shared_.body_bytes += more) > shared_.limits.bodies)
      throw unavailable("overloaded", "the requests under way are too large together", 1);
  }

 private:
  SessionShared& shared_;
  size_t held_ = 0;
};

Session::Session(asio::ip::tcp::socket socket, SessionShared& shared)
    : connection_(std::make_shared<Connection>(std::move(socket), shared.limits.write_stall_s)), shared_(shared) {
  now_idle(true);
}

asio::awaitable<void> Session::run(const ApiError* refusal) {
  const auto self = shared_from_this();
  connection_->start();
  try {
    if (refusal) {
      now_idle(false);
      co_await refuse(*refusal, false);
    } else {
      while (co_await serve_one()) first_ = false;
    }
  } catch (...) {
    // The client went away, abort() cancelled what was waited for, or there is no memory: this connection ends.
  }
  connection_->close();
}

asio::awaitable<bool> Session::serve_one() {
  RequestParser parser(shared_.limits);
  BodyShare share(shared_);
  std::optional<ApiError> error;
  try {
    if (!co_await read_request(parser, share)) co_return false;
  } catch (const ApiError& e) {
    error = e;
  }
  if (error) {
    co_await refuse(*error, parser.request().method == "HEAD");
    co_return false;
  }
  co_return co_await handle(parser);
}

// True when a request is there; false when the connection ends without one that could be answered.
asio::awaitable<bool> Session::read_request(RequestParser& parser, BodyShare& share) {
  const HttpLimits& limits = shared_.limits;
  const auto body_window = seconds(limits.body_idle_s);
  const auto window_bytes = static_cast<size_t>(limits.body_idle_s * kMinBytesPerSecond);
  const Clock::time_point begin = Clock::now();
  std::optional<Clock::time_point> head_begin, window_begin;
  size_t window_start = 0;  // bytes of the body that were there when the window began
  now_idle(true);
  for (;;) {
    if (!connection_->input().empty()) connection_->consume(parser.feed(connection_->input()));
    share.grow_to(parser.body_bytes());
    if (parser.complete()) break;
    if (parser.started()) now_idle(false);
    const Clock::time_point now = Clock::now();
    Clock::time_point deadline = begin + seconds(first_ ? limits.header_s : limits.keep_alive_s);
    if (parser.in_body()) {
      if (!window_begin && parser.expects_continue() && parser.body_bytes() == 0)
        connection_->write("HTTP/1.1 100 Continue\r\n\r\n");
      if (!window_begin || parser.body_bytes() - window_start >= window_bytes) {
        window_begin = now;
        window_start = parser.body_bytes();
      }
      deadline = *window_begin + body_window;
    } else if (parser.started()) {
      if (!head_begin) head_begin = first_ ? begin : now;
      deadline = *head_begin + seconds(limits.header_s);
    } else if (shared_.stopping) {
      co_return false;
    }
    if (connection_->ended()) co_return false;
    if (co_await connection_->more_input(deadline)) continue;
    if (!parser.started()) co_return false;
    throw ApiError(408, "invalid_request_error", "request_timeout", "the request did not arrive in time");
  }
  now_idle(false);
  parser.request().request_id = shared_.new_request_id();
  parser.request().received = now_seconds();
  co_return true;
}

// True when the connection goes on.
asio::awaitable<bool> Session::handle(RequestParser& parser) {
  const bool last = !parser.keep_alive() || shared_.stopping;
  SessionExchange exchange(*connection_, parser, last);
  std::optional<ApiError> failure;
  try {
    co_await shared_.handler(exchange);
    if (!exchange.begun()) failure = internal_error();
  } catch (const ApiError& e) {
    failure = e;
  } catch (const std::exception&) {
    failure = internal_error();
  }
  if (failure && !exchange.begun()) co_await exchange.respond(error_response(*failure));
  if (exchange.complete() && !last && !shared_.stopping) co_return true;
  // An unfinished stream of chunks just ends, which the client sees as an error.
  co_await connection_->sent();
  co_await linger();
  co_return false;
}

asio::awaitable<void> Session::refuse(ApiError error, bool head_only) {
  shared_.refused(error);
  connection_->write(refusal_text(error, shared_.new_request_id(), head_only));
  co_await connection_->sent();
  co_await linger();
}

// Closing a socket that holds unread bytes resets the connection, and a reset can overtake the last response. So the
// client gets a moment to read it, and a bounded number of bytes are read from it meanwhile.
asio::awaitable<void> Session::linger() {
  connection_->shutdown_send();
  const Clock::time_point deadline = Clock::now() + kLinger;
  size_t dropped = 0;
  do {
    if (dropped < kLingerBytes) {
      dropped += connection_->input().size();
      connection_->consume(connection_->input().size());
    }
    if (connection_->ended()) break;
  } while (co_await connection_->more_input(deadline));
}

void Session::now_idle(bool idle) {
  idle_ = idle;
  idle_since_.store(idle ? Clock::now().time_since_epoch().count() : 0, std::memory_order_relaxed);
}

bool Session::give_way() {
  if (idle_since_.exchange(0, std::memory_order_relaxed) == 0) return false;
  close_if_idle();
  return true;
}

void Session::close_if_idle() {
  asio::post(executor(), [self = shared_from_this()] {
    if (self->idle_ && self->connection_->input().empty()) self->connection_->close();
  });
}

void Session::abort() {
  asio::post(executor(), [self = shared_from_this()] {
    self->connection_->close();
    self->cancellation_.emit(asio::cancellation_type::terminal);
  });
}

}  // namespace carpool
