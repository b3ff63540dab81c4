// An HTTP server of this process whose replies a test decides: also slow, broken and cut ones.
//
// Owns FakeServer: port 0 on 127.0.0.1, one thread, one coroutine per connection; it ends with the object. What it gets
// and what it holds open can be asked. Replies are written as raw bytes, so that nothing mends what a test breaks.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/json.h"

namespace carpool::fake {

namespace asio = boost::asio;

struct Got {
  std::string method, target, body;
  std::vector<std::pair<std::string, std::string>> headers;

  std::string header(const std::string& name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return value;
    }
    return "";
  }
  json::object json() const { return parse_json(body, "request").get_object(); }
};

struct Reply {
  int status = 200;
  std::string type = "application/json";
  std::vector<std::string> pieces;  // of the body, written one by one
  int pause_ms = 0;                 // before each of them
  bool chunked = true;              // each piece a chunk; else the sum has a Content-Length
  bool cut = false;                 // the connection closes without the end of the body
  bool stall = false;               // after the pieces nothing comes until the client leaves
  bool never = false;               // nothing is sent until the client leaves
  std::string raw;                  // when not empty, all that is sent
  std::vector<std::pair<std::string, std::string>> headers;
};

inline Reply json_reply(const std::string& body, int status = 200) {
  Reply reply;
  reply.status = status;
  reply.pieces = {body};
  reply.chunked = false;
  return reply;
}

// A stream of server-sent events, each a piece of its own.
inline Reply event_stream(const std::vector<std::string>& events, bool done = true) {
  Reply reply;
  reply.type = "text/event-stream";
  for (const std::string& data : events) reply.pieces.push_back("data: " + data + "\n\n");
  if (done) reply.pieces.emplace_back("data: [DONE]\n\n");
  return reply;
}

// The stream of /generate: cumulative text "a", "aa" ..., one token per event.
inline Reply native_stream(int tokens, int prompt_tokens = 3) {
  std::vector<std::string> events;
  for (int t = 1; t <= tokens; ++t) {
    json::object meta = {{"prompt_tokens", prompt_tokens}, {"completion_tokens", t}, {"finish_reason", nullptr}};
    if (t == tokens) meta["finish_reason"] = json::object{{"type", "length"}, {"length", tokens}};
    events.push_back(json::serialize(
        json::object{{"text", std::string(static_cast<size_t>(t), 'a')}, {"meta_info", std::move(meta)}}));
  }
  return event_stream(events);
}

class FakeServer {
 public:
  using Handler = std::function<Reply(const Got&)>;  // runs on the server's thread

  explicit FakeServer(Handler handler)
      : handler_(std::move(handler)),
        acceptor_(io_, {asio::ip::make_address("127.0.0.1"), 0}),
        port_(acceptor_.local_endpoint().port()) {
    asio::co_spawn(io_, accept(), asio::detached);
    thread_ = std::thread([this] { io_.run(); });
  }
  ~FakeServer() {
    io_.stop();
    thread_.join();
  }
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::vector<Got> got() const {
    const std::lock_guard lock(mutex_);
    return got_;
  }
  std::vector<Got> got(const std::string& target) const {
    std::vector<Got> out;
    for (Got& g : got()) {
      if (g.target == target) out.push_back(std::move(g));
    }
    return out;
  }
  // Exchanges on `target` at once, at most, so far.
  int most_at_once(const std::string& target) const {
    const std::lock_guard lock(mutex_);
    const auto found = exchanges_.find(target);
    return found == exchanges_.end() ? 0 : found->second.most;
  }
  // Clients that went away from replies that never came.
  int left() const {
    const std::lock_guard lock(mutex_);
    return left_;
  }

 private:
  struct Exchanges {
    int now = 0, most = 0;
  };
  static constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
  using Socket = asio::ip::tcp::socket;

  asio::awaitable<void> accept() {
    for (;;) {
      auto [ec, socket] = co_await acceptor_.async_accept(kTuple);
      if (ec) co_return;
      asio::co_spawn(io_, serve(std::move(socket)), asio::detached);
    }
  }

  asio::awaitable<void> serve(Socket socket) {
    namespace http = boost::beast::http;
    boost::beast::flat_buffer buffer;
    http::request_parser<http::string_body> parser;
    parser.body_limit(1 << 24);
    auto [ec, n] = co_await http::async_read(socket, buffer, parser, kTuple);
    if (ec) co_return;
    const auto& message = parser.get();
    const Got got = read(message);
    Exchanges* open = nullptr;
    {
      const std::lock_guard lock(mutex_);
      got_.push_back(got);
      open = &exchanges_[got.target];
      open->most = std::max(open->most, ++open->now);
    }
    const Reply reply = handler_(got);
    co_await answer(socket, reply, open);
    close(open);
  }

  // An exchange ends before its last bytes leave: a client that has them may open the next one at once.
  void close(Exchanges*& open) {
    if (!open) return;
    const std::lock_guard lock(mutex_);
    --open->now;
    open = nullptr;
  }

  template <class Message>
  static Got read(const Message& message) {
    Got got{std::string(message.method_string()), std::string(message.target()), message.body(), {}};
    for (const auto& field : message) got.headers.emplace_back(field.name_string(), field.value());
    return got;
  }

  static std::string head_of(const Reply& reply) {
    size_t bytes = 0;
    for (const std::string& piece : reply.pieces) bytes += piece.size();
    std::string head = "HTTP/1.1 " + std::to_string(reply.status) + " X\r\nContent-Type: " + reply.type + "\r\n";
    for (const auto& [name, value] : reply.headers) head += name + ": " + value + "\r\n";
    head += reply.chunked ? "Transfer-Encoding: chunked\r\n" : "Content-Length: " + std::to_string(bytes) + "\r\n";
    return head + "\r\n";
  }

  static std::string piece_of(const Reply& reply, const std::string& piece) {
    if (!reply.chunked) return piece;
    char size[20];
    std::snprintf(size, sizeof size, "%zx\r\n", piece.size());
    return size + piece + "\r\n";
  }

  // `text` must outlive the call: temporaries in a coroutine are not safe with g++ 12.
  asio::awaitable<void> put(Socket& socket, const std::string& text) {
    auto [ec, n] = co_await asio::async_write(socket, asio::buffer(text), kTuple);
    static_cast<void>(ec);
  }

  asio::awaitable<void> answer(Socket& socket, const Reply& reply, Exchanges*& open) {
    if (reply.never) {
      char byte;
      auto [ec, n] = co_await socket.async_read_some(asio::buffer(&byte, 1), kTuple);
      const std::lock_guard lock(mutex_);
      left_ += ec ? 1 : 0;
      co_return;
    }
    if (!reply.raw.empty()) {
      close(open);
      co_await put(socket, reply.raw);
      co_return;
    }
    std::string text = head_of(reply);
    size_t left = reply.pieces.size();
    if (left == 0) close(open);
    co_await put(socket, text);
    asio::steady_timer pause(io_);
    for (const std::string& piece : reply.pieces) {
      if (reply.pause_ms > 0) {
        pause.expires_after(std::chrono::milliseconds(reply.pause_ms));
        co_await pause.async_wait(kTuple);
      }
      text = piece_of(reply, piece);
      if (--left == 0 && !reply.stall) close(open);
      co_await put(socket, text);
    }
    if (reply.stall) {
      char byte;
      co_await socket.async_read_some(asio::buffer(&byte, 1), kTuple);
      co_return;
    }
    text = "0\r\n\r\n";
    if (reply.chunked && !reply.cut) co_await put(socket, text);
  }

  Handler handler_;
  asio::io_context io_{1};
  asio::ip::tcp::acceptor acceptor_;
  int port_;
  mutable std::mutex mutex_;
  std::vector<Got> got_;
  std::map<std::string, Exchanges> exchanges_;  // by target; entries stay where they are
  int left_ = 0;
  std::thread thread_;
};

}  // namespace carpool::fake
