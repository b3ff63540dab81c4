// Requests of every API: what is accepted has every number in its documented range and means the same when it is
// written anew; what is not is a 400 with a printable sentence that names a field.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <set>

#include "fuzz.h"
#include "server/api_error.h"
#include "server/chat.h"
#include "server/fields.h"
#include "server/parameters.h"
#include "server/prompt.h"

namespace carpool {
namespace {

constexpr int kVocab = 500, kContext = 4096;
enum class Api { kCompletion, kChat, kNative, kMessages };

ModelConfig model() {
  ModelConfig config;
  config.vocab = kVocab;
  config.context = kContext;
  return config;
}

void check_ranges(const Generation& g) {
  const Request& r = g.request;
  const SamplingParams& s = r.sampling;
  const auto within = [](double x, double low, double high) { return std::isfinite(x) && x >= low && x <= high; };
  FUZZ_CHECK(within(s.temperature, 0, 100) && s.top_k >= 0, "temperature, top_k");
  FUZZ_CHECK(within(s.top_p, 0, 1) && s.top_p > 0 && within(s.min_p, 0, 1) && s.min_p < 1, "top_p, min_p");
  FUZZ_CHECK(within(s.repetition_penalty, 0, 2) && s.repetition_penalty > 0, "repetition_penalty");
  FUZZ_CHECK(within(s.presence_penalty, -2, 2) && within(s.frequency_penalty, -2, 2), "penalties");
  FUZZ_CHECK(s.logit_bias.size() <= 300, "logit_bias");
  std::set<int> biased;
  for (const auto& [id, bias] : s.logit_bias) {
    FUZZ_CHECK(id >= 0 && id < kVocab && within(bias, -100, 100), "a bias");
    FUZZ_CHECK(biased.insert(id).second, fmt::format("two biases of token {}", id));
  }
  FUZZ_CHECK(g.n >= 1 && g.n <= 8 && r.max_tokens >= 0 && r.min_tokens >= 0 && r.min_tokens <= r.max_tokens, "counts");
  FUZZ_CHECK(r.max_tokens > 0 || r.prompt_logprobs, "nothing to do");
  for (const int n : {g.logprobs, g.prompt_logprobs, r.logprobs}) FUZZ_CHECK(n >= -1 && n <= 20, "logprobs");
  FUZZ_CHECK(r.stop_strings.size() <= 4 && r.stop_ids.size() <= 128, "stops");
  for (const std::string& stop : r.stop_strings) FUZZ_CHECK(!stop.empty() && stop.size() <= 256, "a stop");
  for (const int id : r.stop_ids) FUZZ_CHECK(id >= 0 && id < kVocab, "a stop id");
  FUZZ_CHECK(g.routing.text.size() <= 256, "routing");
}

std::string describe(const Generation& g) {
  const Request& r = g.request;
  const SamplingParams& s = r.sampling;
  std::string text =
      fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}\n", s.temperature, s.top_k, s.top_p,
                  s.min_p, s.repetition_penalty, s.presence_penalty, s.frequency_penalty, g.seed_given ? s.seed : 0,
                  g.n, r.max_tokens, r.min_tokens, g.logprobs, g.prompt_logprobs, r.logprobs, r.prompt_logprobs,
                  r.include_stop, r.skip_special, r.ignore_eos, r.cache_prefix, g.stream, g.echo);
  for (const auto& [id, bias] : s.logit_bias) text += fmt::format("{}:{} ", id, bias);
  return text + fmt::format("{} {} {} {}", fmt::join(r.stop_ids, ","), fmt::join(r.stop_strings, "|"), g.routing.text,
                            g.model.value_or("(none)"));
}

void check_chat(const Chat& chat) {
  for (const json::value& message : chat.messages) {
    FUZZ_CHECK(message.is_object() && message.get_object().at("role").is_string(), "a message without a role");
    FUZZ_CHECK(message.get_object().at("content").is_string(), "a message without content");
  }
}

void check_prompts(const Prompts& prompts) {
  FUZZ_CHECK(!prompts.items.empty() && prompts.items.size() <= static_cast<size_t>(kMaxPrompts), "prompts");
  for (const Prompt& prompt : prompts.items) {
    FUZZ_CHECK(prompt.is_text || !prompt.ids.empty(), "a prompt of nothing");
    for (const int id : prompt.ids) FUZZ_CHECK(id >= 0 && id < kVocab, "an id of a prompt");
  }
}

// Everything that an endpoint reads of its body.
std::string read(Api api, const json::object& body) {
  Generation g;
  std::string more;
  const auto add_chat = [&](const Chat& chat) {
    check_chat(chat);
    more = json::serialize(chat.messages) + json::serialize(chat.variables) +
           (chat.add_generation_prompt ? " prompt" : "") + (chat.continue_final ? " continue" : "");
  };
  switch (api) {
    case Api::kCompletion: {
      g = read_completion(body, model());
      const Prompts prompts = read_prompts(Fields(body).required("prompt"), "prompt", kVocab);
      check_prompts(prompts);
      check_choices(prompts.items.size(), g.n);
      break;
    }
    case Api::kChat:
      g = read_chat(body, model());
      add_chat(read_chat_messages(body));
      break;
    case Api::kNative: {
      const auto sampling = Fields(body).object("sampling_params");
      g = read_native(sampling ? sampling->raw() : json::object(), "sampling_params", body, model());
      if (Fields(body).has("text")) check_prompts(read_texts(*Fields(body).find("text"), "text"));
      if (Fields(body).has("input_ids"))
        check_prompts(read_id_lists(*Fields(body).find("input_ids"), "input_ids", kVocab));
      break;
    }
    case Api::kMessages:
      g = read_messages(body, model());
      add_chat(read_anthropic_messages(body));
      break;
  }
  check_ranges(g);
  // The engine finds nothing more to object to than the length.
  g.request.prompt = {1};
  fit_max_tokens(1, {kVocab, kContext, kContext}, g.max_tokens_given, g.request);
  try {
    check(g.request, {kVocab, kContext, kContext});
  } catch (const RequestError& error) {
    FUZZ_CHECK(error.code() == "context_length_exceeded" || error.field() == "min_tokens", error.what());
  }
  return describe(g) + more;
}

// What an API answers: "400 code param message", or what it read.
std::string outcome(Api api, std::string_view text) {
  static const std::set<std::string> kCodes = {"invalid_json",  "invalid_unicode", "json_too_deep",    "missing_field",
                                               "invalid_value", "too_many_items",  "unsupported_value"};
  try {
    return read(api, read_body(text));
  } catch (const ApiError& error) {
    const std::string what = error.what();
    FUZZ_CHECK(error.status() == 400 && kCodes.contains(error.code()), std::to_string(error.status()) + error.code());
    FUZZ_CHECK(!what.empty() && what.size() <= 300, what);
    for (const char c : what) FUZZ_CHECK(c >= ' ' && c < 0x7f, "an error that is not printable");
    parse_json(json::serialize(error.body()), "error");
    return "400 " + error.code() + " " + error.param() + " " + what;
  }
}

}  // namespace
}  // namespace carpool

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace carpool;
  fuzz::Bytes bytes(data, size);
  const Api api = static_cast<Api>(bytes.byte() % 4);
  const std::string whole = outcome(api, bytes.rest());
  if (whole.starts_with("400 invalid_json") || whole.starts_with("400 json_too_deep") ||
      whole.starts_with("400 invalid_unicode")) {
    return 0;
  }
  json::object body;
  try {
    body = read_body(bytes.rest());
  } catch (const ApiError&) {  // a number that no double holds
    return 0;
  }
  const std::string again = outcome(api, json::serialize(body));
  FUZZ_CHECK(again == whole, whole + "\nwritten anew:\n" + again);
  return 0;
}
