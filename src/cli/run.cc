// `carpool run MODEL [PROMPT...]`: generate in the terminal; several prompts form one batch.
#include <fmt/format.h>

#include <cstdio>
#include <ctime>
#include <iostream>
#include <iterator>
#include <map>
#include <numeric>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "engine/engine.h"
#include "measure/result.h"
#include "text/chat_template.h"

namespace carpool {
namespace {

struct RunOptions {
  ModelOptions model;
  PolicyOption policy;
  std::vector<std::string> prompts;
  std::string prompts_file, json;
  int max_tokens = 128, max_batch = 64, chunk = 256;
  int64_t kv_tokens = 0;
  std::optional<float> temperature, top_p;
  std::optional<int> top_k;
  float min_p = 0;
  uint64_t seed = 0;
  std::vector<std::string> stop;
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
  if (prompts.empty()) {
    prompts.emplace_back(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  return prompts;
}

std::vector<int> encode_prompt(const LoadedModel& loaded, const RunOptions& options, const std::string& prompt) {
  if (!options.chat) return loaded.tokenizer.encode(prompt, /*add_special=*/true, /*parse_special=*/false);
  if (!loaded.tokenizer_config.chat_template) {
    throw Error(ErrorKind::kConfig,
                fmt::format("{}: the model has no chat template", escape(options.model.model, 400)));
  }
  const ChatTemplate chat = ChatTemplate::parse(*loaded.tokenizer_config.chat_template);
  ChatInput input;
  input.messages = json::array{json::object{{"role", "user"}, {"content", prompt}}};
  input.now = std::time(nullptr);
  const TokenizerConfig& tokens = loaded.tokenizer_config;
  if (tokens.bos_token) input.trusted_variables["bos_token"] = *tokens.bos_token;
  if (tokens.eos_token) input.trusted_variables["eos_token"] = *tokens.eos_token;
  return encode_chat(loaded.tokenizer, ChatTemplate::parse(*tokens.chat_template).render(input));
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

std::string plain_reasons(const RoutingCounters& c) {
  std::string out;
  for (int r = 1; r < kPlainReasons; ++r) {
    if (const int64_t n = c.plain_steps[static_cast<size_t>(r)])
      out += fmt::format(" {}={}", name(static_cast<PlainReason>(r)), n);
  }
  return out.empty() ? " none" : out;
}

std::string routing_line(const RoutingCounters& c) {
  const auto layers = static_cast<double>(std::max<int64_t>(c.layers, 1));
  return fmt::format(
      "distinct experts {:.1f} (plain routing {:.1f}) per layer, re-routed {}, under-filled {} of {} (token, layer), "
      "left plain:{}",
      static_cast<double>(c.distinct_experts) / layers, static_cast<double>(c.distinct_plain) / layers,
      c.rerouted_tokens, c.underfilled_tokens, std::accumulate(c.plain_rows.begin(), c.plain_rows.end(), int64_t{0}),
      plain_reasons(c));
}

json::object routing_json(const RoutingCounters& c) {
  json::object out;
  const auto layers = static_cast<double>(std::max<int64_t>(c.layers, 1));
  out["distinct_experts"] = static_cast<double>(c.distinct_experts) / layers;
  out["distinct_experts_plain"] = static_cast<double>(c.distinct_plain) / layers;
  out["rerouted_tokens"] = c.rerouted_tokens;
  out["underfilled_tokens"] = c.underfilled_tokens;
  json::object plain;
  for (int r = 1; r < kPlainReasons; ++r)
    plain[name(static_cast<PlainReason>(r))] = c.plain_steps[static_cast<size_t>(r)];
  out["plain_steps"] = std::move(plain);
  return out;
}

void write_json(const RunOptions& options, const Invocation& invocation, LoadedModel& loaded, const Engine& engine,
                const std::map<RequestId, Answer>& answers) {
  json::object out;
  out["command"] = command_line(invocation.words);
  out["commit"] = build_commit();
  out["machine"] = machine_facts(loaded.model.ops().threads(), loaded.model.ops().isa());
  out["model"] = options.model.model;
  out["policy"] = engine.policy().spec();
  json::array results;
  for (const auto& [id, a] : answers) {
    results.push_back(json::object{{"prompt", a.prompt},
                                   {"prompt_tokens", a.prompt_tokens},
                                   {"text", a.text},
                                   {"tokens", json::array(a.tokens.begin(), a.tokens.end())},
                                   {"finish_reason", name(a.finish)}});
  }
  out["results"] = std::move(results);
  out["routing"] = routing_json(engine.decode_routing());
  write_output(options.json, pretty(out));
}

void print_step(const StepReport& report, int64_t step) {
  std::fprintf(stderr, "step %ld: %d decode rows, %d prompt rows, %.2f ms; %s\n", static_cast<long>(step),
               report.decode_rows, report.prefill_rows, report.seconds * 1e3, routing_line(report.routing).c_str());
}

void run(const RunOptions& options, const Invocation& invocation) {
  const std::unique_ptr<Policy> policy = make_policy(options.policy.resolve());  // a bad spec fails before the load
  LoadedModel loaded = load_model(options.model);
  const std::vector<std::string> prompts = all_prompts(options);
  EngineOptions engine_options{options.max_batch, options.chunk, options.kv_tokens};
  Engine engine(loaded.model, &loaded.tokenizer, make_policy(policy->spec()), engine_options);
  std::map<RequestId, Answer> answers;
  for (const std::string& prompt : prompts) {
    Request request;
    request.prompt = encode_prompt(loaded, options, prompt);
    request.max_tokens = options.max_tokens;
    request.sampling = sampling(options, loaded.model.config());
    request.stop_strings = options.stop;
    request.ignore_eos = options.ignore_eos;
    request.isolated = options.isolated;
    const int prompt_tokens = static_cast<int>(request.prompt.size());
    answers[engine.submit(std::move(request))] = {prompt, "", prompt_tokens, {}, FinishReason::kNone};
  }
  const bool to_terminal = options.json != "-";
  const bool stream = to_terminal && prompts.size() == 1;
  const auto print = [&](const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  if (stream && !options.chat) print(prompts[0]);
  int64_t steps = 0;
  while (engine.step()) {
    ++steps;
    for (const Event& event : engine.last_step().events) {
      Answer& answer = answers[event.id];
      if (event.token >= 0) answer.tokens.push_back(event.token);
      answer.text += event.text;
      answer.finish = event.finish;
      if (stream) print(event.text);
      if (event.finish == FinishReason::kNumericalError) {
        throw Error(ErrorKind::kInternal, fmt::format("request {}: the model's logits are not finite", event.id));
      }
    }
    if (options.verbose) print_step(engine.last_step(), steps);
  }
  if (stream) print("\n");
  if (to_terminal && !stream) {
    for (const auto& [id, a] : answers)
      print(fmt::format("--- {} ({})\n{}{}\n", id, name(a.finish), options.chat ? "" : a.prompt, a.text));
  }
  if (options.verbose) {
    std::fprintf(stderr, "%s on decode steps: %s\n", engine.policy().spec().c_str(),
                 routing_line(engine.decode_routing()).c_str());
  }
  if (!options.json.empty()) write_json(options, invocation, loaded, engine, answers);
}

}  // namespace

void add_run(CLI::App& app, const Invocation& invocation) {
  auto options = std::make_shared<RunOptions>();
  CLI::App& c = *app.add_subcommand("run", "generate text in the terminal; several prompts are decoded as one batch");
  c.footer(
      "Example: carpool run models/books-qwen3 --prompts models/books-qwen3/prompts.txt --policy oea:k0=5 --verbose");
  options->model.add_to(c);
  options->policy.add_to(c);
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
  c.add_flag("--chat", options->chat, "treat each prompt as a user's message, through the model's chat template");
  c.add_flag("--isolated", options->isolated, "plain routing for these requests whatever the policy");
  c.add_flag("--ignore-eos", options->ignore_eos, "go on past the model's end tokens");
  c.add_option("--max-batch", options->max_batch, "sequences decoded at once")->capture_default_str();
  c.add_option("--chunk", options->chunk, "prompt tokens per step, beside the decode rows")->capture_default_str();
  c.add_option("--kv-tokens", options->kv_tokens,
               "positions in the key-value pool; 0 = enough for the batch, at most 65536")
      ->capture_default_str();
  c.add_flag("--verbose", options->verbose, "routing counters of every step on standard error");
  c.add_option("--json", options->json,
               "write prompts, texts, token ids and routing counters to this file (- = standard output)");
  c.callback([options, &invocation] { run(*options, invocation); });
}

}  // namespace carpool
