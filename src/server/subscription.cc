// Read first: subscription.h. State is shared by the engine thread, which appends, and a coroutine, which takes all.
#include "server/subscription.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "server/api_error.h"

namespace carpool {
namespace {

namespace asio = boost::asio;

using Clock = asio::steady_timer::clock_type;

constexpr double kLongest = 1e6;  // seconds; keeps clock arithmetic far from overflow

ApiError lost_error(std::string_view code) {
  if (code == "draining") return unavailable("draining", "the server is shutting down", 1);
  if (code == "internal_error") return ApiError(500, "server_error", "internal_error", "an internal error occurred");
  return unavailable("engine_dead", "the engine has stopped; the server is about to exit", 0);
}

}  // namespace

// The reader waits on a timer that is cancelled when something came. The engine thread posts that to the reader's
// executor, and only when the reader waits and no such post is under way: a wake-up cannot be lost, as it runs after
// the reader, on the same executor, has begun to wait; and many events cost one.
struct Subscription::State : EventSink, std::enable_shared_from_this<Subscription::State> {
  State(EngineLoop& loop_, asio::any_io_executor executor_)
      : loop(loop_), executor(std::move(executor_)), timer(std::in_place, executor) {}

  void on_event(const Event& event) override {
    const std::lock_guard lock(mutex);
    if (closed) return;
    ended = ended || event.finish != FinishReason::kNone;
    events.push_back(event);
    wake();
  }

  void on_lost(const char* code) override {
    const std::lock_guard lock(mutex);
    if (closed) return;
    ended = true;
    lost = code;
    wake();
  }

  // `mutex` is held, so that close() cannot take the executor away meanwhile.
  void wake() {
    if (!waiting || std::exchange(posted, true)) return;
    asio::post(executor, [self = shared_from_this()] {
      const std::lock_guard lock(self->mutex);
      self->posted = false;
      if (self->waiting && self->timer) self->timer->cancel();
    });
  }

  // The loop may hold this longer than the executor lives: nothing that belongs to the executor stays.
  void close() {
    const std::lock_guard lock(mutex);
    closed = true;
    timer.reset();
    executor = {};
    events.clear();
  }

  EngineLoop& loop;
  RequestId id = 0;
  std::mutex mutex;  // guards what follows
  asio::any_io_executor executor;
  std::optional<asio::steady_timer> timer;  // used on the executor alone
  std::vector<Event> events;
  std::string lost;
  bool ended = false, closed = false, waiting = false, posted = false;
};

Subscription::Subscription(EngineLoop& loop, asio::any_io_executor executor, Request request)
    : state_(std::make_shared<State>(loop, std::move(executor))) {
  state_->id = loop.submit(std::move(request), state_);
}

Subscription::~Subscription() {
  if (!state_) return;
  bool ended;
  {
    const std::lock_guard lock(state_->mutex);
    ended = state_->ended;
  }
  if (!ended) state_->loop.cancel(state_->id);
  state_->close();
}

Subscription::Subscription(Subscription&&) noexcept = default;

RequestId Subscription::id() const { return state_->id; }

asio::awaitable<std::vector<Event>> Subscription::next(double timeout_s) {
  const std::shared_ptr<State> state = state_;
  const auto timeout = std::chrono::duration<double>(std::clamp(timeout_s, 0.0, kLongest));
  const Clock::time_point deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout);
  for (;;) {
    {
      const std::lock_guard lock(state->mutex);
      state->waiting = false;
      if (!state->events.empty()) co_return std::exchange(state->events, {});
      if (!state->lost.empty()) throw lost_error(state->lost);
      if (Clock::now() >= deadline) co_return std::vector<Event>();
      state->waiting = true;
    }
    boost::system::error_code ignored;
    state->timer->expires_at(deadline);
    co_await state->timer->async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

void Subscription::cancel() { state_->loop.cancel(state_->id); }

}  // namespace carpool
