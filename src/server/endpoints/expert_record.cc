// POST /start_, /stop_ and /dump_expert_distribution_record: how often each expert of each layer was used. Which
// experts ran is nearly the text that ran, so these are for operators, and a dump is an answer, never a file.
#include "server/endpoints/engine_access.h"
#include "server/router.h"

namespace carpool {
namespace {

using Counts = std::vector<std::vector<int64_t>>;  // [MoE layers, E]

json::object start(Engine& engine, Counts& counts) {
  const ModelConfig& c = engine.model().config();
  counts.assign(static_cast<size_t>(c.moe_layers()), std::vector<int64_t>(static_cast<size_t>(c.n_experts)));
  engine.record_experts(&counts);
  return {{"success", true}};
}

json::object stop(Engine& engine) {
  engine.record_experts(nullptr);
  return {{"success", true}};
}

json::object dump(Engine& engine, const Counts& counts) {
  json::array layers;
  for (const std::vector<int64_t>& layer : counts) layers.emplace_back(json::array(layer.begin(), layer.end()));
  return {{"moe_layers", engine.model().config().moe_layers()},
          {"num_experts", engine.model().config().n_experts},
          {"counts", layers}};
}

}  // namespace

boost::asio::awaitable<void> post_start_expert_record(Call& call) {
  Counts& counts = call.service.expert_counts();
  const EngineWork work = [&counts](Engine& engine) { return start(engine, counts); };
  const json::object answer = co_await on_engine(call, work);
  Response response = json_response(answer);
  co_await call.exchange.respond(std::move(response));
}

boost::asio::awaitable<void> post_stop_expert_record(Call& call) {
  const EngineWork work = stop;
  const json::object answer = co_await on_engine(call, work);
  Response response = json_response(answer);
  co_await call.exchange.respond(std::move(response));
}

boost::asio::awaitable<void> post_dump_expert_record(Call& call) {
  const Counts& counts = call.service.expert_counts();
  const EngineWork work = [&counts](Engine& engine) { return dump(engine, counts); };
  const json::object answer = co_await on_engine(call, work);
  Response response = json_response(answer);
  co_await call.exchange.respond(std::move(response));
}

}  // namespace carpool
