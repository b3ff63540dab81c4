#include "measure/load_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/error.h"
#include "base/time.h"

namespace carpool {
namespace {

constexpr double kCallSeconds = 60;
constexpr auto kReadyPause = std::chrono::milliseconds(200);
constexpr int kMostScrapes = 20;
constexpr auto kScrapePause = std::chrono::milliseconds(20);
constexpr std::string_view kPrefix = "carpool:";

// One line of Prometheus' text format: name{label="value",...} number [time].
struct Sample {
  std::string_view name;
  std::vector<std::pair<std::string_view, std::string>> labels;
  double value = 0;

  std::string_view label(std::string_view wanted) const {
    for (const auto& [name_of, text] : labels) {
      if (name_of == wanted) return text;
    }
    return "";
  }
};

// Reads `{a="b",c="d"}` at the start of `text` and removes it. False when it is broken.
bool read_labels(std::string_view& text, Sample& sample) {
  text.remove_prefix(1);
  while (!text.empty() && text[0] != '}') {
    const size_t equals = text.find("=\"");
    if (equals == std::string_view::npos) return false;
    const std::string_view name_of = text.substr(0, equals);
    std::string value;
    size_t at = equals + 2;
    for (; at < text.size() && text[at] != '"'; ++at) {
      if (text[at] == '\\' && at + 1 < text.size()) ++at;
      value += text[at];
    }
    if (at >= text.size()) return false;
    sample.labels.emplace_back(name_of, std::move(value));
    text.remove_prefix(at + 1);
    if (text.starts_with(',')) text.remove_prefix(1);
  }
  if (text.empty()) return false;
  text.remove_prefix(1);
  return true;
}

std::optional<Sample> read_sample(std::string_view line) {
  if (!line.starts_with(kPrefix)) return std::nullopt;
  line.remove_prefix(kPrefix.size());
  Sample sample;
  const size_t end = line.find_first_of("{ ");
  if (end == std::string_view::npos) return std::nullopt;
  sample.name = line.substr(0, end);
  line.remove_prefix(end);
  if (line[0] == '{' && !read_labels(line, sample)) return std::nullopt;
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  if (std::from_chars(line.data(), line.data() + line.size(), sample.value).ec != std::errc()) return std::nullopt;
  return std::isfinite(sample.value) ? std::optional(std::move(sample)) : std::nullopt;
}

void add_sample(const Sample& s, ServerCounters& out) {
  const auto whole = static_cast<int64_t>(std::clamp(s.value, -9e15, 9e15));
  const bool mixed = s.label("steps") == "mixed";
  RoutingCounters& r = mixed ? out.mixed : out.decode;
  const auto by_reason = [&](std::array<int64_t, kPlainReasons>& to) {
    for (int reason = 0; reason < kPlainReasons; ++reason) {
      if (s.label("reason") == name(static_cast<PlainReason>(reason))) to[static_cast<size_t>(reason)] += whole;
    }
  };
  if (s.name == "moe_layer_steps_total") r.layers += whole;
  if (s.name == "moe_distinct_experts_total") r.distinct_experts += whole;
  if (s.name == "moe_distinct_experts_plain_total") r.distinct_plain += whole;
  if (s.name == "moe_slots_total") r.slots += whole;
  if (s.name == "moe_rerouted_tokens_total") r.rerouted_tokens += whole;
  if (s.name == "moe_underfilled_tokens_total") r.underfilled_tokens += whole;
  if (s.name == "moe_rows_total") by_reason(out.decode.plain_rows);
  if (s.name == "moe_plain_steps_total") by_reason(out.decode.plain_steps);
  if (s.name == "steps_total") (mixed ? out.mixed_steps : out.decode_steps) += whole;
  if (s.name == "forward_seconds_total" && !mixed) out.decode_seconds += s.value;
  if (s.name == "generation_tokens_total") out.generation_tokens += whole;
}

RoutingCounters difference(const RoutingCounters& after, const RoutingCounters& before) {
  RoutingCounters d = after;
  d.layers -= before.layers;
  d.distinct_experts -= before.distinct_experts;
  d.distinct_plain -= before.distinct_plain;
  d.slots -= before.slots;
  d.rerouted_tokens -= before.rerouted_tokens;
  d.underfilled_tokens -= before.underfilled_tokens;
  for (size_t r = 0; r < d.plain_rows.size(); ++r) d.plain_rows[r] -= before.plain_rows[r];
  for (size_t r = 0; r < d.plain_steps.size(); ++r) d.plain_steps[r] -= before.plain_steps[r];
  return d;
}

std::optional<double> find_within(const json::value& value, const std::vector<std::string>& keys, int depth) {
  if (depth == 0) return std::nullopt;
  if (const json::object* object = value.if_object()) {
    for (const std::string& key : keys) {
      const json::value* found = object->if_contains(key);
      if (found && found->is_number()) return found->to_number<double>();
    }
    for (const auto& entry : *object) {
      if (const auto found = find_within(entry.value(), keys, depth - 1)) return found;
    }
  } else if (const json::array* list = value.if_array()) {
    for (const json::value& item : *list) {
      if (const auto found = find_within(item, keys, depth - 1)) return found;
    }
  }
  return std::nullopt;
}

// Tokens in an answer of /tokenize: {"count": 3, "tokens": [...]} or {"tokens": [...]}.
std::optional<int> tokens_in(const HttpAnswer& answer) {
  if (!answer.ok()) return std::nullopt;
  try {
    const json::value value = parse_json(answer.body, "/tokenize");
    const json::object* object = value.if_object();
    if (!object) return std::nullopt;
    const json::value* count = object->if_contains("count");
    if (count && count->is_number()) return static_cast<int>(std::clamp(count->to_number<double>(), 0.0, 1e9));
    const json::value* tokens = object->if_contains("tokens");
    if (tokens && tokens->is_array()) return static_cast<int>(tokens->get_array().size());
  } catch (const Error&) {  // some other server's page
  }
  return std::nullopt;
}

std::string tokenize_body(const std::string& model, const std::string& text) {
  return json::serialize(json::object{{"model", model}, {"prompt", text}, {"add_special_tokens", false}});
}

}  // namespace

ServerCounters difference(const ServerCounters& after, const ServerCounters& before) {
  ServerCounters d = after;
  d.decode = difference(after.decode, before.decode);
  d.mixed = difference(after.mixed, before.mixed);
  d.decode_steps -= before.decode_steps;
  d.mixed_steps -= before.mixed_steps;
  d.decode_seconds -= before.decode_seconds;
  d.generation_tokens -= before.generation_tokens;
  return d;
}

std::optional<ServerCounters> parse_counters(std::string_view text) {
  ServerCounters out;
  bool found = false;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (const auto sample = read_sample(text.substr(at, end - at))) {
      found = found || sample->name == "moe_distinct_experts_total";
      add_sample(*sample, out);
    }
    at = end + 1;
  }
  return found ? std::optional(out) : std::nullopt;
}

std::optional<double> find_number(const json::value& value, const std::vector<std::string>& keys) {
  return find_within(value, keys, 8);
}

std::string answer_text(const HttpAnswer& answer) {
  if (!answer.failure.empty()) return fmt::format("{}: {}", answer.failure, answer.message);
  LoadOutcome outcome;
  read_refusal(answer.status, answer.body, outcome);
  return outcome.message.empty() ? outcome.failure : fmt::format("{}: {}", outcome.failure, outcome.message);
}

json::value LoadServer::get_json(const std::string& path) {
  const HttpAnswer answer = client_.call("GET", path, "", kCallSeconds);
  if (!answer.ok()) return nullptr;
  try {
    return parse_json(answer.body, path);
  } catch (const Error&) {
    return nullptr;
  }
}

void LoadServer::wait_ready(double timeout_s) {
  const double deadline = now_seconds() + timeout_s;
  HttpAnswer answer;
  while (timeout_s > 0) {
    HttpAnswer next = client_.call("GET", "/health", "", std::min(timeout_s, kCallSeconds));
    const bool absent = next.failure.empty() && (next.status == 404 || next.status == 405);
    if (next.ok() || absent) return;
    // That nothing came in time says less than what came before.
    if (next.failure != "timeout" || answer.status == 0) answer = std::move(next);
    if (now_seconds() >= deadline) {
      throw Error(ErrorKind::kUnavailable, fmt::format("{} is not ready after {:g} s ({})", client_.url().text(),
                                                       timeout_s, answer_text(answer)));
    }
    std::this_thread::sleep_for(kReadyPause);
  }
}

std::string LoadServer::model() {
  const json::value value = get_json("/v1/models");
  boost::system::error_code ec;
  const json::value* id = value.find_pointer("/data/0/id", ec);
  return id && id->is_string() ? std::string(id->get_string()) : "";
}

int LoadServer::vocab() {
  for (const char* path : {"/model_info", "/get_model_info", "/tokenizer_info", "/server_info", "/v1/models"}) {
    const auto found = find_number(get_json(path), {"vocab_size", "n_vocab"});
    if (found && *found >= 1 && *found <= 1 << 24) return static_cast<int>(*found);
  }
  return 0;
}

TokenCounter LoadServer::token_counter(const std::string& model) {
  const auto count = [this, model](const std::string& text) {
    return tokens_in(client_.call("POST", "/tokenize", tokenize_body(model, text), kCallSeconds));
  };
  if (!count("one two three")) return {};
  return [count](const std::string& text) {
    const std::optional<int> n = count(text);
    if (!n) throw Error(ErrorKind::kUnavailable, "/tokenize answered at first and does not any more");
    return *n;
  };
}

std::optional<int64_t> LoadServer::count_tokens(const std::string& model, const std::vector<std::string>& texts) {
  std::vector<std::string> bodies;
  for (const std::string& text : texts) bodies.push_back(tokenize_body(model, text));
  int64_t total = 0;
  for (const HttpAnswer& answer : client_.post_all("/tokenize", bodies)) {
    const std::optional<int> n = tokens_in(answer);
    if (!n) return std::nullopt;
    total += *n;
  }
  return total;
}

json::value LoadServer::info() {
  json::value value = get_json("/server_info");
  return value.is_null() ? get_json("/get_server_info") : value;
}

json::value LoadServer::model_info() {
  json::value value = get_json("/model_info");
  return value.is_null() ? get_json("/get_model_info") : value;
}

std::optional<ServerCounters> LoadServer::counters() {
  std::optional<ServerCounters> last;
  for (int i = 0; i < kMostScrapes; ++i) {
    const HttpAnswer answer = client_.call("GET", "/metrics", "", kCallSeconds);
    const std::optional<ServerCounters> now = answer.ok() ? parse_counters(answer.body) : std::nullopt;
    if (!now) return now;
    const bool settled = last && last->decode_steps == now->decode_steps && last->mixed_steps == now->mixed_steps;
    last = now;
    if (settled) break;
    std::this_thread::sleep_for(kScrapePause);
  }
  return last;
}

std::string LoadServer::flush_cache() {
  HttpAnswer answer;
  for (int i = 0; i < kMostScrapes; ++i) {
    answer = client_.call("POST", "/flush_cache", "", kCallSeconds, admin_key_);
    if (answer.ok()) return "";
    if (answer.status != 400) break;
    std::this_thread::sleep_for(kScrapePause);  // not idle yet: the last request's end is still on its way
  }
  return answer_text(answer);
}

std::string LoadServer::policy() {
  const HttpAnswer answer = client_.call("GET", "/admin/policy", "", kCallSeconds, admin_key_);
  if (!answer.ok()) return "";
  const json::value value = parse_json(answer.body, "/admin/policy");
  return JsonObject(value, "/admin/policy").string_or("policy", "");
}

void LoadServer::set_policy(const std::string& spec) {
  const std::string body = json::serialize(json::object{{"policy", spec}});
  const HttpAnswer answer = client_.call("POST", "/admin/policy", body, kCallSeconds, admin_key_);
  if (answer.ok()) return;
  throw Error(ErrorKind::kUnavailable,
              fmt::format("the server does not switch to {}: {}", escape(spec), answer_text(answer)));
}

}  // namespace carpool
