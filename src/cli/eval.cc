// `carpool eval MODEL`: how well a model predicts a text, or answers questions, plainly and under policies. What is
// computed is in measure/policy_score.h (documents in step), measure/task.h and measure/perplexity.h.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/trace_options.h"
#include "measure/ab.h"
#include "measure/bench_report.h"
#include "measure/perplexity.h"
#include "measure/policy_score.h"
#include "measure/task.h"
#include "model/routing_tables.h"
#include "routing/policy.h"

namespace carpool {
namespace {

constexpr int kBatch = 16;  // where none is given

struct Options {
  ModelOptions model;
  PolicyOption aliases;
  RecordOptions record;
  std::vector<std::string> policies;
  std::vector<int> batches;
  std::vector<uint64_t> seeds = {0};
  PerplexityOptions perplexity;
  bool wants_perplexity = false;
  std::optional<int> documents;
  int document_tokens = TextOptions().tokens;
  std::vector<std::string> text, tasks;
  std::string json, jsonl;
};

// Canonical, each once, in the order given.
std::vector<std::string> policies_of(const Options& options) {
  std::vector<std::string> given = options.policies, out;
  if (given.empty()) given.push_back(options.aliases.resolve());
  options.aliases.profile.resolve(given, options.model.model);  // refuses a profile that nobody reads
  for (const std::string& spec : given) {
    PolicyOption one = options.aliases;
    if (!options.policies.empty()) one.spec = spec;
    const std::string spec_or_auto = one.resolve();
    std::string canonical = make_policy(options.aliases.profile.resolve(spec_or_auto, options.model.model))->spec();
    if (std::find(out.begin(), out.end(), canonical) == out.end()) out.push_back(std::move(canonical));
  }
  return out;
}

// With their tables. Error{kConfig} where one does not fit the model.
std::vector<std::unique_ptr<Policy>> load_policies(const std::vector<std::string>& specs, const Model& model) {
  const ModelConfig& config = model.config();
  std::vector<std::unique_ptr<Policy>> out;
  for (const std::string& spec : specs) {
    out.push_back(make_policy(spec, model));
    if (config.moe_layers() > 0) {
      out.back()->check(config.n_experts, config.top_k);
    } else if (spec != "topk") {
      throw Error(ErrorKind::kConfig,
                  fmt::format("the model has no routed experts, \"{}\" would change nothing", spec));
    }
  }
  return out;
}

RunFacts facts_of(const Options& options, const Invocation& invocation, Model& model) {
  RunFacts facts;
  facts.command = command_line(invocation.words);
  facts.commit = build_commit();
  facts.machine = machine_facts(model.ops().threads(), model.ops().isa());
  facts.model = fmt::format("{} ({})", options.model.model, model.config().family);
  return facts;
}

void write_report(const Options& options, const BenchReport& report) {
  if (options.json != "-") write_output("-", bench_text(report));
  if (!options.json.empty()) write_output(options.json, pretty(bench_json(report)));
}

BenchReport perplexity_report(const Options& options, const Invocation& invocation, const std::string& spec,
                              Model& model, const Perplexity& found) {
  BenchReport report;
  report.facts = facts_of(options, invocation, model);
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

void run_perplexity(Options& options, const Invocation& invocation, const std::vector<std::string>& specs) {
  if (specs.size() > 1 || options.batches.size() > 1)
    throw Error(ErrorKind::kUsage, "--perplexity takes one --policy and one --batch");
  if (options.text.empty()) throw Error(ErrorKind::kUsage, "--perplexity needs a text: give files of text");
  PerplexityOptions& p = options.perplexity;
  if (!options.batches.empty()) p.batch = options.batches[0];
  if (specs[0] != "topk" && p.batch == 0) p.batch = kBatch;
  std::string text;
  for (const std::string& path : options.text) text += read_text_file(path);
  LoadedModel loaded = load_model(options.model);
  if (!options.model.quiet) print_notes(loaded.model.config());
  const std::unique_ptr<Policy> policy = std::move(load_policies(specs, loaded.model)[0]);
  const auto windows = perplexity_windows(loaded.tokenizer, text, p);
  Perplexity found;
  {
    Progress progress(options.model.quiet);
    found = measure_perplexity(loaded.model, *policy, windows, p.batch,
                               [&](double share) { progress.show("scoring", share); });
  }
  write_report(options, perplexity_report(options, invocation, specs[0], loaded.model, found));
}

void run_documents(Options& options, const Invocation& invocation, const std::vector<std::string>& specs) {
  if (options.batches.empty()) options.batches = {kBatch};
  const int documents = options.documents.value_or(default_documents(options.batches));
  check_document_count(documents, options.batches);
  const std::vector<std::string> files = text_files(options.text, options.model.model);
  LoadedModel loaded = load_model(options.model);
  if (!options.model.quiet) print_notes(loaded.model.config());
  Model& model = loaded.model;
  const std::vector<std::unique_ptr<Policy>> policies = load_policies(specs, model);
  check_fits(options.document_tokens, model.config());
  const Documents texts = read_documents(loaded.tokenizer, files, {documents, options.document_tokens});
  std::vector<const Policy*> others;  // topk runs beside them anyway
  for (const auto& policy : policies) {
    if (policy->spec() != "topk") others.push_back(policy.get());
  }
  std::vector<PolicyScore> scores;
  std::string lines;
  const auto recorder = options.record.recorder(TraceRecorder::Writing::kWhole, options.model.model, model,
                                                others.empty() ? "topk" : others[0]->spec());
  {
    Progress progress(options.model.quiet);
    for (const int batch : options.batches) {
      const std::vector<LockstepRun> runs = decode_in_step(
          model, others, texts,
          {batch, options.seeds, [&](double share) { progress.show(fmt::format("documents, batch {}", batch), share); },
           recorder.get()});
      for (size_t r = 0; r < runs.size(); ++r) {
        const std::string spec = r == 0 ? "topk" : others[r - 1]->spec();
        scores.push_back(score_run(spec, batch, runs[r], runs[0]));
        for (const std::string& line : document_lines(spec, batch, runs[r], runs[0])) lines += line + "\n";
      }
    }
  }
  if (recorder) recorder->finish();
  BenchReport report;
  report.facts = facts_of(options, invocation, model);
  report.facts.settings = {
      {"text", fmt::format("{}", fmt::join(files, " "))},
      {"documents", fmt::format("{} of {} tokens, decoded in step", documents, options.document_tokens)},
      {"seeds", fmt::format("{}", fmt::join(options.seeds, ","))},
      {"activations", options.model.activations}};
  report.tables.push_back(score_table(scores));
  for (const PolicyScore& s : scores) report.results.push_back(score_json(s));
  write_report(options, report);
  if (!options.jsonl.empty()) write_output(options.jsonl, lines);
}

void run_task(Options& options, const Invocation& invocation, const std::vector<std::string>& specs) {
  if (options.batches.empty()) options.batches = {kBatch};
  LoadedModel loaded = load_model(options.model);
  if (!options.model.quiet) print_notes(loaded.model.config());
  const std::vector<std::unique_ptr<Policy>> policies = load_policies(specs, loaded.model);
  const Task task = read_task(options.tasks, loaded.tokenizer, loaded.model.config());
  std::vector<TaskScore> scores;
  std::string lines;
  {
    Progress progress(options.model.quiet);
    std::vector<ItemScore> plain;  // the same at every batch, to the bit
    const auto add = [&](const Policy& policy, int batch) {
      const std::string spec = policy.spec();
      RoutingCounters routing;
      const std::vector<ItemScore> items = score_items(loaded.model, policy, task, batch, routing, [&](double share) {
        progress.show(fmt::format("{}, batch {}", spec, batch), share);
      });
      if (plain.empty()) plain = items;
      TaskScore& s = scores.emplace_back(score_task(task, items, plain));
      s.policy = spec;
      s.batch = batch;
      s.routing = routing;
      for (size_t i = 0; i < items.size(); ++i) {
        json::object line{{"policy", spec},
                          {"batch", batch},
                          {"question", task.items[i].question + 1},
                          {"choice", task.items[i].choice},
                          {"greedy", items[i].greedy}};
        put_number(line, "log_likelihood", items[i].log_likelihood);
        lines += json::serialize(line) + "\n";
      }
    };
    const std::unique_ptr<Policy> topk = make_policy("topk");
    for (const int batch : options.batches) {
      add(*topk, batch);
      for (const auto& policy : policies) {
        if (policy->spec() != "topk") add(*policy, batch);
      }
    }
  }
  BenchReport report;
  report.facts = facts_of(options, invocation, loaded.model);
  report.facts.settings = {{"task", fmt::format("{}", fmt::join(options.tasks, " "))},
                           {"questions", fmt::format("{}, {} continuations", task.answers.size(), task.items.size())},
                           {"activations", options.model.activations}};
  report.tables.push_back(task_table(scores));
  for (const TaskScore& s : scores) report.results.push_back(task_json(s));
  write_report(options, report);
  if (!options.jsonl.empty()) write_output(options.jsonl, lines);
}

void run(Options& options, const Invocation& invocation, const CLI::App& c) {
  const bool task = !options.tasks.empty();
  const auto given = [&](const char* name) { return c.get_option(name)->count() > 0; };
  const auto needless = [&](std::initializer_list<const char*> names, const char* mode) {
    for (const char* name : names) {
      if (given(name)) throw Error(ErrorKind::kUsage, fmt::format("{} has no effect {}", name, mode));
    }
  };
  if (task && options.wants_perplexity) throw Error(ErrorKind::kUsage, "give --perplexity or --task, not both");
  if (task && !options.text.empty()) throw Error(ErrorKind::kUsage, "--task has its own text: give no other");
  if (task || options.wants_perplexity) needless({"--documents", "--document-tokens", "--seed"}, "without documents");
  if (!options.wants_perplexity) needless({"--context", "--chunks"}, "without --perplexity");
  if (options.wants_perplexity) needless({"--jsonl"}, "with --perplexity");
  if (options.wants_perplexity || task) needless({"--trace"}, "without documents");
  options.record.check();
  check_output(options.json);
  check_output(options.jsonl);
  if (!options.jsonl.empty() && options.json == options.jsonl)
    throw Error(ErrorKind::kUsage, "--json and --jsonl name the same file");
  const std::vector<std::string> specs = policies_of(options);
  if (!options.record.path.empty() && (specs.size() > 1 || options.batches.size() > 1 || options.seeds.size() > 1))
    throw Error(ErrorKind::kUsage, "--trace records one --policy at one --batch and one --seed");
  if (options.wants_perplexity) return run_perplexity(options, invocation, specs);
  if (task) return run_task(options, invocation, specs);
  run_documents(options, invocation, specs);
}

void add_options(CLI::App& c, Options& options) {
  options.model.add_to(c);
  c.add_option(
      "TEXT,--text", options.text,
      "text files: documents separated by lines of ---, .jsonl with a \"text\" a line, or plain text, which is "
      "cut (default: eval.txt of the model)");
  c.add_option("--policy", options.policies, "routing policy, e.g. oea:k0=5; may be given several times")
      ->allow_extra_args(false)
      ->take_all();
  options.record.add_to(c);
  options.aliases.profile.add_to(c);
  options.aliases.add_aliases_to(c);
  c.add_option("--batch", options.batches,
               fmt::format("documents, windows or continuations decoded in step, as 4,8,16 (default: {}; with "
                           "--perplexity and plain routing: prompts)",
                           kBatch))
      ->delimiter(',')
      ->allow_extra_args(false)
      ->take_all()
      ->check(CLI::Range(1, 4096));
  c.add_option("--documents", options.documents,
               "documents; a multiple of each batch (default: the first such number from 64 on)")
      ->check(CLI::Range(1, 1 << 20));
  c.add_option("--document-tokens", options.document_tokens, "tokens of each")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 20));
  c.add_option("--seed", options.seeds,
               "which documents meet in a batch: 0 = in order, else the seed of a shuffle; as 0,1,2: the mean of all")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->take_all()
      ->capture_default_str();
  c.add_option("--task", options.tasks,
               "score questions of this .jsonl file instead: {\"context\", \"choices\", \"answer\"} or {\"context\", "
               "\"completion\"} a line; may be given several times")
      ->allow_extra_args(false)
      ->take_all();
  c.add_flag("--perplexity", options.wants_perplexity, "perplexity of the text in windows instead");
  c.add_option("--context", options.perplexity.context, "tokens of a window")
      ->check(CLI::Range(4, 1 << 20))
      ->capture_default_str();
  c.add_option("--chunks", options.perplexity.windows, "the first windows only (default: all)")
      ->check(CLI::Range(1, 1 << 24));
  c.add_option("--json", options.json, "write the result to this file (- = standard output)");
  c.add_option("--jsonl", options.jsonl, "write one line per document, or per continuation of --task, to this file");
}

}  // namespace

void add_eval(CLI::App& app, const Invocation& invocation) {
  auto options = std::make_shared<Options>();
  CLI::App& c = *app.add_subcommand("eval", "what policies cost in quality: on text, on questions, or as perplexity");
  c.footer(
      "Examples: carpool eval MODEL --policy oea:k0=5 --policy oea:k0=3 --batch 4,8,16,32,64 --text documents.jsonl\n"
      "          carpool eval MODEL --task questions.jsonl --policy oea:k0=5 --batch 16\n"
      "          carpool eval MODEL.gguf wiki.test.raw --perplexity --chunks 40\n"
      "Documents are decoded in step, as OEA's paper does: the t-th tokens of --batch documents are a step's rows. "
      "Perplexity\n"
      "is that of llama-perplexity: windows of --context tokens, the second half of each scored. See docs/eval.md.");
  add_options(c, *options);
  c.callback([options, &invocation, &c] { run(*options, invocation, c); });
}

}  // namespace carpool
