#include "measure/load_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace carpool {
namespace {

constexpr size_t kMostEventBytes = size_t{64} << 20;
constexpr size_t kMostMessage = 300;

const json::value* find(const json::value& value, std::string_view key) {
  const json::object* object = value.if_object();
  return object ? object->if_contains(key) : nullptr;
}

// The text of a string field; empty when it is absent, null or something else.
std::string_view text_at(const json::value& value, std::string_view key) {
  const json::value* found = find(value, key);
  const json::string* text = found ? found->if_string() : nullptr;
  return text ? std::string_view(*text) : std::string_view();
}

// A count that a server sent; nothing when it is absent or no sensible number.
std::optional<int> count_at(const json::value& value, std::string_view key) {
  const json::value* found = find(value, key);
  if (!found || !found->is_number()) return std::nullopt;
  const double n = found->to_number<double>();
  if (!(n >= 0 && n <= 1e9)) return std::nullopt;
  return static_cast<int>(n);
}

// An error inside a reply with status 200, as streams have them: {"error": {"message", "type", "code"}} or its text.
const json::value* error_in(const json::value& value) {
  const json::value* error = find(value, "error");
  return error && !error->is_null() ? error : nullptr;
}

std::string label(const json::value& value, std::string_view key) {
  const json::value* found = find(value, key);
  if (!found) return "";
  if (found->is_string()) return escape(std::string_view(found->get_string()), 60);
  return found->is_number() ? json::serialize(*found) : "";
}

// "overloaded": the code of an error object; its type where the code only repeats the status.
std::string error_code(const json::value& error) {
  const std::string code = label(error, "code");
  const bool is_status = !code.empty() && code.find_first_not_of("0123456789") == std::string::npos;
  return code.empty() || is_status ? label(error, "type") : code;
}

void fail(LoadOutcome& outcome, const std::string& failure, std::string_view message) {
  if (!outcome.failure.empty()) return;  // the first one is the cause
  outcome.failure = failure;
  outcome.message = escape(message, kMostMessage);
}

void fail_with(LoadOutcome& outcome, const std::string& where, const json::value& error) {
  const std::string code = error_code(error);
  const std::string_view message = error.is_string() ? std::string_view(error.get_string()) : text_at(error, "message");
  fail(outcome, code.empty() ? where : where + " " + code, message);
}

void merge(json::object& into, const json::object& from) {
  for (const auto& [key, value] : from) {
    json::value& place = into[key];
    if (place.is_object() && value.is_object()) {
      merge(place.get_object(), value.get_object());
    } else {
      place = value;
    }
  }
}

json::value prompt_value(const LoadPrompt& prompt) {
  if (prompt.ids.empty()) return json::string(prompt.text);
  return json::array(prompt.ids.begin(), prompt.ids.end());
}

json::object native_body(const LoadSettings& s, const LoadPrompt& prompt, int64_t seed) {
  json::object sampling = {{"temperature", s.temperature},
                           {"top_p", s.top_p},
                           {"max_new_tokens", prompt.output_tokens},
                           {"ignore_eos", s.ignore_eos}};
  if (s.temperature > 0) sampling["sampling_seed"] = seed;
  json::object body;
  body[prompt.ids.empty() ? "text" : "input_ids"] = prompt_value(prompt);
  body["sampling_params"] = std::move(sampling);
  body["stream"] = s.stream;
  return body;
}

json::object openai_body(const LoadSettings& s, const LoadPrompt& prompt, int64_t seed) {
  json::object body = {{"model", s.model}};
  if (s.backend == LoadBackend::kChat) {
    if (!prompt.ids.empty()) {
      throw Error(ErrorKind::kConfig, "token ids are no chat messages: use --backend sglang or openai");
    }
    body["messages"] = prompt.messages.empty() ? json::array{json::object{{"role", "user"}, {"content", prompt.text}}}
                                               : prompt.messages;
    body["max_completion_tokens"] = prompt.output_tokens;
  } else {
    body["prompt"] = prompt_value(prompt);
    body["max_tokens"] = prompt.output_tokens;
  }
  body["temperature"] = s.temperature;
  body["top_p"] = s.top_p;
  if (s.temperature > 0) body["seed"] = seed;
  body["ignore_eos"] = s.ignore_eos;
  body["stream"] = s.stream;
  if (s.stream) body["stream_options"] = json::object{{"include_usage", true}};
  return body;
}

}  // namespace

void EventSplitter::feed(std::string_view bytes, std::vector<ServerEvent>& out) {
  for (const char c : bytes) {
    const bool second_of_pair = after_return_ && c == '\n';
    after_return_ = c == '\r';
    if (second_of_pair) continue;
    if (c == '\n' || c == '\r') {
      line(out);
    } else {
      line_ += c;
    }
  }
  if (line_.size() + event_.data.size() > kMostEventBytes) {
    throw Error(ErrorKind::kMalformed, fmt::format("an event of the stream is over {} MiB", kMostEventBytes >> 20));
  }
}

void EventSplitter::line(std::vector<ServerEvent>& out) {
  std::string text;
  text.swap(line_);
  if (text.empty()) {
    if (has_data_) out.push_back(std::move(event_));
    event_ = {};
    has_data_ = false;
    return;
  }
  const size_t colon = text.find(':');
  const std::string field = text.substr(0, colon);  // empty for a comment
  std::string value = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (value.starts_with(' ')) value.erase(0, 1);
  if (field == "event") event_.name = std::move(value);
  if (field != "data") return;
  if (has_data_) event_.data += '\n';
  event_.data += value;
  has_data_ = true;
}

LoadBackend parse_backend(std::string_view name) {
  for (const char* known : {"sglang", "sglang-native"}) {
    if (name == known) return LoadBackend::kNative;
  }
  for (const char* known : {"openai", "sglang-oai", "vllm"}) {
    if (name == known) return LoadBackend::kCompletions;
  }
  for (const char* known : {"openai-chat", "sglang-oai-chat", "vllm-chat"}) {
    if (name == known) return LoadBackend::kChat;
  }
  throw Error(ErrorKind::kUsage,
              fmt::format("no backend {}: there are sglang (sglang-native), openai (sglang-oai, vllm) and openai-chat "
                          "(sglang-oai-chat, vllm-chat)",
                          escape(name, 60)));
}

LoadRequest make_request(const LoadSettings& settings, const LoadPrompt& prompt, int index) {
  // Seeds of APIs are non-negative and fit 63 bits.
  const auto seed = static_cast<int64_t>((settings.seed + static_cast<uint64_t>(index)) & (~uint64_t{0} >> 1));
  const bool native = settings.backend == LoadBackend::kNative;
  json::object body = native ? native_body(settings, prompt, seed) : openai_body(settings, prompt, seed);
  if (!settings.routing.empty()) body["routing"] = settings.routing;
  merge(body, settings.extra);
  const char* path = native                                          ? "/generate"
                     : settings.backend == LoadBackend::kCompletions ? "/v1/completions"
                                                                     : "/v1/chat/completions";
  return {path, json::serialize(body), prompt.input_tokens, prompt.output_tokens};
}

ReplyReader::ReplyReader(LoadBackend backend, const LoadRequest& request, LoadOutcome& outcome)
    : backend_(backend), outcome_(outcome) {
  outcome_.prompt_tokens = request.prompt_tokens;
}

void ReplyReader::visible(double now, int64_t total) {
  if (whole_) return;
  ++chunks_;
  if (outcome_.ttft < 0) {
    outcome_.ttft = now;
  } else if (total < 0) {
    outcome_.itl.push_back(now - last_);
  } else {
    const int64_t fresh = total - last_total_;
    if (fresh <= 0) return;  // the same tokens again: no progress, and the next gap begins where this one did
    const double gap = (now - last_) / static_cast<double>(fresh);
    outcome_.itl.insert(outcome_.itl.end(), static_cast<size_t>(std::min<int64_t>(fresh, 1 << 24)), gap);
  }
  last_ = now;
  if (total >= 0) last_total_ = total;
}

void ReplyReader::native(const json::value& value, double now) {
  if (!value.is_object()) throw Error(ErrorKind::kMalformed, "the reply is no JSON object");
  static const json::value kNothing;
  const json::value* found = find(value, "meta_info");
  const json::value& meta = found ? *found : kNothing;
  const std::optional<int> tokens = count_at(meta, "completion_tokens");
  if (tokens) {
    outcome_.output_tokens = *tokens;
    outcome_.counted = true;
  }
  if (const auto n = count_at(meta, "prompt_tokens")) outcome_.prompt_tokens = *n;
  if (const auto n = count_at(meta, "cached_tokens")) outcome_.cached_tokens = *n;
  if (const json::value* reason = find(meta, "finish_reason"); reason && !reason->is_null()) {
    outcome_.finish = reason->is_string() ? std::string(reason->get_string()) : std::string(text_at(*reason, "type"));
    if (outcome_.finish == "abort") fail(outcome_, "aborted", text_at(*reason, "message"));
  }
  const std::string_view text = text_at(value, "text");
  if (text.empty()) return;
  outcome_.text = text;  // cumulative
  visible(now, tokens ? int64_t{*tokens} : -1);
}

void ReplyReader::usage(const json::value& value) {
  const json::value* found = find(value, "usage");
  if (!found || !found->is_object()) return;
  if (const auto n = count_at(*found, "completion_tokens")) {
    outcome_.output_tokens = *n;
    outcome_.counted = true;
  }
  if (const auto n = count_at(*found, "prompt_tokens")) outcome_.prompt_tokens = *n;
  if (const json::value* details = find(*found, "prompt_tokens_details")) {
    if (const auto n = count_at(*details, "cached_tokens")) outcome_.cached_tokens = *n;
  }
}

void ReplyReader::choice(const json::value& value, double now) {
  if (!value.is_object()) throw Error(ErrorKind::kMalformed, "the reply is no JSON object");
  usage(value);
  const json::value* found = find(value, "choices");
  const json::array* choices = found ? found->if_array() : nullptr;
  if (!choices || choices->empty()) return;  // usage alone
  const json::value& first = choices->front();
  if (const std::string_view reason = text_at(first, "finish_reason"); !reason.empty()) outcome_.finish = reason;
  std::string text(text_at(first, "text"));
  for (const char* part : {"delta", "message"}) {
    if (const json::value* piece = find(first, part)) {
      text += text_at(*piece, "reasoning_content");
      text += text_at(*piece, "content");
    }
  }
  if (text.empty()) return;  // a role, or a token that is no whole character yet
  outcome_.text += text;
  visible(now, -1);
}

void ReplyReader::event(const ServerEvent& event, double now) {
  outcome_.latency = now;
  if (event.data == "[DONE]") {
    done_ = true;
    return;
  }
  const json::value value = parse_json(event.data, "an event of the stream");
  if (const json::value* error = error_in(value)) {
    fail_with(outcome_, "error in the stream", *error);
  } else if (backend_ == LoadBackend::kNative) {
    native(value, now);
  } else {
    choice(value, now);
  }
}

void ReplyReader::whole(std::string_view body, double now) {
  outcome_.latency = now;
  done_ = whole_ = true;
  const json::value value = parse_json(body, "the reply");
  if (const json::value* error = error_in(value)) {
    fail_with(outcome_, "error in the reply", *error);
  } else if (backend_ == LoadBackend::kNative) {
    native(value, now);
  } else {
    choice(value, now);
  }
}

void ReplyReader::end() {
  if (!done_) fail(outcome_, "cut", "the stream ended without [DONE]");
  if (!outcome_.counted) outcome_.output_tokens = chunks_;
  outcome_.success = outcome_.failure.empty();
}

void read_refusal(int status, std::string_view body, LoadOutcome& outcome) {
  const std::string where = fmt::format("HTTP {}", status);
  try {
    const json::value value = parse_json(body, "the reply");
    if (const json::value* error = error_in(value)) return fail_with(outcome, where, *error);
    if (value.is_object()) return fail_with(outcome, where, value);  // the flat shape of some servers
  } catch (const Error&) {                                           // no JSON: the text itself is the message
  }
  fail(outcome, where, body);
}

}  // namespace carpool
