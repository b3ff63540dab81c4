// States, keys, routing wishes and the aborts register. See service.h.
#include "server/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "routing/policy.h"
#include "server/constraint_cache.h"

namespace carpool {
namespace {

constexpr int kWorkers = 2;        // threads that tokenise, render templates and make grammars
constexpr int kRetryLoading = 5;   // seconds, when the load does not say how long it takes
constexpr size_t kShownName = 80;  // characters of a client's text in an error

// Whether the texts are equal, in time that depends on their lengths alone.
bool equal_in_constant_time(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char other = secret.empty() ? '\0' : secret[i % secret.size()];
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(other);
  }
  return !secret.empty() && difference == 0;
}

// The key a request brings: "Authorization: Bearer KEY", or "x-api-key: KEY"; empty without.
std::string_view key_of(const HttpRequest& request) {
  const std::string_view authorization = request.header("authorization");
  if (authorization.empty()) return request.header("x-api-key");
  constexpr std::string_view kBearer = "bearer ";
  if (authorization.size() < kBearer.size()) return "";
  for (size_t i = 0; i < kBearer.size(); ++i) {
    const char c = authorization[i];
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c) != kBearer[i]) return "";
  }
  return authorization.substr(kBearer.size());
}

std::string canonical(const std::string& spec) { return make_policy(spec)->spec(); }

std::vector<int> special_tokens(const OutputFormat& format, const Tokenizer& tokenizer) {
  std::vector<int> ids;
  for (const std::string_view tag : format.tags()) {
    const std::optional<int> id = tokenizer.token_id(tag);
    if (id && tokenizer.is_special(*id)) ids.push_back(*id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

FairWorkers::Limits worker_limits(const ServiceOptions& options) {
  FairWorkers::Limits limits;
  limits.waiting = options.max_waiting_work;
  limits.tenants = static_cast<int>(options.keys.size()) + (options.admin_key.empty() ? 0 : 1);
  return limits;
}

// Tags that are special tokens would have no text.
void choose_format(const ServiceOptions& options, Served& served) {
  const std::string& chat_template = served.tokenizer_config.chat_template.value_or("");
  served.format = OutputFormat::choose(options.reasoning_parser, options.tool_call_parser, chat_template);
  served.reasoning_tokens = special_tokens({served.format.reasoning, nullptr}, served.tokenizer);
  served.format_tokens = special_tokens(served.format, served.tokenizer);
}

}  // namespace

const char* name(RoutingScope scope) {
  switch (scope) {
    case RoutingScope::kIsolated:
      return "isolated";
    case RoutingScope::kTenant:
      return "tenant";
    case RoutingScope::kShared:
      break;
  }
  return "shared";
}

struct Service::Impl {
  std::vector<std::string> allowed;  // canonical specs
  std::vector<std::vector<int64_t>> expert_counts;
  std::function<void()> on_death;

  mutable std::mutex mutex;
  LoadProgress progress;
  ModelFiles files;
  struct Target {
    std::optional<RequestId> id;                 // of the engine's request
    std::shared_ptr<std::atomic<bool>> aborted;  // or of one that is being prepared
  };
  std::multimap<std::pair<int, std::string>, Target> abortable;  // by tenant and name
  std::shared_ptr<void> name(const Caller& caller, const std::string& rid, Target target);

  std::unique_ptr<Served> served;  // set once, by ready()
  std::unique_ptr<ConstraintCache> constraints;
  std::atomic<Served*> ready{nullptr};  // the same, for other threads
};

Service::Service(ServiceOptions options, Log& log)
    : options_(std::move(options)),
      started_(std::time(nullptr)),
      log_(log),
      metrics_(options_.served_model_name),
      impl_(std::make_unique<Impl>()),
      workers_(kWorkers, worker_limits(options_)) {
  for (const std::string& spec : options_.allowed_policies) impl_->allowed.push_back(canonical(spec));
}

Service::~Service() { stop(); }

void Service::stop() {
  ServiceState expected = ServiceState::kReady;
  state_.compare_exchange_strong(expected, ServiceState::kDraining);
  if (Served* served = served_if_loaded()) served->loop->stop();
  workers_.stop();
}

void Service::loading(const LoadProgress& progress) {
  const std::lock_guard lock(impl_->mutex);
  impl_->progress = progress;
}

LoadProgress Service::load_progress() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->progress;
}

void Service::model_files(ModelFiles files) {
  const std::lock_guard lock(impl_->mutex);
  impl_->files = std::move(files);
}

Service::ModelFiles Service::model_files() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->files;
}

void Service::ready(std::unique_ptr<Served> served) {
  CARPOOL_CHECK(!impl_->served);
  metrics_.set_sizes(served->sizes);
  choose_format(options_, *served);
  LoopObserver observer;
  observer.step = [this](const Engine& engine, const StepReport& report) { metrics_.step(engine, report); };
  observer.inter_token = [this](double seconds) { metrics_.inter_token(seconds); };
  observer.finished = [this](FinishReason reason, const RequestStats& stats, const RequestTimes& times) {
    metrics_.finished(reason, stats, times);
  };
  observer.died = [this](const std::string& why) { died(why); };
  served->loop->observe(std::move(observer));
  served->loop->start();
  impl_->served = std::move(served);
  impl_->constraints = std::make_unique<ConstraintCache>(impl_->served->tokenizer, impl_->served->config);
  impl_->ready = impl_->served.get();
  ServiceState expected = ServiceState::kLoading;
  if (!state_.compare_exchange_strong(expected, ServiceState::kReady)) {
    impl_->served->loop->drain(std::chrono::steady_clock::now());
  }
}

void Service::drain() {
  ServiceState now = state_;
  do {
    if (now == ServiceState::kDead) return;  // and stays so
  } while (!state_.compare_exchange_weak(now, ServiceState::kDraining));
  if (Served* served = served_if_loaded()) {
    const auto seconds = std::chrono::duration<double>(options_.drain_s);
    served->loop->drain(std::chrono::steady_clock::now() +
                        std::chrono::duration_cast<std::chrono::steady_clock::duration>(seconds));
  }
}

void Service::died(const std::string& why) {
  state_ = ServiceState::kDead;
  log_.error("the engine has stopped after an internal error", {{"error", why}});
  if (impl_->on_death) impl_->on_death();
}

void Service::on_death(std::function<void()> callback) { impl_->on_death = std::move(callback); }

std::shared_ptr<Constraint> Service::constraint(const StructureSpec& spec) {
  served();
  return impl_->constraints->get(spec);
}

Served& Service::served() {
  switch (state_.load()) {
    case ServiceState::kLoading: {
      const double eta = load_progress().eta_s;
      throw unavailable("loading", "the model is loading", eta > 0 ? static_cast<int>(eta) + 1 : kRetryLoading);
    }
    case ServiceState::kDraining:
      throw unavailable("draining", "the server is shutting down", std::max(1, static_cast<int>(options_.drain_s)));
    case ServiceState::kDead:
      throw unavailable("engine_dead", "the engine has stopped after an internal error", 0);
    case ServiceState::kReady:
      break;
  }
  return *impl_->ready.load();
}

Served* Service::served_if_loaded() { return impl_->ready.load(); }

Caller Service::authenticate(const HttpRequest& request, bool admin) const {
  const std::string_view given = key_of(request);
  int tenant = -1;
  for (size_t i = 0; i < options_.keys.size(); ++i) {  // all of them, whichever fits
    const bool same = equal_in_constant_time(given, options_.keys[i]);
    tenant = same ? static_cast<int>(i) : tenant;
  }
  const bool is_admin = equal_in_constant_time(given, options_.admin_key);
  if (is_admin) return {static_cast<int>(options_.keys.size()), true};
  if (admin && options_.admin_key.empty()) {
    throw ApiError(403, "permission_error", "admin_disabled", "the server was started without an admin key");
  }
  if (admin && tenant >= 0) {
    throw ApiError(403, "permission_error", "admin_key_required", "this needs the admin key");
  }
  if (tenant >= 0) return {tenant, false};
  if (!admin && options_.keys.empty()) return {0, false};
  throw ApiError(401, "authentication_error", "invalid_api_key",
                 given.empty() ? "an API key is needed: Authorization: Bearer KEY, or x-api-key: KEY"
                               : "the API key is not one of this server's");
}

std::string Service::route(const Caller& caller, const RoutingWish& wish, Request& request) {
  const bool may_share = options_.scope != RoutingScope::kIsolated;
  request.tenant = caller.tenant;
  request.group = options_.scope == RoutingScope::kTenant ? caller.tenant : 0;
  request.policy = 0;
  request.isolated = false;
  const auto plain = [&request](const char* what) {
    request.isolated = true;
    return std::string(what);
  };
  const auto applied = [this](const std::string& spec) {
    return spec == "topk" ? spec : fmt::format("{}; scope={}", spec, name(options_.scope));
  };
  if (wish.text == "topk" || wish.text == "isolated") return plain(wish.text.c_str());
  const std::string standard = served().loop->state().policy;
  if (wish.text.empty()) return may_share ? applied(standard) : plain("isolated");

  const auto refuse = [&](const std::string& why) {
    std::string list = "topk, isolated";
    if (may_share && standard != "topk") list += ", " + standard;
    for (const std::string& spec : impl_->allowed) list += may_share ? ", " + spec : "";
    throw invalid_value("routing", fmt::format("{}; allowed here: {}", why, list));
  };
  std::string spec;
  try {
    spec = canonical(wish.text);
  } catch (const Error&) {
    refuse(fmt::format("\"{}\" is no routing policy", escape(wish.text, kShownName)));
  }
  if (spec == "topk") return plain("topk");
  if (!may_share) refuse("the server keeps all requests isolated");
  const auto it = std::find(impl_->allowed.begin(), impl_->allowed.end(), spec);
  if (it == impl_->allowed.end() && spec != standard)
    refuse(fmt::format("{} is not allowed", escape(spec, kShownName)));
  // An allowed policy of its own stays what it is when an operator switches the default.
  if (it != impl_->allowed.end()) request.policy = 1 + static_cast<int>(it - impl_->allowed.begin());
  return applied(spec);
}

json::object Service::routing_report(const std::string& routing, const RequestStats& stats) const {
  const size_t semicolon = routing.find(';');
  const std::string spec = routing.substr(0, semicolon);
  const bool plain = spec == "topk" || spec == "isolated";
  json::object out;
  out["routing"] = spec;
  out["scope"] = plain ? name(RoutingScope::kIsolated) : name(options_.scope);
  const bool applied = stats.rows[static_cast<size_t>(PlainReason::kApplied)] > 0;
  const bool fixed = std::find(impl_->allowed.begin(), impl_->allowed.end(), spec) != impl_->allowed.end();
  if (const Served* served = impl_->ready.load(); served && !fixed && (applied || !plain)) {
    // Rows of the default policy follow it when an operator switches it while they run.
    const std::string now = served->loop->state().policy;
    if (now != spec) out["switched_to"] = now;
  }
  out["rerouted"] = stats.rerouted;
  out["underfilled"] = stats.underfilled;
  json::object rows;
  for (int r = 0; r < kPlainReasons; ++r) {
    const int64_t n = stats.rows[static_cast<size_t>(r)];
    if (n > 0) rows[name(static_cast<PlainReason>(r))] = n;
  }
  out["rows"] = std::move(rows);
  out["prefix"] = name(stats.prefix);
  if (stats.preemptions > 0) out["preemptions"] = stats.preemptions;
  return out;
}

void Service::check_model(const std::optional<std::string>& model) const {
  if (!model || model->empty() || *model == options_.served_model_name || options_.allow_any_model) return;
  refuse_model(*model);
}

void Service::refuse_model(const std::string& model) const {
  throw not_found("model_not_found", fmt::format("there is no model \"{}\" here, only \"{}\"",
                                                 escape(model, kShownName), escape(options_.served_model_name)));
}

std::shared_ptr<void> Service::Impl::name(const Caller& caller, const std::string& rid, Target target) {
  const std::lock_guard lock(mutex);
  const auto it = abortable.emplace(std::pair(caller.tenant, rid), std::move(target));
  return {this, [this, it](void*) {
            const std::lock_guard last(mutex);
            abortable.erase(it);
          }};
}

std::shared_ptr<void> Service::abortable(const Caller& caller, const std::string& rid, RequestId id) {
  return impl_->name(caller, rid, {id, nullptr});
}

std::shared_ptr<void> Service::abortable(const Caller& caller, const std::string& rid,
                                         std::shared_ptr<std::atomic<bool>> aborted) {
  return impl_->name(caller, rid, {std::nullopt, std::move(aborted)});
}

int Service::abort(const Caller& caller, const std::string& rid) {
  Served* served = served_if_loaded();
  if (!served) return 0;
  std::vector<RequestId> ids;
  int prepared = 0;
  {
    const std::lock_guard lock(impl_->mutex);
    for (const auto& [key, target] : impl_->abortable) {
      const bool mine = caller.admin || key.first == caller.tenant;
      if (!mine || (!rid.empty() && key.second != rid)) continue;
      if (target.id) ids.push_back(*target.id);
      if (target.aborted && !target.aborted->exchange(true)) ++prepared;  // which may have several names
    }
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  for (const RequestId id : ids) served->loop->cancel(id);
  return static_cast<int>(ids.size()) + prepared;
}

std::vector<std::vector<int64_t>>& Service::expert_counts() { return impl_->expert_counts; }

}  // namespace carpool
