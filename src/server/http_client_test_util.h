// A small blocking HTTP client for tests of the server: raw bytes out, responses and server-sent events in.
//
// Owns RawClient. It sends exactly what it is given, so that a test can send what no library would, and it can leave in
// bad ways. Everything it waits for ends at one overall deadline with a std::runtime_error, so that a test fails rather
// than hangs. Loopback only.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace carpool {

struct RawResponse {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;                                          // without chunked framing

  std::string header(std::string_view name) const {
    for (const auto& [n, value] : headers)
      if (n == name) return value;
    return "";
  }
  bool has(std::string_view name) const {
    for (const auto& entry : headers)
      if (entry.first == name) return true;
    return false;
  }
};

struct RawEvent {
  std::string name;  // "" without an event line
  std::string data;  // lines joined by \n
  std::string comment;
};

// The text of a request with Host, and with Content-Length when there is a body.
inline std::string request_text(std::string_view method, std::string_view target, std::string_view body = "",
                                std::string_view more_headers = "") {
  std::string text = std::string(method) + " " + std::string(target) + " HTTP/1.1\r\nHost: 127.0.0.1\r\n";
  if (!body.empty())
    text += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  return text.append(more_headers).append("\r\n").append(body);
}

class RawClient {
 public:
  // `receive_buffer`: bytes the kernel may hold for us (before doubling); 0 = its default.
  explicit RawClient(int port, double deadline_s = 30, int receive_buffer = 0)
      : end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(deadline_s))),
        socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (socket_ < 0) throw std::runtime_error("no socket");
    if (receive_buffer > 0) setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    const int one = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      ::close(socket_);
      throw std::runtime_error("cannot connect");
    }
    fcntl(socket_, F_SETFL, O_NONBLOCK);
  }
  ~RawClient() { close(); }
  RawClient(RawClient&& other) noexcept
      : end_(other.end_), socket_(std::exchange(other.socket_, -1)), input_(std::move(other.input_)) {}
  RawClient& operator=(RawClient&&) = delete;

  // False when the server had closed before all was sent.
  bool try_send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent > 0) {
        bytes.remove_prefix(static_cast<size_t>(sent));
      } else if (errno == EAGAIN) {
        wait(POLLOUT);
      } else if (errno != EINTR) {
        return false;
      }
    }
    return true;
  }
  void send(std::string_view bytes) {
    if (!try_send(bytes)) throw std::runtime_error("the server closed while the request was sent");
  }

  // Status and headers.
  RawResponse read_head() {
    while (input_.find("\r\n\r\n") == std::string::npos) must_receive();
    RawResponse response;
    const size_t end = input_.find("\r\n\r\n");
    std::string head = input_.substr(0, end + 2);
    input_.erase(0, end + 4);
    if (head.substr(0, 9) != "HTTP/1.1 ") throw std::runtime_error("no status line: " + head);
    response.status = std::atoi(head.c_str() + 9);
    for (size_t at = head.find("\r\n") + 2; at < head.size();) {
      const size_t line_end = head.find("\r\n", at), colon = head.find(": ", at);
      if (colon == std::string::npos || colon > line_end) throw std::runtime_error("a header without colon");
      std::string name = head.substr(at, colon - at);
      for (char& c : name)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
      response.headers.emplace_back(std::move(name), head.substr(colon + 2, line_end - colon - 2));
      at = line_end + 2;
    }
    chunked_ = response.header("transfer-encoding") == "chunked";
    return response;
  }

  // A whole response; `head_only` for HEAD, which announces a body that does not come.
  RawResponse read_response(bool head_only = false) {
    RawResponse response = read_head();
    if (head_only || response.status == 204 || response.status / 100 == 1) return response;
    if (chunked_) {
      while (std::optional<std::string> piece = read_chunk()) response.body += *piece;
    } else if (response.has("content-length")) {
      const size_t length = std::strtoul(response.header("content-length").c_str(), nullptr, 10);
      while (input_.size() < length) must_receive();
      response.body = input_.substr(0, length);
      input_.erase(0, length);
    } else {
      response.body = read_to_end();
    }
    return response;
  }
  RawResponse ask(std::string_view request) {
    send(request);
    return read_response(request.substr(0, 5) == "HEAD ");
  }

  // The next event of a stream, after read_head(); nothing when the stream has ended as it should. Throws when the
  // connection closed in the middle.
  std::optional<RawEvent> read_event() {
    while (events_.find("\n\n") == std::string::npos) {
      std::optional<std::string> piece = read_chunk();
      if (!piece) {
        if (!events_.empty()) throw std::runtime_error("half an event at the end");
        return std::nullopt;
      }
      events_ += *piece;
    }
    const size_t end = events_.find("\n\n");
    RawEvent event;
    bool has_data = false;
    for (size_t at = 0; at < end;) {
      const size_t line_end = events_.find('\n', at);
      const std::string line = events_.substr(at, line_end - at);
      if (line.rfind("data: ", 0) == 0) {
        if (std::exchange(has_data, true)) event.data += '\n';
        event.data += line.substr(6);
      } else if (line.rfind("event: ", 0) == 0) {
        event.name = line.substr(7);
      } else if (line.rfind(':', 0) == 0) {
        event.comment = line.substr(1);
      } else {
        throw std::runtime_error("no line of an event: " + line);
      }
      at = line_end + 1;
    }
    events_.erase(0, end + 2);
    return event;
  }

  // Everything until the server closes; a reset counts as the end.
  std::string read_to_end() {
    while (receive()) {
    }
    return std::exchange(input_, {});
  }
  // Waits until the server closes; true when nothing more came before that.
  bool closed_by_server() { return read_to_end().empty(); }
  // Bytes that were received and not used.
  const std::string& buffered() const { return input_; }

  // Whether something (or the end) came within so many milliseconds.
  bool readable_within(int milliseconds) {
    pollfd entry{socket_, POLLIN, 0};
    return !input_.empty() || ::poll(&entry, 1, milliseconds) > 0;
  }

  void half_close() { ::shutdown(socket_, SHUT_WR); }
  // Closes so that the server sees a reset.
  void close_abruptly() {
    const linger now{1, 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close();
  }
  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  int descriptor() const { return socket_; }

 private:
  using Clock = std::chrono::steady_clock;

  void wait(short what) {
    pollfd entry{socket_, what, 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now()).count();
    if (left <= 0) throw std::runtime_error("the deadline of the test client passed");
    ::poll(&entry, 1, static_cast<int>(left) + 1);
  }
  bool receive() {
    char bytes[65536];
    for (;;) {
      const ssize_t got = ::recv(socket_, bytes, sizeof bytes, 0);
      if (got > 0) {
        input_.append(bytes, static_cast<size_t>(got));
        return true;
      }
      if (got == 0 || (errno != EAGAIN && errno != EINTR)) return false;
      wait(POLLIN);
    }
  }
  void must_receive() {
    if (!receive()) throw std::runtime_error("the server closed in the middle of a response");
  }
  // One chunk, or what has come of an unframed body; nothing at the end.
  std::optional<std::string> read_chunk() {
    if (!chunked_) {
      if (input_.empty() && !receive()) return std::nullopt;
      return std::exchange(input_, {});
    }
    while (input_.find("\r\n") == std::string::npos) must_receive();
    const size_t line_end = input_.find("\r\n");
    const size_t size = std::strtoul(input_.c_str(), nullptr, 16);
    while (input_.size() < line_end + 2 + size + 2) must_receive();
    std::string piece = input_.substr(line_end + 2, size);
    if (input_.substr(line_end + 2 + size, 2) != "\r\n") throw std::runtime_error("a chunk without its end");
    input_.erase(0, line_end + 2 + size + 2);
    if (size == 0) return std::nullopt;
    return piece;
  }

  const Clock::time_point end_;
  int socket_;
  std::string input_, events_;
  bool chunked_ = false;
};

}  // namespace carpool
