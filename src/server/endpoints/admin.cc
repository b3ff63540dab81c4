// What operators change while the server runs: the default routing policy, and the prefix cache.
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "routing/policy.h"
#include "server/api_error.h"
#include "server/endpoints/engine_access.h"
#include "server/fields.h"
#include "server/router.h"

namespace carpool {
namespace {

json::object policy_object(Service& service) {
  json::array allowed;
  for (const std::string& spec : service.options().allowed_policies) allowed.emplace_back(spec);
  return {
      {"policy", loaded(service).loop->state().policy}, {"allowed", allowed}, {"scope", name(service.options().scope)}};
}

// A policy that could never apply is refused, as at the start: what was asked for is what runs.
json::object change_policy(Engine& engine, const std::string& wanted, RoutingScope scope) {
  const std::string old = engine.policy().spec();
  try {
    std::unique_ptr<Policy> policy = make_policy(wanted);
    if (scope == RoutingScope::kIsolated && policy->spec() != "topk") {
      throw Error(ErrorKind::kConfig, "it would never apply: the server keeps all requests isolated (--routing-scope)");
    }
    engine.set_policy(std::move(policy));
  } catch (const Error& e) {
    throw invalid_value("policy", e.what());
  }
  return {{"old", old}, {"new", engine.policy().spec()}};
}

json::object flush(Engine& engine) {
  if (!engine.flush_prefix_cache()) {
    throw bad_request("not_idle", "the cache can be flushed only while nothing runs or waits");
  }
  return {{"success", true}, {"message", "Cache flushed."}};
}

void log_change(Log& log, const json::object& answer) {
  log.info("the routing policy was switched", {{"old", answer.at("old")}, {"new", answer.at("new")}});
}

}  // namespace

boost::asio::awaitable<void> get_policy(Call& call) {
  Response response = json_response(policy_object(call.service));
  co_await call.exchange.respond(std::move(response));
}

boost::asio::awaitable<void> post_policy(Call& call) {
  const json::object body = read_body(call.exchange.request().body);
  const std::string wanted = Fields(body).string("policy").value_or("");
  if (wanted.empty()) throw bad_request("missing_field", "policy must be a spec such as oea:k0=5", "policy");
  const RoutingScope scope = call.service.options().scope;
  const EngineWork work = [&wanted, scope](Engine& engine) { return change_policy(engine, wanted, scope); };
  const json::object answer = co_await on_engine(call, work);
  log_change(call.service.log(), answer);
  Response response = json_response(answer);
  co_await call.exchange.respond(std::move(response));
}

boost::asio::awaitable<void> post_flush_cache(Call& call) {
  const EngineWork work = flush;
  const json::object answer = co_await on_engine(call, work);
  Response response = json_response(answer);
  co_await call.exchange.respond(std::move(response));
}

}  // namespace carpool
