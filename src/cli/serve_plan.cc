// From the options of `carpool serve` to what will be done, or to the sentence that says why not. See serve.h.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "cli/serve.h"
#include "io/gguf.h"
#include "measure/result.h"
#include "model/dummy.h"
#include "routing/policy.h"
#include "server/fields.h"
#include "text/parsers/output.h"
#include "text/utf8.h"

namespace carpool {
namespace {

constexpr int kDescriptorsBesidesConnections = 64;  // files, log, acceptor, reserve

[[noreturn]] void refuse(const std::string& sentence) { throw Error(ErrorKind::kConfig, sentence); }

std::string environment(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

// Printable and without spaces, so that a header can carry it. The key itself is never said.
void check_key(const std::string& key, const std::string& where) {
  const bool good = !key.empty() && std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 127; });
  if (!good) throw Error(ErrorKind::kUsage, fmt::format("{}: a key must be printable ASCII without spaces", where));
}

std::vector<std::string> keys_of(const ServeOptions& options) {
  std::vector<std::string> keys = options.keys;
  if (!options.key_file.empty()) {
    std::vector<std::string> lines = read_lines(options.key_file);
    keys.insert(keys.end(), lines.begin(), lines.end());
    if (lines.empty()) refuse(fmt::format("{}: no keys", escape(options.key_file, 400)));
  }
  if (keys.empty()) {
    if (std::string key = environment("CARPOOL_API_KEY"); !key.empty()) keys.push_back(std::move(key));
  }
  for (const std::string& key : keys) check_key(key, "API keys");
  std::vector<std::string> sorted = keys;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) refuse("the same API key is given twice");
  return keys;
}

std::string admin_key_of(const ServeOptions& options, const std::vector<std::string>& keys) {
  const std::string key = options.admin_key.empty() ? environment("CARPOOL_ADMIN_KEY") : options.admin_key;
  if (key.empty()) return key;
  check_key(key, "--admin-key");
  if (std::find(keys.begin(), keys.end(), key) != keys.end()) refuse("the admin key is one of the API keys");
  return key;
}

std::string model_of(const ServeOptions& options) {
  const std::string &word = options.model.model, &flag = options.model_flag;
  if (word.empty() && flag.empty()) throw Error(ErrorKind::kUsage, "MODEL is required");
  if (!word.empty() && !flag.empty() && word != flag) {
    throw Error(ErrorKind::kUsage,
                fmt::format("two models are given, {} and {}", escape(word, 200), escape(flag, 200)));
  }
  return word.empty() ? flag : word;
}

// What clients call the model: its folder, its file without .gguf, or its shape.
std::string default_name(const std::string& model) {
  if (is_dummy(model)) return model.substr(model.find(':') + 1);
  std::filesystem::path path(model);
  if (!path.has_filename()) path = path.parent_path();
  std::string name = (is_gguf_path(model) ? path.stem() : path.filename()).string();
  return name.empty() || name == "." || name == ".." ? std::string("model") : name;
}

RoutingScope scope_of(const ServeOptions& options, size_t keys) {
  if (options.scope == "isolated") return RoutingScope::kIsolated;
  if (options.scope == "shared") return RoutingScope::kShared;
  if (options.scope == "tenant" || keys <= 1) return RoutingScope::kTenant;
  return RoutingScope::kIsolated;
}

// Which policies the engine has. What could never run is refused: what was asked for is what runs.
std::vector<std::string> policies_of(const ServeOptions& options, RoutingScope scope) {
  const std::string model = model_of(options);
  std::vector<std::string> policies{make_policy(options.policy.resolve_for(model))->spec()};
  for (const std::string& spec : options.allowed_policies) {
    std::string canonical = make_policy(options.policy.profile.resolve(spec, model))->spec();
    if (canonical == "topk") refuse("--allow-policy topk: every request may ask for topk");
    if (std::find(policies.begin() + 1, policies.end(), canonical) != policies.end()) {
      refuse(fmt::format("--allow-policy {} is given twice", canonical));
    }
    policies.push_back(std::move(canonical));
  }
  if (scope == RoutingScope::kIsolated && (policies[0] != "topk" || policies.size() > 1)) {
    const std::string& lost = policies[0] != "topk" ? policies[0] : policies[1];
    refuse(
        fmt::format("{} would never apply, because {} every request is isolated; --routing-scope tenant lets the "
                    "requests of each key share experts, shared those of all",
                    lost, options.scope.empty() ? "with several keys" : "with --routing-scope isolated"));
  }
  return policies;
}

// The names by which a browser may reach a server that only this machine reaches.
std::vector<std::string> hosts_of(const ServeOptions& options) {
  std::vector<std::string> hosts = options.allowed_hosts;
  if (is_loopback(options.host)) {
    for (const char* name : {"localhost", "127.0.0.1", "[::1]"}) hosts.emplace_back(name);
    hosts.push_back(options.host.find(':') == std::string::npos ? options.host : "[" + options.host + "]");
  }
  return hosts;
}

std::string list_of(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

void check_range(const char* flag, double value, double low, double high) {
  if (!(value >= low && value <= high)) {
    throw Error(ErrorKind::kUsage, fmt::format("{} must be {} to {}, got {}", flag, low, high, value));
  }
}

void check_numbers(const ServeOptions& o) {
  check_range("--port", o.port, 0, 65535);
  check_range("--http-threads", o.http_threads, 1, 64);
  check_range("--max-connections", o.max_connections, 1, 1 << 20);
  check_range("--max-body-bytes", static_cast<double>(o.max_body_bytes), 1 << 10, kMaxBodyBytes);
  check_range("--max-running-requests", o.max_batch, 1, 4096);
  check_range("--max-queued-requests", o.max_queued, 1, 1 << 20);
  check_range("--chunked-prefill-size", o.chunk, 1, 65536);
  check_range("--step-target-ms", o.step_target_ms, 0, 1e6);
  check_range("--drain-timeout", o.drain_timeout, 0, 86400);
  check_range("--ping-interval", o.ping_interval, 0.05, 3600);
}

LogLevel level_of(const std::string& name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warn" || name == "warning") return LogLevel::kWarn;
  return name == "error" ? LogLevel::kError : LogLevel::kInfo;
}

json::array to_json(const std::vector<std::string>& words) {
  json::array out;
  for (const std::string& word : words) out.emplace_back(sanitize_utf8(word));
  return out;
}

// What applies, as /server_info tells holders of a key. Keys are counted, never shown.
json::object server_args(const ServeOptions& o, const ServePlan& plan) {
  json::object args;
  args["host"] = sanitize_utf8(o.host);
  args["port"] = o.port;
  args["api_keys"] = plan.service.keys.size();
  args["max_running_requests"] = o.max_batch;
  args["max_queued_requests"] = o.max_queued;
  args["chunked_prefill_size"] = o.chunk;
  args["step_target_ms"] = o.step_target_ms;
  args["policy"] = plan.policies[0];
  args["allowed_policies"] = to_json({plan.policies.begin() + 1, plan.policies.end()});
  args["routing_scope"] = name(plan.service.scope);
  args["disable_radix_cache"] = o.no_prefix_cache;
  args["kv_cache_dtype"] = o.model.kv_cache_dtype;
  args["activations"] = o.model.activations;
  args["isa"] = o.model.isa;
  args["max_connections"] = plan.http.limits.connections;
  args["max_body_bytes"] = o.max_body_bytes;
  args["options_without_effect"] = to_json(o.without_effect);
  return args;
}

std::vector<std::string> warnings_of(const ServeOptions& o, const ServePlan& plan) {
  std::vector<std::string> warnings;
  if (!o.without_effect.empty()) {
    warnings.push_back(
        fmt::format("{} {} no effect here", list_of(o.without_effect), o.without_effect.size() == 1 ? "has" : "have"));
  }
  if (o.insecure && !is_loopback(o.host) && plan.service.keys.empty()) {
    warnings.push_back(fmt::format("--insecure: everybody who reaches {} may use this server", escape(o.host)));
  }
  return warnings;
}

// Every connection takes a descriptor.
void fit_connections(ServePlan& plan) {
  const auto descriptors = static_cast<int64_t>(std::min(raise_descriptor_limit(), size_t{1} << 30));
  const int64_t most = std::max<int64_t>(1, descriptors - kDescriptorsBesidesConnections);
  if (descriptors == 0 || plan.http.limits.connections <= most) return;
  plan.warnings.push_back(fmt::format("the system allows {} open files, so at most {} connections", descriptors, most));
  plan.http.limits.connections = static_cast<int>(most);
}

}  // namespace

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0; }

bool is_canary(const std::string& model) { return model == "dummy:canary" || model.rfind("dummy:canary,", 0) == 0; }

ServePlan plan_serve(const ServeOptions& o) {
  ServePlan plan;
  check_numbers(o);
  plan.model = model_of(o);
  plan.service.keys = keys_of(o);
  plan.service.admin_key = admin_key_of(o, plan.service.keys);
  if (!is_loopback(o.host) && plan.service.keys.empty() && !o.insecure) {
    refuse(
        fmt::format("{} can be reached from other machines: set --api-key or --api-key-file, or --insecure to let "
                    "everybody in",
                    escape(o.host)));
  }
  plan.service.scope = scope_of(o, plan.service.keys.size());
  plan.policies = policies_of(o, plan.service.scope);
  plan.service.served_model_name =
      sanitize_utf8(o.served_model_name.empty() ? default_name(plan.model) : o.served_model_name);
  plan.service.model_path = sanitize_utf8(plan.model);
  plan.service.allowed_policies.assign(plan.policies.begin() + 1, plan.policies.end());
  plan.service.allow_any_model = o.any_model;
  plan.service.ping_s = o.ping_interval;
  plan.service.drain_s = o.drain_timeout;
  plan.service.version = fmt::format("{} ({})", CARPOOL_VERSION, build_commit());
  plan.service.cors_origins = o.cors_origins;
  plan.service.hosts = hosts_of(o);
  OutputFormat::choose(o.reasoning_parser, o.tool_call_parser, "");  // what "auto" means the model's template says
  plan.service.reasoning_parser = o.reasoning_parser;
  plan.service.tool_call_parser = o.tool_call_parser;

  plan.http.host = o.host;
  plan.http.port = o.port;
  plan.http.threads = o.http_threads;
  plan.http.limits.body = static_cast<size_t>(o.max_body_bytes);
  plan.http.limits.connections = o.max_connections;
  plan.loop.max_queued = o.max_queued;
  // Whoever can wait for the engine or run in it may have to wait for a worker first.
  plan.service.max_waiting_work = o.max_queued + o.max_batch;
  plan.loop.tenants = static_cast<int>(plan.service.keys.size()) + (plan.service.admin_key.empty() ? 0 : 1);
  plan.engine.max_batch = o.max_batch;
  plan.engine.chunk = o.chunk;
  plan.engine.kv_tokens = o.kv_tokens;
  plan.engine.step_target_ms = o.step_target_ms;
  plan.engine.prefix_cache = !o.no_prefix_cache;
  plan.engine.preempt = true;
  plan.record = o.record;
  plan.record.check();
  if (!plan.record.path.empty() && std::filesystem::exists(plan.record.path)) {
    // Said before the model is loaded; a server that starts again must not write over what the last one recorded.
    throw Error(ErrorKind::kCannotCreate,
                fmt::format("{}: cannot be created: it exists", escape(plan.record.path, 400)));
  }
  if (!plan.record.path.empty() && plan.engine.prefix_cache)
    refuse("--trace needs --disable-radix-cache: tokens from the prefix cache are not routed, so a trace lacks them");
  plan.log_format = o.log_format == "json" ? LogFormat::kJson : LogFormat::kText;
  plan.log_level = level_of(o.log_level);
  plan.warnings = warnings_of(o, plan);
  fit_connections(plan);
  plan.service.server_args = server_args(o, plan);
  return plan;
}

}  // namespace carpool
