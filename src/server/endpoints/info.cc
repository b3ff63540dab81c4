// What this server is: /version, /props (as llama.cpp's server has it), /server_info and /model_info (as SGLang has
// them).
#include <string>

#include "model/kv_cache.h"
#include "server/endpoints/engine_access.h"
#include "server/router.h"

namespace carpool {
namespace {

json::object sampling_defaults(const ModelConfig& config) {
  return {
      {"temperature", config.sampling.temperature}, {"top_k", config.sampling.top_k}, {"top_p", config.sampling.top_p}};
}

template <class T>
json::value or_null(const std::optional<T>& value) {
  return value ? json::value(*value) : json::value(nullptr);
}

const char* state_name(ServiceState state) {
  switch (state) {
    case ServiceState::kLoading:
      return "loading";
    case ServiceState::kReady:
      return "ready";
    case ServiceState::kDraining:
      return "draining";
    case ServiceState::kDead:
      break;
  }
  return "dead";
}

json::object internal_state(Service& service, const LoopState& state) {
  const RoutingTotals totals = service.metrics().routing();
  json::object decode = routing_totals(totals.decode);
  decode["steps"] = totals.decode_steps;
  decode["seconds"] = totals.decode_seconds;
  json::object all = routing_totals(totals.all);
  all["steps"] = totals.steps;
  return {{"policy", state.policy},
          {"routing_scope", name(service.options().scope)},
          {"routing_decode", decode},
          {"routing", all},
          {"last_gen_throughput", state.tokens_per_second},
          {"num_running_reqs", state.running},
          {"num_queue_reqs", state.waiting},
          {"kv_blocks", state.kv_total_blocks},
          {"kv_blocks_free", state.kv_free_blocks},
          {"kv_blocks_cached", state.kv_cached_blocks}};
}

json::object version(const Service& service) { return {{"version", service.options().version}}; }

json::object props(Service& service) {
  const Served& served = loaded(service);
  const ServiceOptions& options = service.options();
  const json::value* slots = options.server_args.if_contains("max_running_requests");
  json::object out{{"default_generation_settings",
                    json::object{{"n_ctx", served.config.context}, {"params", sampling_defaults(served.config)}}},
                   {"total_slots", slots ? *slots : json::value(nullptr)},
                   {"model_alias", options.served_model_name},
                   {"model_path", options.model_path},
                   {"chat_template", or_null(served.tokenizer_config.chat_template)},
                   {"bos_token", or_null(served.tokenizer_config.bos_token)},
                   {"eos_token", or_null(served.tokenizer_config.eos_token)},
                   {"build_info", options.version}};
  return out;
}

json::object server_info(Service& service) {
  const Served& served = loaded(service);
  const ServiceOptions& options = service.options();
  const LoopState state = served.loop->state();
  json::object out = options.server_args;
  out["model_path"] = options.model_path;
  out["tokenizer_path"] = options.model_path;
  out["served_model_name"] = options.served_model_name;
  out["version"] = options.version;
  out["status"] = state_name(service.state());
  out["context_length"] = served.config.context;
  out["reasoning_parser"] = served.format.reasoning_name();
  out["tool_call_parser"] = served.format.calls_name();
  out["max_total_num_tokens"] = int64_t{state.kv_total_blocks} * KvCache::kBlockTokens;
  out["memory"] = served.memory_text;
  out["model_files"] = service.model_files().what;
  out["bytes_per_expert"] = served.sizes.bytes_per_expert;
  out["dense_bytes_per_step"] = served.sizes.dense_bytes;
  out["read_gbps"] = served.sizes.read_gbps;
  out["internal_states"] = json::array{internal_state(service, state)};
  return out;
}

json::object model_info(Service& service) {
  const Served& served = loaded(service);
  const ServiceOptions& options = service.options();
  const ModelConfig& c = served.config;
  json::object out{{"model_path", options.model_path},
                   {"tokenizer_path", options.model_path},
                   {"is_generation", true},
                   {"preferred_sampling_params", sampling_defaults(c)},
                   {"weight_version", "default"},
                   {"has_image_understanding", false},
                   {"has_audio_understanding", false},
                   {"model_type", c.family},
                   {"max_model_len", c.context},
                   {"vocab_size", c.vocab},
                   {"num_experts", c.n_experts},
                   {"num_experts_per_tok", c.top_k},
                   {"moe_layers", c.moe_layers()}};
  return out;
}

}  // namespace

boost::asio::awaitable<void> get_version(Call& call) {
  Response response = json_response(version(call.service));
  co_await call.exchange.respond(std::move(response));
}

boost::asio::awaitable<void> get_props(Call& call) {
  Response response = json_response(props(call.service));
  co_await call.exchange.respond(std::move(response));
}

boost::asio::awaitable<void> get_server_info(Call& call) {
  Response response = json_response(server_info(call.service));
  co_await call.exchange.respond(std::move(response));
}

boost::asio::awaitable<void> get_model_info(Call& call) {
  Response response = json_response(model_info(call.service));
  co_await call.exchange.respond(std::move(response));
}

}  // namespace carpool
