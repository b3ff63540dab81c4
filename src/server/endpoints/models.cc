// GET /v1/models and /v1/models/{name}: the one model that is served.
#include <fmt/format.h>

#include <string>

#include "server/endpoints/engine_access.h"
#include "server/router.h"

namespace carpool {
namespace {

json::object model_object(const Service& service, const ModelConfig& config) {
  const std::string& name = service.options().served_model_name;
  return {{"id", name},   {"object", "model"}, {"created", service.started()},   {"owned_by", "carpool"},
          {"root", name}, {"parent", nullptr}, {"max_model_len", config.context}};
}

json::object list_of(json::object model) {
  json::array models;
  models.push_back(std::move(model));
  return {{"object", "list"}, {"data", std::move(models)}};
}

}  // namespace

boost::asio::awaitable<void> get_models(Call& call) {
  Response response = json_response(list_of(model_object(call.service, loaded(call.service).config)));
  co_await call.exchange.respond(std::move(response));
}

boost::asio::awaitable<void> get_model(Call& call) {
  constexpr std::string_view kStem = "/v1/models/";
  const ModelConfig& config = loaded(call.service).config;
  const std::string wanted = call.exchange.request().path.substr(kStem.size());
  if (wanted != call.service.options().served_model_name) call.service.refuse_model(wanted);
  Response response = json_response(model_object(call.service, config));
  co_await call.exchange.respond(std::move(response));
}

}  // namespace carpool
