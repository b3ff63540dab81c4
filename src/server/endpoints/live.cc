// GET /live: what the batch and its routing do at this moment, for the page at / and for anybody who watches.
#include "model/kv_cache.h"
#include "server/endpoints/engine_access.h"
#include "server/router.h"

namespace carpool {
namespace {

json::object live_object(Service& service) {
  const Served& served = loaded(service);
  const LoopState state = served.loop->state();
  const LiveRouting routing = service.metrics().live();
  const bool known = !routing.layers.empty();
  const auto if_known = [&](double value) { return known ? json::value(value) : json::value(nullptr); };
  json::array layers, allowed;
  for (const LiveRouting::Layer& layer : routing.layers) {
    layers.emplace_back(json::object{{"experts", layer.loaded}, {"plain", layer.plain}});
  }
  for (const std::string& spec : service.options().allowed_policies) allowed.emplace_back(spec);
  const int used = state.kv_total_blocks - state.kv_free_blocks - state.kv_cached_blocks;
  return {{"model", service.options().served_model_name},
          {"policy", state.policy},
          {"scope", name(service.options().scope)},
          {"allowed", allowed},
          {"running", state.running},
          {"waiting", state.waiting},
          {"tokens_per_second", state.tokens_per_second},
          {"kv_share", state.kv_total_blocks > 0 ? static_cast<double>(used) / state.kv_total_blocks : 0.0},
          {"steps", routing.steps},
          {"rows", if_known(routing.rows)},
          {"n_experts", served.config.n_experts},
          {"top_k", served.config.top_k},
          {"experts", if_known(routing.loaded)},
          {"plain", if_known(routing.plain)},
          {"rerouted_share", if_known(routing.rerouted_share)},
          {"layers", layers}};
}

}  // namespace

boost::asio::awaitable<void> get_live(Call& call) {
  Response response = json_response(live_object(call.service));
  co_await call.exchange.respond(std::move(response));
}

}  // namespace carpool
