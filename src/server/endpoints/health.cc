// GET /health: can this server generate? 200 only while the engine makes steps or looks for work; and the same by
// generating a token, GET /health_generate.
#include <fmt/format.h>

#include "base/time.h"
#include "server/api_error.h"
#include "server/router.h"
#include "server/subscription.h"

namespace carpool {
namespace {

constexpr double kPatience = 30;  // seconds for one token

Response healthy() { return json_response(json::object{{"status", "ok"}}); }

// The status beside the error: what a probe's log shows first.
Response not_healthy(const char* status, const ApiError& error, json::object more = {}) {
  json::object body{{"status", status}};
  for (const auto& entry : more) body[entry.key()] = entry.value();
  body["error"] = error.body().at("error");
  Response response = json_response(body, error.status());
  if (error.retry_after() > 0) response.headers.emplace_back("retry-after", std::to_string(error.retry_after()));
  return response;
}

// A request for one token that no other notices.
Request probe(int tenant) {
  Request request;
  request.prompt.push_back(0);
  request.max_tokens = 1;
  request.ignore_eos = true;
  request.isolated = true;
  request.cache_prefix = false;
  request.tenant = tenant;
  return request;
}

Response loading_response(const LoadProgress& progress) {
  const int retry = progress.eta_s > 0 ? static_cast<int>(progress.eta_s) + 1 : 5;
  return not_healthy("loading", unavailable("loading", "the model is loading", retry),
                     {{"stage", progress.stage},
                      {"percent", static_cast<int>(progress.share * 100)},
                      {"eta_s", progress.eta_s < 0 ? json::value(nullptr) : json::value(progress.eta_s)}});
}

Response health_of(Service& service) {
  switch (service.state()) {
    case ServiceState::kLoading:
      return loading_response(service.load_progress());
    case ServiceState::kDraining:
      return not_healthy("draining", unavailable("draining", "the server is shutting down", 5));
    case ServiceState::kDead:
      return not_healthy("dead", unavailable("engine_dead", "the engine has stopped after an internal error", 0));
    case ServiceState::kReady:
      break;
  }
  const LoopState state = service.served().loop->state();
  const double silent = now_seconds() - state.last_progress;
  if (!state.alive || silent > service.options().stall_s) {
    return not_healthy("stuck",
                       unavailable("engine_dead", fmt::format("the engine has made no step for {:.0f} s", silent), 0));
  }
  json::object body{{"status", "ok"}, {"running", state.running}, {"waiting", state.waiting}};
  // It generates, and perhaps not what it should; which file it is, is for those with a key (/server_info).
  if (service.model_files().written) body["model_files"] = "written";
  return json_response(body);
}

}  // namespace

boost::asio::awaitable<void> get_health(Call& call) {
  Response response = health_of(call.service);
  co_await call.exchange.respond(std::move(response));
}

boost::asio::awaitable<void> get_health_generate(Call& call) {
  Served& served = call.service.served();
  Request request = probe(call.caller.tenant);
  Subscription subscription(*served.loop, call.exchange.executor(), std::move(request));
  const std::vector<Event> events = co_await subscription.next(kPatience);
  if (events.empty()) throw unavailable("overloaded", fmt::format("no token within {:.0f} s", kPatience), 5);
  if (events.back().finish == FinishReason::kNumericalError) {
    throw ApiError(500, "server_error", "numerical_error", "the model's logits are not finite");
  }
  Response response = healthy();
  co_await call.exchange.respond(std::move(response));
}

}  // namespace carpool
