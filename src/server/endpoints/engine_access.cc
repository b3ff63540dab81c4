// See engine_access.h.
#include "server/endpoints/engine_access.h"

#include <future>
#include <memory>

#include "server/api_error.h"

namespace carpool {
namespace {

json::object wait_for_engine(EngineLoop& loop, const EngineWork& work) {
  auto promise = std::make_shared<std::promise<void>>();
  std::future<void> done = promise->get_future();
  json::object result;
  std::exception_ptr error;
  // The loop alone keeps the promise: when it ends without having run the work, the promise breaks and we wake.
  loop.between_steps(
      [&result, &error, &work](Engine& engine) {
        try {
          result = work(engine);
        } catch (...) {
          error = std::current_exception();
        }
      },
      [promise = std::move(promise)] { promise->set_value(); });
  try {
    done.get();
  } catch (const std::future_error&) {
    throw unavailable("engine_dead", "the engine has stopped", 0);
  }
  if (error) std::rethrow_exception(error);
  return result;
}

}  // namespace

Served& loaded(Service& service) {
  if (Served* served = service.served_if_loaded()) return *served;
  return service.served();
}

boost::asio::awaitable<json::object> on_engine(const Call& call, const EngineWork& work) {
  EngineLoop& loop = *loaded(call.service).loop;
  const auto task = [&loop, &work] { return wait_for_engine(loop, work); };
  co_return co_await call.service.offload(call.caller, task);
}

json::object routing_totals(const RoutingCounters& c) {
  const auto mean = [&c](int64_t sum) {
    return c.layers > 0 ? static_cast<double>(sum) / static_cast<double>(c.layers) : 0;
  };
  json::object rows, steps;
  for (int r = 0; r < kPlainReasons; ++r)
    rows[name(static_cast<PlainReason>(r))] = c.plain_rows[static_cast<size_t>(r)];
  for (int r = 1; r < kPlainReasons; ++r)
    steps[name(static_cast<PlainReason>(r))] = c.plain_steps[static_cast<size_t>(r)];
  return {{"distinct_experts", mean(c.distinct_experts)},
          {"distinct_experts_plain", mean(c.distinct_plain)},
          {"layers", c.layers},
          {"distinct_experts_sum", c.distinct_experts},
          {"distinct_experts_plain_sum", c.distinct_plain},
          {"slots", c.slots},
          {"rerouted_tokens", c.rerouted_tokens},
          {"underfilled_tokens", c.underfilled_tokens},
          {"rows", rows},
          {"plain_steps", steps}};
}

}  // namespace carpool
