// See parameters.h. One function per group of fields, one per API that says which groups it has.
#include "server/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <random>

#include "server/api_error.h"
#include "server/fields.h"
#include "server/structure_fields.h"

namespace carpool {
namespace {

// A field that changes what is generated and that we do not have. `neutral` is the number that asks for nothing;
// false, "", [] and {} always do.
struct Refused {
  const char* name;
  double neutral = 0;
};

// Grammars in languages that we do not speak.
constexpr Refused kGrammars[] = {{"grammar"},
                                 {"ebnf"},
                                 {"structural_tag"},
                                 {"guided_grammar"},
                                 {"stop_regex"},
                                 {"custom_params"},
                                 {"guided_decoding"},
                                 {"guided_options_request"},
                                 {"whitespace_pattern"},
                                 {"guided_whitespace_pattern"}};
// Wishes for structure that an endpoint takes by another name, or in another place (structure_fields.h).
constexpr Refused kStructure[] = {{"json_schema"},   {"regex"},  {"guided_json"},        {"guided_regex"},
                                  {"guided_choice"}, {"choice"}, {"structured_outputs"}, {"guided_json_object"}};
constexpr Refused kEverywhere[] = {{"bad_words"},
                                   {"allowed_token_ids"},
                                   {"logits_processors"},
                                   {"custom_logit_processor"},
                                   {"token_ids_logprob"},
                                   {"return_hidden_states"},
                                   {"return_routed_experts"},
                                   {"lora_path"},
                                   {"prompt_embeds"},
                                   {"input_embeds"},
                                   {"image_data"},
                                   {"audio_data"},
                                   {"video_data"},
                                   {"truncate_prompt_tokens"},
                                   {"use_beam_search"},
                                   {"samplers"},
                                   {"experts"},
                                   {"typical_p", 1},
                                   {"top_n_sigma", -1},
                                   {"top_a"},
                                   {"tfs_z", 1},
                                   {"xtc_probability"},
                                   {"dry_multiplier"},
                                   {"dynatemp_range"},
                                   {"mirostat"},
                                   {"adaptive_target", -1},
                                   {"n_predict", -1},
                                   {"t_max_predict_ms"},
                                   {"repeat_last_n", -1},
                                   {"penalty_last_n", -1}};
// SGLang's name of max_tokens, where it is not.
constexpr Refused kOpenAiOnly[] = {{"max_new_tokens"}};
// What belongs into sampling_params, beside it.
constexpr Refused kBesideSampling[] = {{"max_new_tokens"}, {"max_tokens"}, {"temperature"},
                                       {"top_p", 1},       {"top_k", -1},  {"min_p"},
                                       {"stop"},           {"n", 1},       {"ignore_eos"}};
constexpr Refused kChatOnly[] = {{"functions"}, {"chat_template"}, {"documents"}, {"audio"}, {"prediction"}, {"echo"}};
constexpr Refused kCompletionOnly[] = {{"suffix"}};
constexpr Refused kMessagesOnly[] = {{"mcp_servers"}, {"container"}};

bool asks_for_nothing(const json::value& value, double neutral) {
  switch (value.kind()) {
    case json::kind::null:
      return true;
    case json::kind::bool_:
      return !value.get_bool();
    case json::kind::string:
      return value.get_string().empty();
    case json::kind::array:
      return value.get_array().empty();
    case json::kind::object:
      return value.get_object().empty();
    default:
      return value.to_number<double>() == neutral;
  }
}

void refuse(const Fields& fields, std::span<const Refused> list) {
  for (const Refused& refused : list) {
    const json::value* value = fields.find(refused.name);
    if (!value || asks_for_nothing(*value, refused.neutral)) continue;
    const std::string path = fields.path(refused.name);
    throw unsupported(path, fmt::format("{} is not supported by this server", path));
  }
}

// A field of which only the value `allowed` is served.
void refuse_unless(const Fields& fields, const char* name, std::string_view allowed) {
  const json::value* value = fields.find(name);
  if (!value || (value->is_string() && value->get_string() == allowed)) return;
  throw unsupported(fields.path(name),
                    fmt::format("{} other than \"{}\" is not supported by this server", fields.path(name), allowed));
}

void refuse_structure(const Fields& fields) {
  refuse(fields, kGrammars);
  refuse(fields, kStructure);
  const json::value* format = fields.find("response_format");
  if (!format) return;
  refuse_unless(Fields::of(*format, fields.path("response_format")), "type", "text");
}

// A count with one limit for values (invalid_value below `low`) and one for work (too_many_items above `most`).
std::optional<int> count(const Fields& fields, const char* name, int low, int most) {
  const std::optional<int64_t> value = fields.integer(name, low, INT32_MAX);
  if (!value) return std::nullopt;
  if (*value > most) {
    throw bad_request("too_many_items",
                      fmt::format("{} must be {} to {}, got {}", fields.path(name), low, most, *value),
                      fields.path(name));
  }
  return static_cast<int>(*value);
}

std::string routing_text(const Fields& fields) {
  const std::string text = fields.string("routing").value_or("");
  if (text.size() > 256) throw invalid_value("routing", "routing has more than 256 characters");
  return text;
}

// What the caller sees beside the numbers: who answers, how it is routed, whether it streams.
void read_frame(const Fields& fields, Generation& g) {
  g.model = fields.string("model");
  g.routing.text = routing_text(fields);
  g.stream = fields.boolean_or("stream", false);
  fields.string("user");
}

void read_stream_options(const Fields& fields, Generation& g) {
  const std::optional<Fields> options = fields.object("stream_options");
  if (!options || !g.stream) return;
  g.include_usage = options->boolean_or("include_usage", false);
  g.continuous_usage = options->boolean_or("continuous_usage_stats", false);
}

void read_seed(const Fields& fields, const char* name, Generation& g) {
  const json::value* value = fields.find(name);
  const bool large = value && value->is_uint64() && value->get_uint64() > INT64_MAX;
  const std::optional<int64_t> seed = large ? std::optional<int64_t>() : fields.integer(name, INT64_MIN, INT64_MAX);
  g.seed_given = large || (seed && *seed != -1);
  if (g.seed_given) {
    g.request.sampling.seed = large ? value->get_uint64() : static_cast<uint64_t>(*seed);
  } else {
    std::random_device device;
    g.request.sampling.seed = (uint64_t{device()} << 32) | device();
  }
}

constexpr Range kTemperature{0, 100, "0 to 100"}, kTopP{0, 1, "above 0 and at most 1", true},
    kMinP{0, 1, "0 or more and below 1", false, true}, kRepetition{0, 2, "above 0 and at most 2", true},
    kPenalty{-2, 2, "-2 to 2"}, kBias{-100, 100, "-100 to 100"};

// `default_temperature` holds where neither the request nor the model says one.
void read_temperature(const Fields& fields, const ModelConfig& config, float default_temperature,
                      SamplingParams& sampling) {
  const ModelConfig::SamplingDefaults& own = config.sampling;
  sampling.temperature =
      fields.number("temperature", kTemperature).value_or(own.temperature > 0 ? own.temperature : default_temperature);
  sampling.top_p = fields.number("top_p", kTopP).value_or(own.top_p);
  // -1 and 0 both mean all.
  sampling.top_k = static_cast<int>(std::max<int64_t>(fields.integer("top_k", -1, INT32_MAX).value_or(own.top_k), 0));
}

void read_logit_bias(const Fields& fields, int vocab, SamplingParams& sampling) {
  const std::optional<Fields> bias = fields.object("logit_bias");
  if (!bias) return;
  if (bias->raw().size() > kMaxLogitBias) {
    throw too_many_items(fields.path("logit_bias"), bias->raw().size(), kMaxLogitBias);
  }
  for (const auto& [key, value] : bias->raw()) {
    int id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    // One spelling for each id, so that none is there twice.
    const bool plain =
        error == std::errc() && end == key.data() + key.size() && std::string_view(key) == std::to_string(id);
    if (!plain || id < 0 || id >= vocab) {
      throw invalid_value(fields.path("logit_bias"),
                          fmt::format("the keys of logit_bias must be token ids from 0 to {}", vocab - 1));
    }
    if (!value.is_number()) throw invalid_value(fields.path("logit_bias"), "the values of logit_bias must be numbers");
    sampling.logit_bias.emplace_back(id, *bias->number(key, kBias));
  }
}

void read_penalties(const Fields& fields, const ModelConfig& config, SamplingParams& sampling) {
  const auto penalty = fields.number("repetition_penalty", kRepetition);
  const auto alias = fields.number("repeat_penalty", kRepetition);
  if (penalty && alias && *penalty != *alias) {
    throw invalid_value(fields.path("repeat_penalty"), "repetition_penalty and repeat_penalty differ");
  }
  sampling.repetition_penalty = penalty ? *penalty : alias.value_or(1);
  sampling.presence_penalty = fields.number("presence_penalty", kPenalty).value_or(0);
  sampling.frequency_penalty = fields.number("frequency_penalty", kPenalty).value_or(0);
  sampling.min_p = fields.number("min_p", kMinP).value_or(0);
  read_logit_bias(fields, config.vocab, sampling);
}

void read_stop_strings(const Fields& fields, const char* name, Request& request) {
  const json::value* value = fields.find(name);
  if (!value) return;
  const std::string path = fields.path(name);
  const auto add = [&](const json::value& stop) {
    if (!stop.is_string()) throw invalid_value(path, fmt::format("{} must be a string or a list of strings", path));
    const json::string& text = stop.get_string();
    if (text.empty() || text.size() > kMaxStopBytes) {
      throw invalid_value(
          path, fmt::format("a string of {} must have 1 to {} bytes, got {}", path, kMaxStopBytes, text.size()));
    }
    request.stop_strings.emplace_back(text);
  };
  if (!value->is_array()) return add(*value);
  for (const json::value& stop : *fields.array(name, kMaxStops)) add(stop);
}

void read_stops(const Fields& fields, const ModelConfig& config, Request& request) {
  read_stop_strings(fields, "stop", request);
  if (const json::array* ids = fields.array("stop_token_ids", kMaxStopIds)) {
    request.stop_ids = read_token_ids(*ids, fields.path("stop_token_ids"), config.vocab);
  }
  request.include_stop = fields.boolean_or("include_stop_str_in_output", fields.boolean_or("no_stop_trim", false));
  request.skip_special = fields.boolean_or("skip_special_tokens", true);
  request.ignore_eos = fields.boolean_or("ignore_eos", false);
}

void read_lengths(const Fields& fields, const char* max_name, const char* min_name, int fallback, Generation& g) {
  const std::optional<int64_t> most = fields.integer(max_name, g.echo ? 0 : 1, INT32_MAX);
  if (most) g.max_tokens_given = true;
  g.request.max_tokens = static_cast<int>(most.value_or(fallback));
  g.request.min_tokens = static_cast<int>(fields.integer(min_name, 0, INT32_MAX).value_or(0));
  if (g.request.min_tokens > g.request.max_tokens) {
    throw invalid_value(fields.path(min_name), fmt::format("{} is {}, more than the {} tokens of {}", min_name,
                                                           g.request.min_tokens, g.request.max_tokens, max_name));
  }
}

void read_cache(const Fields& fields, Request& request) {
  // A salt keeps prefixes apart; ours are apart by tenant only, so salted ones are not shared at all.
  const bool salted = fields.has("cache_salt") || fields.has("extra_key");
  request.cache_prefix = fields.boolean_or("cache_prompt", true) && !salted;
}

void read_extras(const Fields& fields, Generation& g) {
  g.prompt_logprobs = count(fields, "prompt_logprobs", 0, kMaxLogprobs).value_or(-1);
  if (g.prompt_logprobs >= 0 && g.stream) {
    throw unsupported("prompt_logprobs", "prompt_logprobs is not available with stream");
  }
  g.return_token_ids = fields.boolean_or("return_token_ids", false);
  g.tokens_as_ids = fields.boolean_or("return_tokens_as_token_ids", false);
}

// What the engine must record for what the response shows.
void settle_logprobs(Generation& g) {
  const bool prompt = g.prompt_logprobs >= 0 || (g.echo && g.logprobs >= 0) || g.request.max_tokens == 0;
  g.request.logprobs = std::max(g.logprobs, g.prompt_logprobs);
  if (prompt) g.request.logprobs = std::max(g.request.logprobs, 0);
  g.request.prompt_logprobs = prompt;
}

// The fields that both of OpenAI's endpoints have, here or in servers like ours.
Generation read_openai(const Fields& fields, const ModelConfig& config) {
  Generation g;
  refuse(fields, kEverywhere);
  refuse(fields, kOpenAiOnly);
  refuse(fields, kGrammars);
  g.structure = read_structure(fields);
  read_frame(fields, g);
  read_stream_options(fields, g);
  g.n = count(fields, "n", 1, kMaxN).value_or(1);
  read_seed(fields, "seed", g);
  read_temperature(fields, config, 1, g.request.sampling);
  read_penalties(fields, config, g.request.sampling);
  read_stops(fields, config, g.request);
  read_cache(fields, g.request);
  read_extras(fields, g);
  return g;
}

}  // namespace

Generation read_completion(const json::object& body, const ModelConfig& config) {
  const Fields fields(body);
  refuse(fields, kCompletionOnly);
  Generation g = read_openai(fields, config);
  const std::optional<int> best_of = count(fields, "best_of", 1, kMaxN);
  if (best_of && *best_of != g.n) throw unsupported("best_of", "best_of other than n is not supported by this server");
  g.echo = fields.boolean_or("echo", false);
  g.add_special_tokens = fields.boolean_or("add_special_tokens", true);
  g.logprobs = count(fields, "logprobs", 0, kMaxLogprobs).value_or(-1);
  read_lengths(fields, "max_tokens", "min_tokens", 16, g);
  settle_logprobs(g);
  return g;
}

Generation read_chat(const json::object& body, const ModelConfig& config) {
  const Fields fields(body);
  for (const char* list : {"tools", "functions"}) fields.array(list, kMaxTools);
  refuse(fields, kChatOnly);
  refuse_unless(fields, "function_call", "none");
  if (const json::array* modalities = fields.array("modalities", 8)) {
    if (modalities->size() != 1 || !modalities->front().is_string() || modalities->front().get_string() != "text") {
      throw unsupported("modalities", "modalities other than text are not supported by this server");
    }
  }
  if (fields.has("web_search_options")) {
    throw unsupported("web_search_options", "web_search_options is not supported by this server");
  }
  Generation g = read_openai(fields, config);
  const std::optional<int> top = count(fields, "top_logprobs", 0, kMaxLogprobs);
  if (fields.boolean_or("logprobs", false)) {
    g.logprobs = top.value_or(0);
  } else if (top.value_or(0) > 0) {
    throw invalid_value("top_logprobs", "top_logprobs needs logprobs to be true");
  }
  const char* max_name = fields.has("max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
  read_lengths(fields, max_name, "min_tokens", INT32_MAX, g);
  settle_logprobs(g);
  return g;
}

Generation read_native(const json::object& sampling_params, const std::string& path, const json::object& body,
                       const ModelConfig& config) {
  static constexpr std::string_view kKnown[] = {"max_new_tokens",
                                                "min_new_tokens",
                                                "temperature",
                                                "top_p",
                                                "top_k",
                                                "min_p",
                                                "presence_penalty",
                                                "frequency_penalty",
                                                "stop",
                                                "repetition_penalty",
                                                "stop_token_ids",
                                                "ignore_eos",
                                                "no_stop_trim",
                                                "n",
                                                "skip_special_tokens",
                                                "sampling_seed",
                                                "logit_bias",
                                                "seed",
                                                "stream_interval",
                                                "json_schema",
                                                "regex",
                                                "spaces_between_special_tokens"};
  const Fields fields(sampling_params, path), outer(body);
  Generation g;
  refuse(outer, kEverywhere);
  refuse(outer, kBesideSampling);
  refuse_structure(outer);
  refuse(fields, kEverywhere);
  refuse(fields, kGrammars);
  g.structure = read_native_structure(fields);
  for (const auto& [key, value] : sampling_params) {
    const bool known = std::find(std::begin(kKnown), std::end(kKnown), key) != std::end(kKnown);
    const auto refused = [&](const Refused& r) { return key == r.name; };
    if (known || value.is_null() || std::any_of(std::begin(kEverywhere), std::end(kEverywhere), refused) ||
        std::any_of(std::begin(kGrammars), std::end(kGrammars), refused)) {
      continue;
    }
    throw unsupported(path, fmt::format("{} has a field that this server does not know", path));
  }
  read_frame(outer, g);
  g.n = count(fields, "n", 1, kMaxN).value_or(1);
  read_seed(fields, fields.has("sampling_seed") ? "sampling_seed" : "seed", g);
  read_temperature(fields, config, 1, g.request.sampling);
  read_penalties(fields, config, g.request.sampling);
  read_stops(fields, config, g.request);
  read_cache(outer, g.request);
  read_lengths(fields, "max_new_tokens", "min_new_tokens", 128, g);
  return g;
}

void refuse_message_extras(const json::object& body) {
  const Fields fields(body);
  fields.array("tools", kMaxTools);
  refuse(fields, kMessagesOnly);
  refuse(fields, kEverywhere);
  refuse(fields, kOpenAiOnly);
  refuse_structure(fields);
}

Generation read_messages(const json::object& body, const ModelConfig& config) {
  refuse_message_extras(body);
  const Fields fields(body);
  Generation g;
  read_frame(fields, g);
  fields.required("max_tokens");
  read_lengths(fields, "max_tokens", "min_tokens", 0, g);
  read_seed(fields, "seed", g);
  read_temperature(fields, config, 1, g.request.sampling);
  read_stop_strings(fields, "stop_sequences", g.request);
  read_cache(fields, g.request);
  g.structure = read_messages_structure(fields);
  return g;
}

void check_choices(size_t prompts, int n) {
  if (prompts * static_cast<size_t>(n) <= kMaxChoices) return;
  throw bad_request("too_many_items",
                    fmt::format("{} prompts times n = {} are more than {} choices", prompts, n, kMaxChoices), "n");
}

void fit_max_tokens(int prompt_tokens, const RequestLimits& limits, bool max_tokens_given, Request& request) {
  if (max_tokens_given) return;
  const int64_t room = std::min<int64_t>(limits.context, limits.pool_positions) - prompt_tokens;
  request.max_tokens = static_cast<int>(std::clamp<int64_t>(room, 1, request.max_tokens));
}

}  // namespace carpool
