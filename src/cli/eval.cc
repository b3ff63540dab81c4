// `carpool eval MODEL TEXT... --perplexity`: how well a model predicts a text. What is computed is in
// measure/perplexity.h.
#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "measure/bench_report.h"
#include "measure/perplexity.h"
#include "model/routing_tables.h"
#include "routing/policy.h"

namespace carpool {
namespace {

constexpr int kBatch = 16;  // under a policy

struct Options {
  ModelOptions model;
  PolicyOption policy;
  PerplexityOptions perplexity;
  bool wants_perplexity = false;
  std::string json;
  std::vector<std::string> text;
};

std::string read_texts(const std::vector<std::string>& paths) {
  std::string all;
  for (const std::string& path : paths) all += read_text_file(path);
  return all;
}

BenchReport report_of(const Options& options, const Invocation& invocation, const std::string& spec, Model& model,
                      const Perplexity& found) {
  BenchReport report;
  report.facts.command = command_line(invocation.words);
  report.facts.commit = build_commit();
  report.facts.machine = machine_facts(model.ops().threads(), model.ops().isa());
  report.facts.model = fmt::format("{} ({})", options.model.model, model.config().family);
  const int batch = options.perplexity.batch;
  report.facts.settings = {{"policy", spec},
                           {"windows", fmt::format("{} of {} tokens, the second half of each scored", found.windows,
                                                   options.perplexity.context)},
                           {"rows", batch > 0 ? fmt::format("decode, {} windows in step", batch) : "prompts"},
                           {"activations", options.model.activations}};
  const Estimate& nats = found.cross_entropy;
  report.tables.push_back(
      {"",
       {"tokens", "nats/token", "interval", "perplexity"},
       {{fmt::format("{}", found.tokens), fmt::format("{:.5f}", nats.value),
         fmt::format("{:.5f} to {:.5f}", nats.lo, nats.hi), fmt::format("{:.4f}", found.value())}}});
  json::object row = {{"policy", spec},
                      {"batch", batch},
                      {"windows", found.windows},
                      {"tokens", found.tokens},
                      {"context", options.perplexity.context}};
  put_estimate(row, "cross_entropy", nats);
  put_number(row, "perplexity", found.value());
  if (model.config().moe_layers() > 0) {
    for (const auto& entry : routing_json(found.routing)) row[entry.key()] = entry.value();
  }
  report.results.push_back(std::move(row));
  return report;
}

void run(Options& options, const Invocation& invocation) {
  if (!options.wants_perplexity) throw Error(ErrorKind::kUsage, "say what to compute: --perplexity");
  check_output(options.json);
  const std::string spec = options.policy.resolve(), text = read_texts(options.text);
  std::unique_ptr<Policy> policy = make_policy(spec);
  PerplexityOptions& p = options.perplexity;
  if (spec != "topk" && p.batch == 0) p.batch = kBatch;
  LoadedModel loaded = load_model(options.model);
  if (!options.model.quiet) print_notes(loaded.model.config());
  const ModelConfig& config = loaded.model.config();
  if (config.moe_layers() > 0) {
    policy = make_policy(spec, loaded.model);  // with its tables
    policy->check(config.n_experts, config.top_k);
  } else if (spec != "topk") {
    throw Error(ErrorKind::kConfig, fmt::format("the model has no routed experts, \"{}\" would change nothing", spec));
  }
  const auto windows = perplexity_windows(loaded.tokenizer, text, p);
  Perplexity found;
  {
    Progress progress(options.model.quiet);
    found = measure_perplexity(loaded.model, *policy, windows, p.batch,
                               [&](double share) { progress.show("scoring", share); });
  }
  const BenchReport report = report_of(options, invocation, spec, loaded.model, found);
  if (options.json != "-") write_output("-", bench_text(report));
  if (!options.json.empty()) write_output(options.json, pretty(bench_json(report)));
}

}  // namespace

void add_eval(CLI::App& app, const Invocation& invocation) {
  auto options = std::make_shared<Options>();
  CLI::App& c = *app.add_subcommand("eval", "how well a model predicts a text, plainly or under a policy");
  c.footer(
      "Examples: carpool eval MODEL.gguf wiki.test.raw --perplexity --chunks 40\n"
      "          carpool eval MODEL text.txt --perplexity --policy oea:k0=5 --batch 16\n"
      "Perplexity is that of llama-perplexity: windows of --context tokens, the second half of each scored. Prompts "
      "are\n"
      "always routed plainly; with a policy the windows are therefore computed as decode, --batch of them in step.");
  options->model.add_to(c);
  c.add_option("TEXT", options->text, "text files, read as one text")->required();
  c.add_flag("--perplexity", options->wants_perplexity, "perplexity of the text in windows");
  c.add_option("--context", options->perplexity.context, "tokens of a window")
      ->check(CLI::Range(4, 1 << 20))
      ->capture_default_str();
  c.add_option("--chunks", options->perplexity.windows, "the first windows only (default: all)")
      ->check(CLI::Range(1, 1 << 24));
  c.add_option("--batch", options->perplexity.batch,
               fmt::format("windows computed in step, as decode (default: {} under a policy, else prompts)", kBatch))
      ->check(CLI::Range(1, 4096));
  options->policy.add_to(c);
  c.add_option("--json", options->json, "write the result to this file (- = standard output)");
  c.callback([options, invocation] { run(*options, invocation); });
}

}  // namespace carpool
