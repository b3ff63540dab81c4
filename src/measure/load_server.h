// What a load test asks the server besides requests: is it ready, which model, how does it count tokens, what did its
// routing do, and operators' calls.
//
// Owns LoadServer (the calls, each with what to do when a server does not have them) and ServerCounters with the
// reading of Prometheus' text. Works with servers other than carpool; then some answers are "unknown". Read next:
// load_client.h.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "measure/load_client.h"
#include "measure/load_dataset.h"
#include "routing/counters.h"

namespace carpool {

// The server's own counters, since it started.
struct ServerCounters {
  RoutingCounters decode;  // of decode-only steps; its plain_steps are of all steps
  RoutingCounters mixed;   // of steps that held prompt rows, too
  int64_t decode_steps = 0, mixed_steps = 0;
  double decode_seconds = 0;  // in the model's forward pass
  int64_t generation_tokens = 0;

  int64_t rerouted() const { return decode.rerouted_tokens + mixed.rerouted_tokens; }
};

// after - before.
ServerCounters difference(const ServerCounters& after, const ServerCounters& before);

// From the text of /metrics; nothing when it has no carpool:moe_ counters.
std::optional<ServerCounters> parse_counters(std::string_view text);

class LoadServer {
 public:
  // `admin_key`, when not empty, goes with operators' calls.
  LoadServer(LoadClient& client, std::string admin_key) : client_(client), admin_key_(std::move(admin_key)) {}

  // Asks /health until it says 200; a server without /health counts as ready when it answers. Error{kUnavailable} with
  // its last answer (a timeout is none, when there was one before) after `timeout_s`; 0 = does not ask.
  void wait_ready(double timeout_s);
  // The first of /v1/models, "" when there is none.
  std::string model();
  // Size of the vocabulary, 0 when the server does not say.
  int vocab();
  // Counts through /tokenize; empty when the server has none.
  TokenCounter token_counter(const std::string& model);
  // Tokens of many texts, nothing when the server cannot say.
  std::optional<int64_t> count_tokens(const std::string& model, const std::vector<std::string>& texts);
  json::value info();        // /server_info; null when there is none
  json::value model_info();  // /model_info; the same
  // When the steps of finished requests have been counted, too: asks again until two answers agree, at most 20 times.
  std::optional<ServerCounters> counters();
  // The reason why not; "" when it was done. A server that is not idle yet is asked again, at most 20 times.
  std::string flush_cache();
  // The default policy, "" when the server does not say.
  std::string policy();
  // Error{kUnavailable} with the server's sentence when it is refused.
  void set_policy(const std::string& spec);

 private:
  // The answer as JSON, null unless it is 200 and JSON.
  json::value get_json(const std::string& path);

  LoadClient& client_;
  std::string admin_key_;
};

// "404 not_found_error: no such route": what a refused call said.
std::string answer_text(const HttpAnswer& answer);

// The first number under one of `keys`, searched through objects and lists to a depth of 8.
std::optional<double> find_number(const json::value& value, const std::vector<std::string>& keys);

}  // namespace carpool
