// What operators' endpoints share: the model's side in any state after loading, and work on the engine thread.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <functional>

#include "base/json.h"
#include "server/service.h"

namespace carpool {

// The model's side also while draining or dead, for endpoints that only look. ApiError 503 while loading.
Served& loaded(Service& service);

// Runs `work` between two steps and brings back what it returns or throws. Waits for the current step, on a worker
// thread: operators call this rarely. ApiError 503 when the engine ends first.
boost::asio::awaitable<json::object> on_engine(Service& service, std::function<json::object(Engine&)> work);

// The sums since the start and the means per MoE layer and step that people compare.
json::object routing_totals(const RoutingCounters& counters);

}  // namespace carpool
