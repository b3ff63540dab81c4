// `carpool ab MODEL --a SPEC --b SPEC`: the same requests under two or more policies, speed and quality side by side.
#include "measure/ab.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/cpu_info.h"
#include "base/error.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "measure/html.h"
#include "measure/report.h"

namespace carpool {
namespace {

constexpr int kPromptTokens = 32;     // of a document, where the prompts of the file are too few
constexpr int kMostStarts = 1 << 12;  // documents looked at for prompts

struct Options {
  ModelOptions model;
  std::string a = "topk";
  std::vector<std::string> b;
  ProfileOption profile;
  AbOptions ab;
  std::optional<int> cold_copies;  // default: decided by size
  std::optional<int> documents;    // default: at least 64 that fill every batch
  std::string prompts_file, json, html;
  std::vector<std::string> text;
};

// The non-empty lines of the file of prompts, each with its line number.
std::vector<AbPrompt> read_prompts(const std::string& path, const Tokenizer& tokenizer) {
  const std::string text = read_text_file(path);
  std::vector<AbPrompt> prompts;
  int number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = std::string_view(text).substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++number;
    if (!line.empty())
      prompts.push_back({tokenizer.encode(line, true, false), fmt::format("{} line {}", path, number)});
    at = end + 1;
  }
  if (prompts.empty()) throw Error(ErrorKind::kUsage, fmt::format("{}: no prompts", escape(path, 400)));
  return prompts;
}

// --prompts, or the model's own file, or none.
std::string prompts_path(const Options& options) {
  if (!options.prompts_file.empty()) return options.prompts_file;
  const auto beside = std::filesystem::path(options.model.model) / "prompts.txt";
  return std::filesystem::exists(beside) ? beside.string() : "";
}

// The prompts of the file, filled up with starts of documents of the text where more are needed. Documents beyond those
// of the quality pass are used too.
std::vector<AbPrompt> all_prompts(const Options& options, const std::vector<std::string>& files,
                                  const Tokenizer& tokenizer) {
  const int needed = *std::max_element(options.ab.concurrency.begin(), options.ab.concurrency.end());
  std::vector<AbPrompt> prompts;
  if (const std::string path = prompts_path(options); !path.empty()) prompts = read_prompts(path, tokenizer);
  prompts = distinct_prompts(std::move(prompts), {}, needed);
  if (std::ssize(prompts) >= needed) {
    prompts.resize(static_cast<size_t>(needed));
    return prompts;
  }
  const int tokens = std::min(kPromptTokens, options.ab.text.tokens);
  const Documents starts = read_starts(tokenizer, files, {kMostStarts, tokens}, options.ab.text.tokens);
  return distinct_prompts(std::move(prompts), starts, needed);
}

void check_outputs(const Options& options) {
  std::error_code ignored;
  if (!options.json.empty() && !options.html.empty() &&
      (options.json == options.html || std::filesystem::weakly_canonical(options.json, ignored) ==
                                           std::filesystem::weakly_canonical(options.html, ignored))) {
    throw Error(ErrorKind::kUsage, "--json and --html name the same file");
  }
  check_output(options.json);
  check_output(options.html);
}

std::string join(const std::vector<std::string>& list) {
  std::string out;
  for (const std::string& s : list) out += (out.empty() ? "" : " ") + s;
  return out;
}

void run(Options& options, const Invocation& invocation) {
  options.ab.policies = {options.a};
  options.ab.policies.insert(options.ab.policies.end(), options.b.begin(), options.b.end());
  options.ab.policies = options.profile.resolve(options.ab.policies, options.model.model);
  options.ab.text.documents = options.documents.value_or(default_documents(options.ab.concurrency));
  check_outputs(options);
  check_ab(read_model_config(options.model.model), options.ab);  // before the load
  LoadedModel loaded = load_model(options.model);
  if (!options.model.quiet) print_notes(loaded.model.config());
  const std::vector<std::string> files = text_files(options.text, options.model.model);
  const Documents documents = read_documents(loaded.tokenizer, files, options.ab.text);
  const std::vector<AbPrompt> prompts = all_prompts(options, files, loaded.tokenizer);
  const int copies = options.cold_copies.value_or(default_cold_copies(loaded.model));
  loaded.model.set_cold_copies(copies);
  Progress progress(options.model.quiet);
  options.ab.progress = [&](const std::string& stage, double share) { progress.show(stage, share); };

  Report report;
  report.cache_bytes = cpu_info().l3_bytes;
  report.facts.command = command_line(invocation.words);
  report.facts.commit = build_commit();
  report.facts.machine = machine_facts(loaded.model.ops().threads(), loaded.model.ops().isa());
  report.facts.model = fmt::format("{} ({})", options.model.model, loaded.model.config().family);
  report.facts.settings = {
      {"repeats", std::to_string(options.ab.repeats)},
      {"new_tokens", std::to_string(options.ab.new_tokens)},
      {"cold_copies", std::to_string(copies)},
      {"distinct_prompts", std::to_string(prompts.size())},
      {"text", join(files)},
      {"text_size", fmt::format("{} documents of {} tokens", options.ab.text.documents, options.ab.text.tokens)},
  };
  report.rows = run_ab(loaded.model, prompts, documents, options.ab);
  if (options.json != "-" && options.html != "-") write_output("-", text_table(report));
  if (!options.json.empty()) write_output(options.json, pretty(to_json(report)));
  if (!options.html.empty()) write_output(options.html, html_report(report));
}

}  // namespace

void add_ab(CLI::App& app, const Invocation& invocation) {
  auto options = std::make_shared<Options>();
  CLI::App& c = *app.add_subcommand(
      "ab", "compare routing policies: the same requests, alternating order, speed with its quality cost");
  c.footer(
      "Example: carpool ab models/books-qwen3 --a topk --b oea:k0=5 --b oea:k0=3 --b prune:k0=3 --html report.html");
  options->model.add_to(c);
  c.add_option("--a", options->a, "the policy others are compared with")->capture_default_str();
  c.add_option("--b", options->b, "a policy to compare; may be given several times")
      ->required()
      ->allow_extra_args(false);
  options->profile.add_to(c);
  c.add_option("--concurrency", options->ab.concurrency, "requests decoded together, e.g. 1,4,16")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  c.add_option("--new-tokens", options->ab.new_tokens, "tokens generated per request")->capture_default_str();
  c.add_option("--repeat,--repeats", options->ab.repeats, "rounds in which every policy runs once")
      ->capture_default_str();
  c.add_option("--chunk", options->ab.chunk, "prompt tokens per step")->capture_default_str();
  c.add_option("--cold-copies", options->cold_copies,
               "private copies of the experts used in turn, so that they come from memory and not from cache; 0 = none "
               "(default: four times the last-level cache for models smaller than that, else 0)")
      ->check(CLI::Range(0, 4096));
  c.add_option(
      "--prompts", options->prompts_file,
      "one prompt per line (default: prompts.txt of the model); starts of the text's documents are added where "
      "the concurrency needs more");
  c.add_option("--text", options->text,
               "text for the quality pass; lines of --- separate documents; may be given several times (default: "
               "eval.txt of the model)")
      ->allow_extra_args(false);
  c.add_option(
       "--documents", options->documents,
       "documents of the quality pass; a multiple of each concurrency (default: the first such number from 64 on)")
      ->check(CLI::Range(1, 1 << 20));
  c.add_option("--document-tokens", options->ab.text.tokens, "tokens of each")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 20));
  c.add_option("--json", options->json, "write the results to this file (- = standard output instead of the table)");
  c.add_option("--html", options->html,
               "write a report with charts to this file (- = standard output instead of the table)");
  c.callback([options, &invocation] { run(*options, invocation); });
}

}  // namespace carpool
