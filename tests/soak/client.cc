// Read first: client.h.
#include "soak/client.h"

#include <sys/socket.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cstdlib>
#include <cstring>

namespace carpool::soak {
namespace {

using boost::system::error_code;

constexpr size_t kReadBytes = 16 << 10;

asio::steady_timer::duration in_ticks(double seconds) {
  return std::chrono::duration_cast<asio::steady_timer::duration>(std::chrono::duration<double>(seconds));
}

Head parse_head(std::string_view text) {
  Head head;
  if (!text.starts_with("HTTP/1.1 ")) {
    throw Broken{Broken::Kind::kFraming, "no status line: " + std::string(text.substr(0, 40))};
  }
  head.status = std::atoi(text.data() + 9);
  for (size_t at = text.find("\r\n") + 2; at < text.size();) {
    const size_t end = text.find("\r\n", at), colon = text.find(": ", at);
    if (colon == std::string_view::npos || colon > end) throw Broken{Broken::Kind::kFraming, "a header without colon"};
    std::string name(text.substr(at, colon - at));
    for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    head.headers.emplace_back(std::move(name), text.substr(colon + 2, end - colon - 2));
    at = end + 2;
  }
  head.chunked = head.header("transfer-encoding") == "chunked";
  head.close = head.header("connection") == "close";
  head.length = std::strtoul(head.header("content-length").c_str(), nullptr, 10);
  return head;
}

}  // namespace

std::string Head::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return "";
}

// What the deadline's handler may touch after the client has gone.
struct Client::Shared {
  explicit Shared(const asio::any_io_executor& executor) : socket(executor) {}
  asio::ip::tcp::socket socket;
  bool stuck = false;
};

Client::Client(asio::any_io_executor executor, const asio::ip::tcp::endpoint& server, int receive_buffer)
    : shared_(std::make_shared<Shared>(executor)),
      server_(server),
      receive_buffer_(receive_buffer),
      deadline_(executor),
      pause_timer_(executor) {}

Client::~Client() { close(); }

void Client::deadline(double seconds) {
  deadline_.expires_after(in_ticks(seconds));
  deadline_.async_wait([weak = std::weak_ptr(shared_)](const error_code& error) {
    const auto shared = weak.lock();
    if (error || !shared) return;
    shared->stuck = true;
    error_code ignored;
    shared->socket.close(ignored);
  });
}

void Client::read_slowly(size_t bytes, double pause) {
  slow_bytes_ = bytes;
  pause_ = pause;
}

asio::awaitable<void> Client::connect() {
  error_code error;
  shared_->socket.open(server_.protocol(), error);
  if (error) throw Broken{Broken::Kind::kClosed, "no socket: " + error.message()};
  if (receive_buffer_ > 0) {
    shared_->socket.set_option(asio::socket_base::receive_buffer_size(receive_buffer_), error);
  }
  co_await shared_->socket.async_connect(server_, asio::redirect_error(asio::use_awaitable, error));
  if (error) {
    throw Broken{shared_->stuck ? Broken::Kind::kStuck : Broken::Kind::kClosed, "connect: " + error.message()};
  }
  shared_->socket.set_option(asio::ip::tcp::no_delay(true), error);
}

asio::awaitable<void> Client::send(std::string_view bytes) {
  error_code error;
  co_await asio::async_write(shared_->socket, asio::buffer(bytes.data(), bytes.size()),
                             asio::redirect_error(asio::use_awaitable, error));
  if (!error) co_return;
  throw Broken{shared_->stuck ? Broken::Kind::kStuck : Broken::Kind::kClosed, "send: " + error.message()};
}

// False when the server has closed or reset the connection.
asio::awaitable<bool> Client::fill() {
  error_code error;
  if (slow_bytes_ > 0) {
    pause_timer_.expires_after(in_ticks(pause_));
    co_await pause_timer_.async_wait(asio::redirect_error(asio::use_awaitable, error));
  }
  const size_t before = input_.size(), most = slow_bytes_ > 0 ? slow_bytes_ : kReadBytes;
  input_.resize(before + most);
  const size_t got = co_await shared_->socket.async_read_some(asio::buffer(input_.data() + before, most),
                                                              asio::redirect_error(asio::use_awaitable, error));
  input_.resize(before + got);
  if (shared_->stuck) throw Broken{Broken::Kind::kStuck, "nothing came until the deadline"};
  co_return got > 0;
}

asio::awaitable<void> Client::must_fill() {
  const bool more = co_await fill();
  if (!more) throw Broken{Broken::Kind::kClosed, "the server closed in the middle of a response"};
}

asio::awaitable<Head> Client::head() {
  for (;;) {
    size_t end = input_.find("\r\n\r\n");
    while (end == std::string::npos) {
      co_await must_fill();
      end = input_.find("\r\n\r\n");
    }
    Head head = parse_head(std::string_view(input_).substr(0, end + 2));
    input_.erase(0, end + 4);
    if (head.status != 100) co_return head;
  }
}

asio::awaitable<std::string> Client::body(const Head& head) {
  std::string out;
  if (head.chunked) {
    for (bool more = true; more;) more = co_await chunk(out);
    co_return out;
  }
  while (input_.size() < head.length) co_await must_fill();
  out = input_.substr(0, head.length);
  input_.erase(0, head.length);
  co_return out;
}

// Appends one chunk; false for the last.
asio::awaitable<bool> Client::chunk(std::string& out) {
  size_t line = input_.find("\r\n");
  while (line == std::string::npos) {
    co_await must_fill();
    line = input_.find("\r\n");
  }
  const size_t size = std::strtoul(input_.c_str(), nullptr, 16);
  while (input_.size() < line + 2 + size + 2) co_await must_fill();
  if (input_.compare(line + 2 + size, 2, "\r\n") != 0) throw Broken{Broken::Kind::kFraming, "a chunk without its end"};
  out.append(input_, line + 2, size);
  input_.erase(0, line + 2 + size + 2);
  co_return size > 0;
}

asio::awaitable<bool> Client::event(const Head& head, std::string& data) {
  if (!head.chunked) throw Broken{Broken::Kind::kFraming, "a stream without chunks"};
  for (;;) {
    size_t end = events_.find("\n\n");
    while (end == std::string::npos) {
      const bool more = co_await chunk(events_);
      if (!more && !events_.empty()) throw Broken{Broken::Kind::kFraming, "half an event at the end of a stream"};
      if (!more) co_return false;
      end = events_.find("\n\n");
    }
    data.clear();
    for (size_t at = 0; at < end;) {
      const size_t line_end = events_.find('\n', at);
      const std::string_view line = std::string_view(events_).substr(at, line_end - at);
      if (line.starts_with("data: ")) {
        data.append(line.substr(6));
      } else if (!line.starts_with("event: ") && !line.starts_with(":")) {
        throw Broken{Broken::Kind::kFraming, "no line of an event: " + std::string(line.substr(0, 40))};
      }
      at = line_end + 1;
    }
    events_.erase(0, end + 2);
    if (!data.empty()) co_return true;
  }
}

asio::awaitable<bool> Client::closed() {
  bool open = true;
  while (open) {
    try {
      open = co_await fill();
    } catch (const Broken&) {
      co_return false;
    }
    input_.clear();
  }
  co_return true;
}

void Client::note_arrivals() {
  const int on = 1;
  setsockopt(shared_->socket.native_handle(), SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
}

asio::awaitable<double> Client::arrival() {
  error_code error;
  co_await shared_->socket.async_wait(asio::ip::tcp::socket::wait_read,
                                      asio::redirect_error(asio::use_awaitable, error));
  if (shared_->stuck) throw Broken{Broken::Kind::kStuck, "nothing came until the deadline"};
  const double at = error ? -1 : receive_with_time();
  if (input_.empty()) throw Broken{Broken::Kind::kClosed, "the server closed without an answer"};
  co_return at;
}

// Takes what is there; returns when the kernel got it.
double Client::receive_with_time() {
  char bytes[4096], control[256];
  iovec part{bytes, sizeof bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(shared_->socket.native_handle(), &message, MSG_DONTWAIT);
  if (got <= 0) return -1;
  input_.append(bytes, static_cast<size_t>(got));
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SO_TIMESTAMPNS) continue;
    timespec time{};
    std::memcpy(&time, CMSG_DATA(c), sizeof time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }
  return -1;
}

void Client::half_close() {
  error_code ignored;
  shared_->socket.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
}

void Client::reset() {
  error_code ignored;
  shared_->socket.set_option(asio::socket_base::linger(true, 0), ignored);
  close();
}

void Client::close() {
  error_code ignored;
  shared_->socket.close(ignored);
}

}  // namespace carpool::soak
