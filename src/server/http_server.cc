// The acceptor, the threads and the list of sessions. Read first: http_server.h; then http_session.cc.
#include "server/http_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "server/http_session.h"

namespace carpool {
namespace {

using boost::system::error_code;
using tcp = asio::ip::tcp;

constexpr int kBacklog = 4096;          // the most the kernel keeps by default (net.core.somaxconn)
constexpr int kSendBuffer = 256 << 10;  // bytes that the kernel holds for a client that does not read
constexpr std::chrono::milliseconds kAcceptPause{20}, kRoomPause{100};
constexpr std::chrono::seconds kAbortWait{10};

asio::ip::address address_of(const std::string& host) {
  error_code error;
  const asio::ip::address address = asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, error);
  if (error) throw Error(ErrorKind::kUsage, fmt::format("\"{}\" is no address to listen at", escape(host)));
  return address;
}

ApiError too_many_connections() { return unavailable("overloaded", "there are too many connections", 1); }

// Says `text` to a client for whom there is no session, as well as that goes without waiting, and closes.
void refuse_at_once(int descriptor, const std::string& text) {
  (void)!::send(descriptor, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::shutdown(descriptor, SHUT_WR);
  // Unread bytes would turn the close into a reset, which can overtake the answer.
  std::array<char, 4096> dropped;
  for (int i = 0; i < 8 && ::recv(descriptor, dropped.data(), dropped.size(), MSG_DONTWAIT) > 0; ++i) {
  }
}

int reserve_descriptor() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }

}  // namespace

struct HttpServer::Impl {
  Impl(const HttpOptions& options_given, Handler handler, HttpObserver observer);
  ~Impl();

  void bind();
  asio::awaitable<void> accept_all();
  void admit(tcp::socket socket);
  void begin(const std::shared_ptr<Session>& session, bool refused);
  void ended(const std::shared_ptr<Session>& session, bool refused);
  bool all_gone() const { return !accepting && open + refusing == 0; }  // under `mutex`
  bool make_room();
  bool refuse_with_reserve();

  const HttpOptions options;
  SessionShared shared;
  const ApiError refusal = too_many_connections();
  asio::io_context context;
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  asio::strand<asio::io_context::executor_type> accept_strand{context.get_executor()};
  tcp::acceptor acceptor{accept_strand};
  int port = 0;
  int reserve = reserve_descriptor();
  std::vector<std::thread> threads;

  std::mutex mutex;
  std::condition_variable none_left;
  std::unordered_set<std::shared_ptr<Session>> sessions;  // guarded by `mutex`; refused ones, too
  bool accepting = false;                                 // guarded by `mutex`
  std::atomic<int> open{0}, refusing{0};                  // with those that are not in the list yet
  Connection::Clock::time_point no_room_before{};         // used by accept_all() alone
};

HttpServer::Impl::Impl(const HttpOptions& options_given, Handler handler, HttpObserver observer)
    : options(options_given) {
  shared.limits = options.limits;
  shared.handler = std::move(handler);
  shared.observer = std::move(observer);
}

HttpServer::Impl::~Impl() {
  if (reserve >= 0) ::close(reserve);
}

void HttpServer::Impl::bind() {
  const tcp::endpoint endpoint(address_of(options.host), static_cast<unsigned short>(options.port));
  error_code error;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(kBacklog, error);
  if (error)
    throw Error(ErrorKind::kUnavailable,
                fmt::format("cannot listen at {} port {}: {}", options.host, options.port, error.message()));
  port = acceptor.local_endpoint().port();
}

asio::awaitable<void> HttpServer::Impl::accept_all() {
  asio::steady_timer pause(accept_strand);
  while (acceptor.is_open()) {
    error_code error;
    tcp::socket socket = co_await acceptor.async_accept(asio::any_io_executor(asio::make_strand(context)),
                                                        asio::redirect_error(asio::use_awaitable, error));
    if (!error) {
      try {
        admit(std::move(socket));
      } catch (const std::bad_alloc&) {  // this client goes, the server stays
      }
    } else if (acceptor.is_open() && error != asio::error::operation_aborted &&
               error != asio::error::connection_aborted) {
      // No descriptor or no memory for another socket: the one in reserve serves to say so.
      if (error == asio::error::no_descriptors && refuse_with_reserve()) continue;
      error_code ignored;
      pause.expires_after(kAcceptPause);
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
  }
  const std::lock_guard lock(mutex);
  accepting = false;
  none_left.notify_all();
}

void HttpServer::Impl::admit(tcp::socket socket) {
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  socket.set_option(asio::socket_base::send_buffer_size(kSendBuffer), ignored);
  // A client that vanished without a word acknowledges nothing; that, too, ends after the write-stall time.
  const auto unacknowledged_ms = static_cast<unsigned>(options.limits.write_stall_s * 1000);
  setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms, sizeof unacknowledged_ms);
  const bool refused = open >= options.limits.connections && !make_room();
  // Those who get a refusal keep their socket for a moment so that it arrives; of that, too, there is a limit.
  if (refused && refusing >= options.limits.connections) {
    shared.refused(refusal);
    refuse_at_once(socket.native_handle(), refusal_text(refusal, shared.new_request_id()));
    return;
  }
  const auto session = std::make_shared<Session>(std::move(socket), shared);
  (refused ? refusing : open).fetch_add(1);
  if (!refused && shared.observer.connections) shared.observer.connections(1);
  try {
    asio::post(session->executor(), [this, session, refused] { begin(session, refused); });
  } catch (...) {
    ended(session, refused);
    throw;
  }
}

// On the session's executor: as soon as it is in the list, stop() may have it aborted, which happens there, too, and so
// never while co_spawn() puts its handler into the cancellation slot. What stop() does not find in the list sees
// `aborting`.
void HttpServer::Impl::begin(const std::shared_ptr<Session>& session, bool refused) {
  bool begun = false;
  try {
    {
      const std::lock_guard lock(mutex);
      begun = !shared.aborting;
      if (begun) sessions.insert(session);
    }
    if (begun) {
      asio::co_spawn(
          session->executor(), session->run(refused ? &refusal : nullptr),
          asio::bind_cancellation_slot(session->cancellation_slot(),
                                       [this, session, refused](std::exception_ptr) { ended(session, refused); }));
    }
  } catch (const std::bad_alloc&) {  // this client goes, the server stays
    begun = false;
  }
  if (!begun) return ended(session, refused);
  if (shared.stopping) session->close_if_idle();
}

void HttpServer::Impl::ended(const std::shared_ptr<Session>& session, bool refused) {
  (refused ? refusing : open).fetch_sub(1);
  if (!refused && shared.observer.connections) shared.observer.connections(-1);
  const std::lock_guard lock(mutex);
  sessions.erase(session);
  none_left.notify_all();
}

// Closes the connection that has been idle for longest, so that idle ones cannot keep others out.
bool HttpServer::Impl::make_room() {
  const Connection::Clock::time_point now = Connection::Clock::now();
  if (now < no_room_before) return false;
  const int64_t latest = (now - seconds(options.limits.give_way_s)).time_since_epoch().count();
  std::shared_ptr<Session> oldest;
  {
    const std::lock_guard lock(mutex);
    int64_t since = latest;
    for (const auto& session : sessions) {
      const int64_t idle_since = session->idle_since();
      if (idle_since == 0 || idle_since >= since) continue;
      since = idle_since;
      oldest = session;
    }
  }
  if (!oldest) {
    no_room_before = now + kRoomPause;  // a flood of clients does not look through the list for each of them
    return false;
  }
  return oldest->give_way();
}

// Accepts one client with the descriptor in reserve, refuses it and closes. False when that did not work.
bool HttpServer::Impl::refuse_with_reserve() {
  if (reserve >= 0) ::close(reserve);
  const int descriptor = ::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (descriptor >= 0) {
    shared.refused(refusal);
    refuse_at_once(descriptor, refusal_text(refusal, shared.new_request_id()));
    ::close(descriptor);
  }
  reserve = reserve_descriptor();
  return descriptor >= 0;
}

HttpServer::HttpServer(const HttpOptions& options, Handler handler, HttpObserver observer)
    : impl_(std::make_unique<Impl>(options, std::move(handler), std::move(observer))) {
  impl_->bind();
}

HttpServer::~HttpServer() { stop(); }

void HttpServer::stop() {
  if (impl_->context.stopped()) return;
  stop_accepting();
  impl_->shared.aborting = true;
  {
    std::unique_lock lock(impl_->mutex);
    for (const auto& session : impl_->sessions) session->abort();
    // Normally they end at once. Work that a handler started elsewhere and waits for is given time to come back;
    // nothing of a session survives the context below.
    if (!impl_->threads.empty()) impl_->none_left.wait_for(lock, kAbortWait, [this] { return impl_->all_gone(); });
  }
  impl_->work.reset();
  impl_->context.stop();
  for (std::thread& thread : impl_->threads) thread.join();
}

int HttpServer::port() const { return impl_->port; }

int HttpServer::connections() const { return impl_->open; }

void HttpServer::start() {
  CARPOOL_CHECK(impl_->threads.empty());
  impl_->accepting = true;
  asio::co_spawn(impl_->accept_strand, impl_->accept_all(), asio::detached);
  for (int i = 0; i < std::max(1, impl_->options.threads); ++i)
    impl_->threads.emplace_back([this] { impl_->context.run(); });
}

void HttpServer::stop_accepting() {
  impl_->shared.stopping = true;
  asio::post(impl_->accept_strand, [impl = impl_.get()] {
    error_code ignored;
    impl->acceptor.close(ignored);
  });
  const std::lock_guard lock(impl_->mutex);
  for (const auto& session : impl_->sessions) session->close_if_idle();
}

asio::any_io_executor HttpServer::executor() { return impl_->context.get_executor(); }

size_t raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = before;
  return static_cast<size_t>(limit.rlim_cur);
}

}  // namespace carpool
