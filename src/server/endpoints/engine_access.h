// What operators' endpoints share: the model's side in any state after loading, and work on the engine thread.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <functional>

#include "base/json.h"
#include "server/router.h"

namespace carpool {

// The model's side also while draining or dead, for endpoints that only look. ApiError 503 while loading.
Served& loaded(Service& service);

using EngineWork = std::function<json::object(Engine&)>;

// Runs `work` between two steps and brings back what it returns or throws. Waits for the current step, on a worker
// thread: operators call this rarely. ApiError 503 when the engine ends first. `work` must be a variable of the caller:
// GCC 12 destroys temporaries of an expression with co_await twice.
boost::asio::awaitable<json::object> on_engine(const Call& call, const EngineWork& work);
boost::asio::awaitable<json::object> on_engine(const Call& call, EngineWork&& work) = delete;

// The sums since the start and the means per MoE layer and step that people compare.
json::object routing_totals(const RoutingCounters& counters);

}  // namespace carpool
