// One connection of the load: an HTTP/1.1 client of coroutines that can also behave badly.
//
// Owns Client. It sends exactly the bytes it is given, reads responses and server-sent events, can read slowly, close
// half, or reset. Everything it waits for ends at one deadline, so that a server that hangs is seen and not waited for.
// Loopback only. Read next: stream.h, which decides what a connection does.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace carpool::soak {

namespace asio = boost::asio;

// Thrown when a connection gives no more: the server closed or reset it, sent what is no HTTP, or the deadline passed.
struct Broken {
  enum class Kind { kClosed, kFraming, kStuck };
  Kind kind;
  std::string what;
};

struct Head {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  bool chunked = false, close = false;
  size_t length = 0;
  std::string header(std::string_view name) const;  // "" when absent
};

class Client {
 public:
  // `receive_buffer`: bytes the kernel may hold for us; 0 = its default.
  Client(asio::any_io_executor executor, const asio::ip::tcp::endpoint& server, int receive_buffer = 0);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // From now; replaces the last one.
  void deadline(double seconds);
  // From now on at most `bytes` are read at a time, after `pause` seconds each.
  void read_slowly(size_t bytes, double pause);

  asio::awaitable<void> connect();
  asio::awaitable<void> send(std::string_view bytes);  // which live until it is done
  asio::awaitable<Head> head();                        // of the final response; 100 Continue is skipped
  asio::awaitable<std::string> body(const Head& head);
  // The next event's data; false at the end of the stream. Comments are skipped.
  asio::awaitable<bool> event(const Head& head, std::string& data);
  // Reads and drops until the server closes or resets; false when it has not by the deadline.
  asio::awaitable<bool> closed();

  // From now on the kernel notes when bytes arrive; arrival() waits for some and says when (CLOCK_REALTIME, seconds; -1
  // when it does not know).
  void note_arrivals();
  asio::awaitable<double> arrival();

  void half_close();
  void reset();  // closes so that the server sees a reset
  void close();

 private:
  struct Shared;
  asio::awaitable<bool> fill();
  asio::awaitable<void> must_fill();
  asio::awaitable<bool> chunk(std::string& out);
  double receive_with_time();

  std::shared_ptr<Shared> shared_;
  asio::ip::tcp::endpoint server_;
  int receive_buffer_;
  asio::steady_timer deadline_, pause_timer_;
  size_t slow_bytes_ = 0;
  double pause_ = 0;
  std::string input_, events_;
};

}  // namespace carpool::soak
