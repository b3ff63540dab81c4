// What `carpool serve` was asked for, and everything about it that can be refused before a model is loaded.
//
// Owns ServeOptions (as typed), ServePlan (as it will be) and the way from one to the other: keys and who must have
// one, the scope of routing, limits, options of other engines' launch scripts that have no effect here. The verb itself
// is add_serve of commands.h. Read next: server/service.h.
#pragma once

#include <string>
#include <vector>

#include "cli/model_options.h"
#include "cli/trace_options.h"
#include "engine/engine.h"
#include "server/engine_loop.h"
#include "server/http_server.h"
#include "server/log.h"
#include "server/service.h"

namespace carpool {

struct ServeOptions {
  ModelOptions model;
  std::string model_flag;  // --model, the other spelling of MODEL
  PolicyOption policy;
  std::vector<std::string> allowed_policies;
  std::string scope;  // "" = tenant, or isolated with several keys

  std::string host = "127.0.0.1";
  int port = 8080, http_threads = 2, max_connections = 8192;
  int64_t max_body_bytes = int64_t{8} << 20;
  std::vector<std::string> keys, cors_origins, allowed_hosts;
  std::string key_file, admin_key;
  bool insecure = false;

  std::string served_model_name;
  bool any_model = false;
  int max_batch = 64, max_queued = 4096, chunk = 256;
  int64_t kv_tokens = 0;
  double step_target_ms = 100;
  bool no_prefix_cache = false;
  RecordOptions record;

  std::string log_format = "text", log_level = "info";
  double drain_timeout = 30, ping_interval = 15;

  std::string reasoning_parser = "auto", tool_call_parser = "auto";
  std::vector<std::string> without_effect;  // options of other engines that were given, "--tp-size"
};

struct ServePlan {
  std::string model;
  ServiceOptions service;
  HttpOptions http;
  LoopLimits loop;
  EngineOptions engine;
  std::vector<std::string> policies;  // canonical; the first is the default
  RecordOptions record;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
  std::vector<std::string> warnings;
};

// Error{kUsage} for values that are none, kMissing for a key file that is not there, kConfig for what contradicts
// itself: no model or two, a policy that would never apply, an open server on a public address. Reads the environment's
// CARPOOL_API_KEY and CARPOOL_ADMIN_KEY where the options give no keys.
ServePlan plan_serve(const ServeOptions& options);

// Whether only this machine can reach an address: localhost, 127.0.0.0/8, ::1.
bool is_loopback(const std::string& host);

// "dummy:canary" and its arguments (",context=4096,step_us=0"): the model that notices mixed-up requests.
bool is_canary(const std::string& model);

}  // namespace carpool
