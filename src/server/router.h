// Which handler answers which method and path, and who may call it.
//
// Owns the table made from routes.def and the one place where every request passes: unknown path (404), wrong method
// (405 + Allow), HEAD and OPTIONS, origin and host checks (403), key (401), the handler, and the turning of every
// exception into the one error shape. A new endpoint is endpoints/<e>.cc with its test and one line of routes.def.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <memory>
#include <vector>

#include "server/http.h"
#include "server/service.h"

namespace carpool {

// kOpen: liveness only. kOperator: open while no keys are set, else the admin key. kAdmin: always the admin key.
enum class Access { kOpen, kKey, kOperator, kAdmin };

// What a handler gets. Everything outlives the coroutine.
struct Call {
  Exchange& exchange;
  Service& service;
  Caller caller;
  // Set by the handler once known, for the log.
  std::string routing;
  int prompt_tokens = -1, completion_tokens = -1;
  int cached_tokens = -1;  // of the first choice, as is `prefix`: why it were not more
  const char* prefix = "";
  // Of a request that the engine does not know yet: whether it was aborted, and by which names it can be.
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
  std::vector<std::shared_ptr<void>> early_names;
};

using Handler = boost::asio::awaitable<void> (*)(Call& call);

struct Route {
  const char* method;
  const char* path;  // "/v1/models/*": the last segment is free
  Access access;
  Handler handler;
};
const std::vector<Route>& routes();

// Answers one exchange completely, whatever happens.
boost::asio::awaitable<void> answer(Exchange& exchange, Service& service);

}  // namespace carpool
