// Read first: http_connection.h. All waiting is for readiness; bytes move with calls that never block.
#include "server/http_connection.h"

#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace carpool {
namespace {

using boost::system::error_code;

constexpr std::chrono::milliseconds kPeerCheck{250};

bool would_block(const error_code& error) {
  return error == asio::error::would_block || error == asio::error::try_again || error == asio::error::interrupted;
}

}  // namespace

Connection::Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Connection::Clock::duration>(std::chrono::duration<double>(value));
}

Connection::Connection(asio::ip::tcp::socket socket, double write_stall_s)
    : socket_(std::move(socket)),
      write_stall_(seconds(write_stall_s)),
      input_changed_(socket_.get_executor()),
      output_changed_(socket_.get_executor()),
      stall_(socket_.get_executor()),
      peer_check_(socket_.get_executor()) {}

void Connection::start() {
  error_code error;
  socket_.non_blocking(true, error);
  if (error) return break_off();
  read_when_ready();
}

void Connection::on_end(std::function<void()> callback) {
  on_end_ = std::move(callback);
  if (!ended_ || !on_end_) return;
  const auto call = std::exchange(on_end_, {});
  call();
}

void Connection::consume(size_t bytes) {
  input_.erase(0, bytes);
  if (input_.empty()) std::string().swap(input_);  // idle connections hold no memory
  read_when_ready();
}

asio::awaitable<bool> Connection::more_input(Clock::time_point deadline) {
  const size_t before = input_.size();
  while (input_.size() == before && !ended_) {
    if (Clock::now() >= deadline) co_return false;
    input_changed_.expires_at(deadline);
    error_code ignored;
    co_await input_changed_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  co_return true;
}

void Connection::read_when_ready() {
  if (reading_ || ended_) return;
  if (input_.size() >= kReadAhead) return check_peer();
  reading_ = true;
  socket_.async_wait(asio::ip::tcp::socket::wait_read, [self = shared_from_this()](const error_code& error) {
    self->reading_ = false;
    if (!error) self->read();
  });
}

void Connection::read() {
  if (ended_) return;
  std::array<char, kReadAhead> bytes;
  error_code error;
  const size_t room = kReadAhead - std::min(kReadAhead, input_.size());
  const size_t got = room > 0 ? socket_.read_some(asio::buffer(bytes.data(), room), error) : 0;
  if (error == asio::error::eof) return end();
  if (error && !would_block(error)) return break_off();
  if (got > 0) {
    input_.append(bytes.data(), got);
    input_changed_.cancel();
  }
  read_when_ready();
}

// While the input is full nothing is read, so the end of the stream cannot be read either: ask the kernel now and then.
void Connection::check_peer() {
  if (checking_peer_) return;
  checking_peer_ = true;
  peer_check_.expires_after(kPeerCheck);
  peer_check_.async_wait([self = shared_from_this()](const error_code& error) {
    self->checking_peer_ = false;
    if (error || self->ended_) return;
    if (self->input_.size() < kReadAhead) return;  // reading again
    tcp_info info{};
    socklen_t size = sizeof info;
    if (getsockopt(self->socket_.native_handle(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return self->break_off();
    if (info.tcpi_state == TCP_CLOSE) return self->break_off();
    if (info.tcpi_state == TCP_ESTABLISHED || info.tcpi_state == TCP_FIN_WAIT1 || info.tcpi_state == TCP_FIN_WAIT2)
      return self->check_peer();
    self->end();
  });
}

void Connection::write(std::string_view bytes) {
  if (broken_) return;
  output_.append(bytes);
  if (flush_posted_ || writing_) return;
  flush_posted_ = true;
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->flush_posted_ = false;
    if (!self->writing_) self->flush();
  });
}

asio::awaitable<void> Connection::sent(size_t most) {
  while (output_.size() - output_sent_ > most && !broken_) {
    output_changed_.expires_at(Clock::time_point::max());
    error_code ignored;
    co_await output_changed_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  if (broken_) throw ClientGone{};
}

void Connection::flush() {
  while (!broken_ && output_sent_ < output_.size()) {
    error_code error;
    const auto rest = asio::buffer(output_.data() + output_sent_, output_.size() - output_sent_);
    const size_t taken = socket_.write_some(rest, error);
    if (would_block(error)) {
      output_changed_.cancel();
      return wait_writable();
    }
    if (error) return break_off();
    output_sent_ += taken;
  }
  output_.clear();
  output_sent_ = 0;
  if (output_.capacity() > 2 * kWriteAhead) std::string().swap(output_);
  output_changed_.cancel();
}

void Connection::wait_writable() {
  writing_ = true;
  stall_.expires_after(write_stall_);
  stall_.async_wait([self = shared_from_this()](const error_code& error) {
    // A wait that was renewed meanwhile has a later expiry.
    if (!error && self->writing_ && self->stall_.expiry() <= Clock::now()) self->break_off();
  });
  socket_.async_wait(asio::ip::tcp::socket::wait_write, [self = shared_from_this()](const error_code& error) {
    self->writing_ = false;
    self->stall_.cancel();
    if (self->output_sent_ >= kWriteAhead && self->output_sent_ * 2 >= self->output_.size()) {
      self->output_.erase(0, self->output_sent_);
      self->output_sent_ = 0;
    }
    if (!error) self->flush();
  });
}

void Connection::end() {
  ended_ = true;
  input_changed_.cancel();
  if (!on_end_) return;
  const auto call = std::exchange(on_end_, {});
  call();
}

void Connection::break_off() {
  if (broken_) return;
  broken_ = true;
  error_code ignored;
  socket_.close(ignored);
  stall_.cancel();
  peer_check_.cancel();
  std::string().swap(output_);
  output_sent_ = 0;
  output_changed_.cancel();
  if (!ended_) end();
}

void Connection::shutdown_send() {
  error_code ignored;
  if (!broken_) socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
}

void Connection::close() { break_off(); }

}  // namespace carpool
