// `carpool ab MODEL --a SPEC --b SPEC`: the same requests under two or more policies, speed and quality side by side.
#include "measure/ab.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "measure/html.h"
#include "measure/report.h"

namespace carpool {
namespace {

constexpr int kPromptTokens = 32;  // of a document, when there is no file of prompts

struct Options {
  ModelOptions model;
  std::string a = "topk";
  std::vector<std::string> b;
  AbOptions ab;
  int cold_copies = -1;  // -1 = decided by size
  std::string prompts_file, json, html;
  std::vector<std::string> text;
};

std::vector<std::vector<int>> read_prompts(const Options& options, const Tokenizer& tokenizer,
                                           const Documents& documents) {
  std::vector<std::vector<int>> prompts;
  std::string path = options.prompts_file;
  const auto beside = std::filesystem::path(options.model.model) / "prompts.txt";
  if (path.empty() && std::filesystem::exists(beside)) path = beside.string();
  if (!path.empty()) {
    for (const std::string& line : read_lines(path)) prompts.push_back(tokenizer.encode(line, true, false));
  } else {
    for (const auto& d : documents)
      prompts.emplace_back(d.begin(), d.begin() + std::min<std::ptrdiff_t>(kPromptTokens, std::ssize(d)));
  }
  if (prompts.empty()) throw Error(ErrorKind::kUsage, fmt::format("{}: no prompts", escape(path, 400)));
  return prompts;
}

std::vector<std::string> text_files(const Options& options) {
  if (!options.text.empty()) return options.text;
  const auto beside = std::filesystem::path(options.model.model) / "eval.txt";
  if (std::filesystem::exists(beside)) return {beside.string()};
  throw Error(ErrorKind::kUsage, "the quality of a policy needs a text: give --text FILE");
}

std::string join(const std::vector<std::string>& list) {
  std::string out;
  for (const std::string& s : list) out += (out.empty() ? "" : " ") + s;
  return out;
}

void run(Options& options, const Invocation& invocation) {
  options.ab.policies = {options.a};
  options.ab.policies.insert(options.ab.policies.end(), options.b.begin(), options.b.end());
  for (const std::string& spec : options.ab.policies) make_policy(spec);  // a bad spec fails before the load
  LoadedModel loaded = load_model(options.model);
  const std::vector<std::string> files = text_files(options);
  const Documents documents = read_documents(loaded.tokenizer, files, options.ab.text);
  const auto prompts = read_prompts(options, loaded.tokenizer, documents);
  const int fitting = default_cold_copies(loaded.model);
  const int copies = options.cold_copies >= 0 ? options.cold_copies : (fitting > 1 ? fitting : 0);
  loaded.model.set_cold_copies(copies);
  Progress progress(options.model.quiet);
  options.ab.progress = [&](const std::string& stage, double share) { progress.show(stage, share); };

  Report report;
  report.facts.command = command_line(invocation.words);
  report.facts.commit = build_commit();
  report.facts.machine = machine_facts(loaded.model.ops().threads(), loaded.model.ops().isa());
  report.facts.model = fmt::format("{} ({})", options.model.model, loaded.model.config().family);
  report.facts.settings = {
      {"repeats", std::to_string(options.ab.repeats)},
      {"new_tokens", std::to_string(options.ab.new_tokens)},
      {"cold_copies", std::to_string(copies)},
      {"text", join(files)},
      {"text_size", fmt::format("{} documents of {} tokens", options.ab.text.documents, options.ab.text.tokens)},
  };
  report.rows = run_ab(loaded.model, prompts, documents, options.ab);
  if (options.json != "-") write_output("-", text_table(report));
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
  c.add_option("--concurrency", options->ab.concurrency, "requests decoded together, e.g. 1,4,16")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  c.add_option("--new-tokens", options->ab.new_tokens, "tokens generated per request")->capture_default_str();
  c.add_option("--repeats", options->ab.repeats, "rounds in which every policy runs once")->capture_default_str();
  c.add_option("--chunk", options->ab.chunk, "prompt tokens per step")->capture_default_str();
  c.add_option("--cold-copies", options->cold_copies,
               "private copies of the experts used in turn, so that they come from memory and not from cache; 0 = none "
               "(default: four "
               "times the last-level cache for models smaller than that, else 0)");
  c.add_option("--prompts", options->prompts_file,
               "one prompt per line (default: prompts.txt of the model, else starts of the text)");
  c.add_option("--text", options->text,
               "text for the quality pass; lines of --- separate documents; may be given several times (default: "
               "eval.txt of the model)")
      ->allow_extra_args(false);
  c.add_option("--documents", options->ab.text.documents, "documents of the quality pass")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  c.add_option("--document-tokens", options->ab.text.tokens, "tokens of each")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 20));
  c.add_option("--json", options->json, "write the results to this file (- = standard output instead of the table)");
  c.add_option("--html", options->html, "write a report with charts to this file");
  c.callback([options, &invocation] { run(*options, invocation); });
}

}  // namespace carpool
