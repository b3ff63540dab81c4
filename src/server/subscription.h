// The events of one engine request, awaited by a coroutine on an I/O thread.
//
// Owns Subscription: the hand-over from the engine thread to an executor, and the promise that a request whose handler
// goes away (client gone, error, shutdown) is cancelled within one step. Read next: engine_loop.h, http.h.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <memory>
#include <vector>

#include "server/engine_loop.h"

namespace carpool {

class Subscription {
 public:
  // Submits; throws what EngineLoop::submit throws.
  Subscription(EngineLoop& loop, boost::asio::any_io_executor executor, Request request);
  ~Subscription();  // cancels when the request has not ended
  Subscription(Subscription&&) noexcept;
  Subscription& operator=(Subscription&&) = delete;

  RequestId id() const;
  // All events since the last call, at least one; empty when `timeout_s` passed without any (time for a ping). Throws
  // ApiError 503 when the request was lost. A reader that is slow gets many events at once; what waits is bounded by
  // the request's own max_tokens.
  boost::asio::awaitable<std::vector<Event>> next(double timeout_s);
  void cancel();  // next() then brings the last event

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace carpool
