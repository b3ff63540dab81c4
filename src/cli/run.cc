// `carpool run MODEL [PROMPT...]`: generate in the terminal; several prompts form one batch.
#include "cli/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/trace_options.h"
#include "engine/engine.h"
#include "grammar/constraint.h"
#include "grammar/structure.h"
#include "measure/result.h"
#include "model/routing_tables.h"
#include "text/chat_template.h"
#include "text/utf8.h"

namespace carpool {
namespace {

constexpr size_t kMaxInput = size_t{8} << 20;  // bytes of standard input; far more than any context

struct RunOptions {
  ModelOptions model;
  PolicyOption policy;
  RecordOptions record;
  std::vector<std::string> prompts;
  std::string prompts_file, json;
  int max_tokens = 128, max_batch = 64, chunk = 256;
  int64_t kv_tokens = 0;
  std::optional<float> temperature, top_p;
  std::optional<int> top_k;
  float min_p = 0;
  uint64_t seed = 0;
  std::vector<std::string> stop;
  std::string json_schema, regex;
  std::vector<std::string> choices;
  bool chat = false, isolated = false, ignore_eos = false, verbose = false;
};

// One prompt and what became of it.
struct Answer {
  std::string prompt, text;
  int prompt_tokens = 0;
  std::vector<int> tokens;
  FinishReason finish = FinishReason::kNone;
};

std::vector<std::string> all_prompts(const RunOptions& options) {
  std::vector<std::string> prompts = options.prompts;
  if (!options.prompts_file.empty()) {
    for (std::string& line : read_lines(options.prompts_file)) prompts.push_back(std::move(line));
  }
  if (prompts.empty() && options.prompts_file.empty()) {
    prompts.push_back(read_stream(std::cin, kMaxInput, "standard input"));
  }
  if (prompts.empty()) {
    throw Error(ErrorKind::kUsage, fmt::format("{}: no prompts", escape(options.prompts_file, 400)));
  }
  return prompts;
}

// From a prompt to its tokens, as the options say; what all prompts share is done once.
std::function<std::vector<int>(const std::string&)> make_encoder(const LoadedModel& loaded, const RunOptions& options) {
  const Tokenizer& tokenizer = loaded.tokenizer;
  if (!options.chat) {
    return [&](const std::string& prompt) {
      return tokenizer.encode(prompt, /*add_special=*/true, /*parse_special=*/false);
    };
  }
  const TokenizerConfig& tokens = loaded.tokenizer_config;
  if (!tokens.chat_template) {
    throw Error(ErrorKind::kConfig,
                fmt::format("{}: the model has no chat template", escape(options.model.model, 400)));
  }
  ChatInput input;
  input.now = std::time(nullptr);
  if (tokens.bos_token) input.trusted_variables["bos_token"] = *tokens.bos_token;
  if (tokens.eos_token) input.trusted_variables["eos_token"] = *tokens.eos_token;
  return [&tokenizer, chat = ChatTemplate::parse(*tokens.chat_template), input](const std::string& prompt) mutable {
    input.messages = json::array{json::object{{"role", "user"}, {"content", prompt}}};
    return encode_chat(tokenizer, chat.render(input));
  };
}

SamplingParams sampling(const RunOptions& options, const ModelConfig& config) {
  SamplingParams params;
  params.temperature = options.temperature.value_or(config.sampling.temperature);
  params.top_k = options.top_k.value_or(config.sampling.top_k);
  params.top_p = options.top_p.value_or(config.sampling.top_p);
  params.min_p = options.min_p;
  params.seed = options.seed;
  return params;
}

std::string routing_line(const RoutingCounters& c) {
  if (c.layers == 0) return "no layer with routed experts ran";
  const auto layers = static_cast<double>(c.layers);
  return fmt::format(
      "distinct experts {:.1f} (plain routing {:.1f}) per layer, re-routed {}, under-filled {} of {} (token, layer), "
      "left plain: {}",
      static_cast<double>(c.distinct_experts) / layers, static_cast<double>(c.distinct_plain) / layers,
      c.rerouted_tokens, c.underfilled_tokens, std::accumulate(c.plain_rows.begin(), c.plain_rows.end(), int64_t{0}),
      plain_reasons_text(c));
}

void write_json(const RunOptions& options, const Invocation& invocation, LoadedModel& loaded, const Engine& engine,
                const std::map<RequestId, Answer>& answers) {
  json::object out;
  out["command"] = command_line(invocation.words);
  out["commit"] = build_commit();
  out["machine"] = machine_facts(loaded.model.ops().threads(), loaded.model.ops().isa());
  out["model"] = sanitize_utf8(options.model.model);
  out["policy"] = engine.policy().spec();
  json::array results;
  for (const auto& [id, a] : answers) {
    results.push_back(json::object{{"prompt", sanitize_utf8(a.prompt)},
                                   {"prompt_tokens", a.prompt_tokens},
                                   {"text", a.text},
                                   {"tokens", json::array(a.tokens.begin(), a.tokens.end())},
                                   {"finish_reason", name(a.finish)}});
  }
  out["results"] = std::move(results);
  out["kv_tokens"] = int64_t{engine.total_kv_blocks()} * KvCache::kBlockTokens;
  out["kv_cache_dtype"] = name(loaded.model.kv_format());
  out["kv_cache_bytes"] = engine.kv_bytes();
  out["routing"] = routing_json(engine.decode_routing());
  out["routing_all"] = routing_json(engine.routing());
  write_output(options.json, pretty(out));
}

void print_step(const StepReport& report, int64_t step) {
  std::fprintf(stderr, "step %ld: %d decode rows, %d prompt rows, %.2f ms; %s\n", static_cast<long>(step),
               report.decode_rows, report.prefill_rows, report.seconds * 1e3, routing_line(report.routing).c_str());
}

// Ends with a sentence about the prompts whose texts could not go on, if there are any.
void refuse_failures(const RunOptions& options, const std::map<RequestId, Answer>& answers, FinishReason failure,
                     const char* what) {
  std::string which;
  int count = 0, number = 0;
  for (const auto& [id, a] : answers) {
    ++number;
    if (a.finish != failure) continue;
    if (++count <= 10) which += fmt::format("{}{}", count > 1 ? ", " : "", number);
  }
  if (count == 0) return;
  throw Error(ErrorKind::kMalformed,
              fmt::format("{}: {} for prompt{} {}{}", escape(options.model.model, 400), what, count > 1 ? "s" : "",
                          which, count > 10 ? fmt::format(" and {} more", count - 10) : ""));
}

// What --json-schema, --regex or --choice ask for; nothing without them. A bad one fails before the load.
std::optional<StructureSpec> structure_of(const RunOptions& options) {
  if (int{!options.json_schema.empty()} + int{!options.regex.empty()} + int{!options.choices.empty()} > 1) {
    throw Error(ErrorKind::kUsage, "--json-schema, --regex and --choice exclude each other");
  }
  StructureSpec spec;
  if (!options.json_schema.empty()) {
    spec.kind = StructureSpec::Kind::kJsonSchema;
    spec.path = "--json-schema";
    const std::string where = escape(options.json_schema, 400);
    spec.schema = parse_json(read_text_file(options.json_schema, kMaxInput), where);
  } else if (!options.regex.empty()) {
    spec.kind = StructureSpec::Kind::kRegex;
    spec.path = "--regex";
    spec.regex = options.regex;
  } else if (!options.choices.empty()) {
    spec.kind = StructureSpec::Kind::kChoice;
    spec.path = "--choice";
    spec.choices = options.choices;
  } else {
    return std::nullopt;
  }
  return spec;
}

// Makes all steps. Text goes to `stream` as it comes.
void generate(const RunOptions& options, Engine& engine, std::map<RequestId, Answer>& answers,
              const std::function<void(const std::string&)>& stream) {
  for (int64_t steps = 1; engine.step(); ++steps) {
    for (const Event& event : engine.last_step().events) {
      Answer& answer = answers[event.id];
      if (event.token >= 0) answer.tokens.push_back(event.token);
      answer.text += event.text;
      answer.finish = event.finish;
      stream(event.text);
    }
    if (options.verbose) print_step(engine.last_step(), steps);
  }
}

void run(const RunOptions& options, const Invocation& invocation) {
  const std::unique_ptr<Policy> policy =
      make_policy(options.policy.resolve_for(options.model.model));  // a bad spec fails before the load
  options.record.check();
  const std::optional<StructureSpec> structure = structure_of(options);
  const std::shared_ptr<const Grammar> grammar = structure ? make_grammar(*structure) : nullptr;
  const std::vector<std::string> prompts = all_prompts(options);
  LoadedModel loaded = load_model(options.model);
  if (!options.model.quiet) print_notes(loaded.model.config());
  const auto encode = make_encoder(loaded, options);
  std::vector<std::vector<int>> tokens;
  for (const std::string& prompt : prompts) tokens.push_back(encode(prompt));
  std::vector<size_t> lengths;
  for (const auto& ids : tokens) lengths.push_back(ids.size());
  EngineOptions engine_options{options.max_batch, options.chunk, options.kv_tokens};
  if (options.kv_tokens == 0) {
    engine_options.kv_tokens =
        needed_kv_tokens(lengths, options.max_tokens, options.max_batch, loaded.model.config().context);
  }
  Engine engine(loaded.model, &loaded.tokenizer, make_policy(policy->spec(), loaded.model), engine_options);
  if (options.verbose) {
    std::fprintf(stderr, "weights: %s\n", loaded.model.memory_text().c_str());
    std::fprintf(stderr, "key-value cache: %ld positions, %s, %.1f MB\n",
                 static_cast<long>(engine.total_kv_blocks()) * KvCache::kBlockTokens,
                 std::string(name(loaded.model.kv_format())).c_str(), static_cast<double>(engine.kv_bytes()) / 1e6);
  }
  std::shared_ptr<Constraint> constraint;
  if (grammar) {
    const ModelConfig& config = loaded.model.config();
    auto trie = std::make_shared<const TokenTrie>(loaded.tokenizer, config.vocab, config.eos_ids);
    constraint = std::make_shared<Constraint>(grammar, std::move(trie));
  }
  const auto recorder =
      options.record.recorder(TraceRecorder::Writing::kWhole, options.model.model, loaded.model, policy->spec());
  engine.observe(recorder.get());
  std::map<RequestId, Answer> answers;
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request request;
    request.prompt = std::move(tokens[i]);
    request.max_tokens = options.max_tokens;
    request.sampling = sampling(options, loaded.model.config());
    request.stop_strings = options.stop;
    request.ignore_eos = options.ignore_eos;
    request.isolated = options.isolated;
    request.constraint = constraint;
    answers[engine.submit(std::move(request))] = {
        prompts[i], "", static_cast<int>(lengths[i]), {}, FinishReason::kNone};
  }
  const bool to_terminal = options.json != "-";
  const bool stream = to_terminal && prompts.size() == 1;
  const auto print = [](const std::string& text) { write_output("-", text); };
  if (stream && !options.chat) print(prompts[0]);
  generate(options, engine, answers, [&](const std::string& text) {
    if (stream) print(text);
  });
  if (recorder) recorder->finish();
  if (stream) print("\n");
  if (to_terminal && !stream) {
    for (const auto& [id, a] : answers)
      print(fmt::format("--- {} ({})\n{}{}\n", id, name(a.finish), options.chat ? "" : a.prompt, a.text));
  }
  if (options.verbose) {
    std::fprintf(stderr, "%s on decode steps: %s\n", engine.policy().spec().c_str(),
                 routing_line(engine.decode_routing()).c_str());
    std::fprintf(stderr, "%s on all steps: %s\n", engine.policy().spec().c_str(),
                 routing_line(engine.routing()).c_str());
  }
  if (!options.json.empty()) write_json(options, invocation, loaded, engine, answers);
  refuse_failures(options, answers, FinishReason::kNumericalError, "the model's logits are not finite");
  refuse_failures(options, answers, FinishReason::kConstraintError,
                  "the structure asked for could not be kept (too much work, or no token goes on)");
}

}  // namespace

int64_t needed_kv_tokens(std::span<const size_t> prompt_tokens, int max_tokens, int max_batch, int context) {
  std::vector<int64_t> blocks;
  for (const size_t n : prompt_tokens) {
    // The last token is never fed back; what exceeds the context is refused when it is submitted.
    const int64_t positions = static_cast<int64_t>(n) + max_tokens - 1;
    blocks.push_back(KvCache::blocks_for(std::clamp<int64_t>(positions, 1, context)));
  }
  std::sort(blocks.begin(), blocks.end(), std::greater<>());
  blocks.resize(std::min(blocks.size(), static_cast<size_t>(std::max(max_batch, 0))));
  return std::accumulate(blocks.begin(), blocks.end(), int64_t{0}) * KvCache::kBlockTokens;
}

void add_run(CLI::App& app, const Invocation& invocation) {
  auto options = std::make_shared<RunOptions>();
  CLI::App& c = *app.add_subcommand("run", "generate text in the terminal; several prompts are decoded as one batch");
  c.footer(
      "Example: carpool run models/books-qwen3 --prompts models/books-qwen3/prompts.txt --policy oea:k0=5 --verbose");
  options->model.add_to(c);
  options->policy.add_to(c);
  options->record.add_to(c);
  c.add_option("PROMPT", options->prompts, "prompts; without any, and without --prompts, standard input is the prompt");
  c.add_option("--prompts", options->prompts_file, "file with one prompt per line");
  c.add_option("--max-tokens", options->max_tokens, "new tokens per prompt")->capture_default_str();
  c.add_option("--temperature", options->temperature,
               "0 = greedy (default: the model's generation_config.json, else 0)");
  c.add_option("--top-k", options->top_k, "sample among the k best tokens; 0 = all");
  c.add_option("--top-p", options->top_p, "sample among the best tokens that hold this share of the probability");
  c.add_option("--min-p", options->min_p, "leave out tokens below this share of the best one's probability")
      ->capture_default_str();
  c.add_option("--seed", options->seed, "seed of sampling")->capture_default_str();
  c.add_option("--stop", options->stop, "end the text before this string; may be given up to 4 times")
      ->allow_extra_args(false);
  c.add_option("--json-schema", options->json_schema,
               "the text is JSON that the schema in this file accepts (docs/server.md: keywords)");
  c.add_option("--regex", options->regex, "the text matches this expression as a whole");
  c.add_option("--choice", options->choices, "the text is this one, or that of another --choice")
      ->allow_extra_args(false);
  c.add_flag("--chat", options->chat, "treat each prompt as a user's message, through the model's chat template");
  c.add_flag("--isolated", options->isolated, "plain routing for these requests whatever the policy");
  c.add_flag("--ignore-eos", options->ignore_eos, "go on past the model's end tokens");
  c.add_option("--max-batch,--max-running-requests", options->max_batch, "sequences decoded at once")
      ->capture_default_str();
  c.add_option("--chunk", options->chunk, "prompt tokens per step, beside the decode rows")->capture_default_str();
  c.add_option(
       "--kv-tokens", options->kv_tokens,
       "positions in the key-value pool; 0 = what the --max-batch longest of these prompts need with --max-tokens")
      ->capture_default_str();
  c.add_flag("--verbose", options->verbose, "routing counters of every step on standard error");
  c.add_option("--json", options->json,
               "write prompts, texts, token ids and routing counters to this file (- = standard output)");
  c.callback([options, &invocation] { run(*options, invocation); });
}

}  // namespace carpool
