#include "measure/load_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <cmath>
#include <exception>

#include "base/error.h"
#include "base/time.h"
#include "measure/load_dataset.h"

namespace carpool {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr size_t kPieceBytes = 8192;
constexpr uint64_t kMostStreamBytes = uint64_t{4} << 30;
constexpr size_t kMostBodyBytes = size_t{256} << 20;  // of a reply that is no stream: /server_info, /tokenize
constexpr size_t kCallsAtOnce = 16;

// For co_spawn: what a coroutine throws comes out of io_context::run.
constexpr auto kRethrow = [](std::exception_ptr e) {
  if (e) std::rethrow_exception(e);
};

// What one exchange sends.
struct Sent {
  std::string method, target, body;
  LoadHeaders headers;
  double timeout_s = 0;
};

// What becomes of a reply, as it comes. May throw Error{kMalformed}, which ends the exchange.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void head(int status, bool events, std::string_view routing) = 0;
  virtual void piece(std::string_view bytes) = 0;
};

struct TransportFailure {
  std::string kind, message;  // empty: none
};

TransportFailure describe(const char* stage, const error_code& ec) {
  if (!ec) return {};
  if (ec == beast::error::timeout) return {"timeout", std::string("no end within the time limit, while ") + stage};
  const bool gone = ec == http::error::partial_message || ec == http::error::end_of_stream || ec == asio::error::eof ||
                    ec == asio::error::connection_reset || ec == asio::error::broken_pipe;
  if (gone) return {"disconnected", std::string("the server closed the connection while ") + stage};
  if (ec.category() == error_code(http::error::bad_version).category()) {
    return {"malformed reply", "not HTTP: " + ec.message()};
  }
  if (std::string_view(stage) == "connecting") return {"connect", ec.message()};
  return {"network", std::string(stage) + ": " + ec.message()};
}

using BodyParser = http::response_parser<http::buffer_body>;

// The parser stays as it is, not eager: an eager one holds a piece back until the start of the next chunk is there.
asio::awaitable<error_code> read_body(beast::tcp_stream& stream, beast::flat_buffer& buffer, BodyParser& parser,
                                      Sink& sink) {
  std::array<char, kPieceBytes> piece;
  while (!parser.is_done()) {
    parser.get().body().data = piece.data();
    parser.get().body().size = piece.size();
    auto [ec, n] = co_await http::async_read_some(stream, buffer, parser, kTuple);
    const size_t got = piece.size() - parser.get().body().size;
    if (got > 0) sink.piece({piece.data(), got});
    if (ec && ec != http::error::need_buffer) co_return ec;
  }
  co_return error_code();
}

http::request<http::string_body> make_message(const ServerUrl& url, const Sent& sent) {
  http::request<http::string_body> message;
  message.method_string(sent.method);
  message.target(url.prefix + sent.target);
  message.version(11);
  message.set(http::field::host, url.host + ":" + url.port);
  message.set(http::field::user_agent, "carpool-bench-serve");
  message.set(http::field::accept, "*/*");
  message.set(http::field::connection, "close");
  if (!sent.body.empty()) message.set(http::field::content_type, "application/json");
  for (const auto& [name, value] : sent.headers) message.set(name, value);
  message.body() = sent.body;
  message.prepare_payload();
  return message;
}

// One request on a connection of its own.
asio::awaitable<TransportFailure> exchange(const ServerUrl& url, const tcp::resolver::results_type& endpoints,
                                           const Sent& sent, Sink& sink) {
  beast::tcp_stream stream(co_await asio::this_coro::executor);
  stream.expires_after(std::chrono::microseconds(static_cast<int64_t>(sent.timeout_s * 1e6)));
  auto [connected, endpoint] = co_await stream.async_connect(endpoints, kTuple);
  if (connected) co_return describe("connecting", connected);
  error_code ignored;
  stream.socket().set_option(tcp::no_delay(true), ignored);
  const http::request<http::string_body> message = make_message(url, sent);
  auto [written, bytes] = co_await http::async_write(stream, message, kTuple);
  // A server may refuse before it has read everything: its reply says why the writing failed.
  beast::flat_buffer buffer;
  BodyParser parser;
  parser.body_limit(kMostStreamBytes);
  auto [head, head_bytes] = co_await http::async_read_header(stream, buffer, parser, kTuple);
  if (head) co_return describe(written ? "sending" : "waiting for the reply", written ? written : head);
  const auto& reply = parser.get();
  const beast::string_view type = reply[http::field::content_type];
  const beast::string_view routing = reply["x-carpool-routing"];
  sink.head(static_cast<int>(reply.result_int()), type.starts_with("text/event-stream"),
            {routing.data(), routing.size()});
  const error_code ended = co_await read_body(stream, buffer, parser, sink);
  stream.socket().shutdown(tcp::socket::shutdown_both, ignored);
  co_return describe("sending its reply", ended);
}

// Keeps the whole body.
class WholeSink : public Sink {
 public:
  explicit WholeSink(HttpAnswer& answer) : answer_(answer) {}
  void head(int status, bool, std::string_view) override { answer_.status = status; }
  void piece(std::string_view bytes) override {
    answer_.body += bytes;
    if (answer_.body.size() > kMostBodyBytes) throw Error(ErrorKind::kMalformed, "the reply is over 256 MiB");
  }

 private:
  HttpAnswer& answer_;
};

// Turns a reply into an outcome. `began` is now_seconds() at the request's start.
class OutcomeSink : public Sink {
 public:
  OutcomeSink(LoadBackend backend, const LoadRequest& request, double began, LoadOutcome& outcome)
      : reader_(backend, request, outcome), outcome_(outcome), began_(began) {}

  void head(int status, bool events, std::string_view routing) override {
    status_ = status;
    events_ = events;
    outcome_.routing = routing;
  }

  void piece(std::string_view bytes) override {
    if (status_ != 200 || !events_) {
      body_ += bytes;
      if (body_.size() > kMostBodyBytes) throw Error(ErrorKind::kMalformed, "the reply is over 256 MiB");
      return;
    }
    const double now = now_seconds() - began_;
    ready_.clear();
    splitter_.feed(bytes, ready_);
    for (const ServerEvent& event : ready_) reader_.event(event, now);
  }

  // The reply came to its end as HTTP.
  void finish() {
    if (status_ != 200) return read_refusal(status_, body_, outcome_);
    if (!events_) reader_.whole(body_, now_seconds() - began_);
    reader_.end();
  }

 private:
  ReplyReader reader_;
  LoadOutcome& outcome_;
  double began_;
  int status_ = 0;
  bool events_ = false;
  std::string body_;
  EventSplitter splitter_;
  std::vector<ServerEvent> ready_;
};

tcp::resolver::results_type resolve(asio::io_context& io, const ServerUrl& url) {
  error_code ec;
  tcp::resolver resolver(io);
  auto endpoints = resolver.resolve(url.host, url.port, ec);
  if (ec) throw Error(ErrorKind::kUnavailable, fmt::format("{}: {}", escape(url.text()), ec.message()));
  return endpoints;
}

[[noreturn]] void bad_url(std::string_view text, const char* why) {
  throw Error(ErrorKind::kUsage, fmt::format("{}: {}", escape(text), why));
}

}  // namespace

std::string ServerUrl::text() const {
  const bool six = host.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}{}", six ? "[" : "", host, six ? "]" : "", port, prefix);
}

ServerUrl parse_url(std::string_view text) {
  std::string_view rest = text;
  if (rest.starts_with("https://")) bad_url(text, "https is not spoken here; put a proxy before the server");
  if (rest.starts_with("http://")) rest.remove_prefix(7);
  for (const char c : rest) {
    if (static_cast<unsigned char>(c) <= ' ' || c == 127)
      bad_url(text, "the URL has a space or control character in it");
  }
  ServerUrl url;
  const size_t slash = std::min(rest.find('/'), rest.size());
  url.prefix = rest.substr(slash);
  while (url.prefix.ends_with('/')) url.prefix.pop_back();
  std::string_view place = rest.substr(0, slash);
  if (place.starts_with('[')) {
    const size_t close = place.find(']');
    if (close == std::string_view::npos) bad_url(text, "the address has no closing bracket");
    url.host = place.substr(1, close - 1);
    place.remove_prefix(close + 1);
    if (!place.empty() && place[0] != ':') bad_url(text, "after the bracket comes :PORT");
    url.port = place.empty() ? "" : place.substr(1);
  } else {
    const size_t colon = std::min(place.find(':'), place.size());
    url.host = place.substr(0, colon);
    url.port = colon < place.size() ? place.substr(colon + 1) : "";
    if (colon < place.size() && url.port.empty()) bad_url(text, "the port is empty");
  }
  if (url.host.empty()) bad_url(text, "the URL has no host; it looks like http://127.0.0.1:8080");
  if (url.port.empty()) url.port = "80";
  if (url.port.size() > 5 || url.port.find_first_not_of("0123456789") != std::string::npos || std::stoi(url.port) < 1 ||
      std::stoi(url.port) > 65535) {
    bad_url(text, "the port is no number of 1 to 65535");
  }
  return url;
}

struct LoadClient::Impl {
  ServerUrl url;
  LoadHeaders headers;
  double timeout_s;
  asio::io_context io{1};
  tcp::resolver::results_type endpoints;

  // A load under way. All on one thread.
  struct State {
    State(const LoadPlan& p, LoadRun& r, asio::io_context& context)
        : plan(p), run(r), slot(context, asio::steady_timer::time_point::max()), began(now_seconds()) {}
    const LoadPlan& plan;
    LoadRun& run;
    asio::steady_timer slot;  // cancelled when a request ends
    double began;
    int open = 0, done = 0;
  };

  // Temporaries stay out of coroutines: g++ 12 may destroy those of braces and conditions twice there.
  Sent post(const LoadRequest& request) const { return {"POST", request.path, request.body, headers, timeout_s}; }

  asio::awaitable<void> one(State& state, size_t index) {
    const LoadRequest& request = state.plan.requests[index];
    LoadOutcome& outcome = state.run.outcomes[index];
    const double began = now_seconds();
    outcome.start = began - state.began;
    try {
      OutcomeSink sink(state.plan.backend, request, began, outcome);
      const Sent sent = post(request);
      const TransportFailure failure = co_await exchange(url, endpoints, sent, sink);
      if (failure.kind.empty()) {
        sink.finish();
      } else if (outcome.failure.empty()) {
        outcome.failure = failure.kind;
        outcome.message = failure.message;
      }
    } catch (const Error& e) {
      outcome.failure = "malformed reply";
      outcome.message = e.what();
    }
    if (!outcome.failure.empty()) outcome.success = false;
    const double now = now_seconds();
    if (!outcome.success) outcome.latency = now - began;
    state.run.duration = std::max(state.run.duration, now - state.began);
    --state.open;
    ++state.done;
    state.slot.cancel();
    if (state.plan.progress) state.plan.progress(state.done, static_cast<int>(state.plan.requests.size()));
  }

  // Sends every request when it is due and a place is free, in order.
  asio::awaitable<void> dispatch(State& state) {
    const LoadPlan& plan = state.plan;
    const int most = plan.max_concurrency > 0 ? std::min(plan.max_concurrency, kMostConnections) : kMostConnections;
    const bool open_loop = std::isfinite(plan.request_rate);
    std::mt19937_64 random(plan.seed);
    asio::steady_timer due(io);
    due.expires_after(std::chrono::seconds(0));
    for (size_t i = 0; i < plan.requests.size(); ++i) {
      if (open_loop && i > 0) {
        const double gap = -std::log1p(-draw_unit(random)) / plan.request_rate;
        due.expires_at(due.expiry() + std::chrono::nanoseconds(static_cast<int64_t>(std::min(gap, 1e6) * 1e9)));
        co_await due.async_wait(kTuple);
      }
      while (state.open >= most) {
        if (open_loop && plan.max_concurrency == 0) state.run.limited = true;
        co_await state.slot.async_wait(kTuple);
      }
      ++state.open;
      state.run.most_open = std::max(state.run.most_open, state.open);
      asio::co_spawn(io, one(state, i), kRethrow);
    }
  }

  asio::awaitable<void> call_one(const Sent& sent, HttpAnswer& answer) {
    try {
      WholeSink sink(answer);
      TransportFailure failure = co_await exchange(url, endpoints, sent, sink);
      answer.failure = failure.kind;
      answer.message = failure.message;
    } catch (const Error& e) {
      answer.failure = "malformed reply";
      answer.message = e.what();
    }
  }

  asio::awaitable<void> call_some(const std::vector<Sent>& sent, std::vector<HttpAnswer>& answers, size_t& next) {
    while (next < sent.size()) {
      const size_t mine = next++;
      co_await call_one(sent[mine], answers[mine]);
    }
  }

  void run_until_idle() {
    io.restart();
    io.run();
  }
};

LoadClient::LoadClient(ServerUrl url, LoadHeaders headers, double timeout_s) : impl_(std::make_unique<Impl>()) {
  CARPOOL_CHECK(timeout_s > 0);
  impl_->endpoints = resolve(impl_->io, url);
  impl_->url = std::move(url);
  impl_->headers = std::move(headers);
  impl_->timeout_s = timeout_s;
}

LoadClient::~LoadClient() = default;

const ServerUrl& LoadClient::url() const { return impl_->url; }

HttpAnswer LoadClient::call(const std::string& method, const std::string& path, const std::string& body,
                            double timeout_s, const std::string& bearer) {
  HttpAnswer answer;
  Sent sent{method, path, body, impl_->headers, timeout_s > 0 ? timeout_s : impl_->timeout_s};
  if (!bearer.empty()) sent.headers.emplace_back("Authorization", "Bearer " + bearer);
  asio::co_spawn(impl_->io, impl_->call_one(sent, answer), kRethrow);
  impl_->run_until_idle();
  return answer;
}

std::vector<HttpAnswer> LoadClient::post_all(const std::string& path, const std::vector<std::string>& bodies) {
  std::vector<Sent> sent;
  for (const std::string& body : bodies) sent.push_back({"POST", path, body, impl_->headers, impl_->timeout_s});
  std::vector<HttpAnswer> answers(bodies.size());
  size_t next = 0;
  for (size_t i = 0; i < std::min(kCallsAtOnce, sent.size()); ++i) {
    asio::co_spawn(impl_->io, impl_->call_some(sent, answers, next), kRethrow);
  }
  impl_->run_until_idle();
  return answers;
}

LoadRun LoadClient::run(const LoadPlan& plan) {
  LoadRun run;
  run.outcomes.resize(plan.requests.size());
  Impl::State state(plan, run, impl_->io);
  asio::co_spawn(impl_->io, impl_->dispatch(state), kRethrow);
  impl_->run_until_idle();
  return run;
}

}  // namespace carpool
