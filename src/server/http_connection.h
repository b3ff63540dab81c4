// One TCP connection as bytes: what arrived, what is to be sent, and whether the other side is still there.
//
// Owns Connection. It reads all the time (up to a bound), so a client that leaves is seen whatever the session is
// doing, and bytes of its next request wait here. Writing is a queue that is sent at the end of the turn, so that the
// pieces of one turn share one system call; a client that takes nothing for too long counts as gone. Everything but the
// constructor runs on the socket's executor. Does not know HTTP. Read next: http_session.h.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "server/http.h"

namespace carpool {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kReadAhead = 16 << 10;   // bytes of input kept for a session that is busy
  static constexpr size_t kWriteAhead = 64 << 10;  // of output, after which a writer should wait

  Connection(asio::ip::tcp::socket socket, double write_stall_s);

  asio::any_io_executor executor() { return socket_.get_executor(); }
  void start();  // begins to read; once

  // The client sends nothing more, or is gone altogether.
  bool ended() const { return ended_; }
  // Nothing can be sent any more: reset, stalled or closed.
  bool broken() const { return broken_; }
  // Calls `callback` once when ended() turns true, at once if it is; an empty one takes the last one back.
  void on_end(std::function<void()> callback);

  std::string_view input() const { return input_; }
  void consume(size_t bytes);  // from the front of the input
  // Waits until there is more input or there will be none. False when the deadline came first.
  asio::awaitable<bool> more_input(Clock::time_point deadline);

  void write(std::string_view bytes);
  // Waits until no more than `most` bytes are still to be sent. Throws ClientGone when they cannot be.
  asio::awaitable<void> sent(size_t most = 0);

  void shutdown_send();
  void close();

 private:
  void read_when_ready();
  void read();
  void check_peer();
  void flush();
  void wait_writable();
  void end();
  void break_off();

  asio::ip::tcp::socket socket_;
  const Clock::duration write_stall_;
  asio::steady_timer input_changed_, output_changed_;  // condition variables: cancelled when something happened
  asio::steady_timer stall_, peer_check_;
  std::string input_, output_;
  size_t output_sent_ = 0;
  bool reading_ = false, checking_peer_ = false, flush_posted_ = false, writing_ = false;
  bool ended_ = false, broken_ = false;
  std::function<void()> on_end_;
};

// The clock's duration of so many seconds.
Connection::Clock::duration seconds(double value);

}  // namespace carpool
