// GET /metrics: Prometheus' text format. What it says is in server/metrics.h.
#include "server/metrics.h"

#include "server/router.h"

namespace carpool {

boost::asio::awaitable<void> get_metrics(Call& call) {
  const Served* served = call.service.served_if_loaded();
  const bool operators = call.caller.admin || call.service.options().keys.empty();
  Response response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = call.service.metrics().render(served ? served->loop->state() : LoopState{}, operators);
  co_await call.exchange.respond(std::move(response));
}

}  // namespace carpool
