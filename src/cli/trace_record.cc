// Traces of runs: `carpool trace record`, `carpool trace force`, and the options with which other commands record.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/trace_options.h"
#include "measure/ab.h"
#include "measure/bench_report.h"
#include "measure/model_identity.h"
#include "measure/quality.h"
#include "model/routing_tables.h"

namespace carpool {
namespace {

struct RecordCommand {
  ModelOptions model;
  PolicyOption policy;
  std::vector<std::string> text;
  std::string out;
  std::optional<int> documents;
  int document_tokens = TextOptions().tokens, batch = 16;
  uint64_t seed = 0;
  bool scores = false;
};

struct ForceCommand {
  ModelOptions model;
  std::vector<std::string> files;
  std::string json;
  int chunk = 64;
};

void run_record(RecordCommand& o, const Invocation&) {
  const std::string spec = make_policy(o.policy.resolve_for(o.model.model))->spec();
  const int documents = o.documents.value_or(default_documents({o.batch}));
  check_document_count(documents, {o.batch});
  check_output(o.out);
  const std::vector<std::string> files = text_files(o.text, o.model.model);
  LoadedModel loaded = load_model(o.model);
  if (!o.model.quiet) print_notes(loaded.model.config());
  const ModelConfig& config = loaded.model.config();
  check_fits(o.document_tokens, config);
  const std::unique_ptr<Policy> policy = make_policy(spec, loaded.model);
  if (config.moe_layers() > 0) policy->check(config.n_experts, config.top_k);
  const Documents texts = read_documents(loaded.tokenizer, files, {documents, o.document_tokens});
  const RecordOptions record{o.out, o.scores};
  const auto recorder = record.recorder(TraceRecorder::Writing::kWhole, o.model.model, loaded.model, spec);
  std::vector<const Policy*> policies;
  if (spec != "topk") policies.push_back(policy.get());
  {
    Progress progress(o.model.quiet);
    decode_in_step(loaded.model, policies, texts,
                   {o.batch, {o.seed}, [&](double share) { progress.show("recording", share); }, recorder.get()});
  }
  recorder->finish();
  write_output("-", fmt::format("{}: {} documents of {} tokens, {} in step, under {}\n", o.out, documents,
                                o.document_tokens - 1, o.batch, spec));
}

void run_force(ForceCommand& o, const Invocation& invocation) {
  check_output(o.json);
  const Trace trace = read_traces(o.files);
  const std::string hash = model_hash(o.model.model);
  LoadedModel loaded = load_model(o.model);
  if (!o.model.quiet) print_notes(loaded.model.config());
  ForcedReplay found;
  {
    Progress progress(o.model.quiet);
    found = force_trace(loaded.model, hash, trace, o.chunk, [&](double share) { progress.show("replaying", share); });
  }
  BenchReport report;
  report.facts.command = command_line(invocation.words);
  report.facts.commit = build_commit();
  report.facts.machine = machine_facts(loaded.model.ops().threads(), loaded.model.ops().isa());
  report.facts.model = fmt::format("{} ({}, {})", o.model.model, loaded.model.config().family, hash);
  report.facts.settings = {{"trace", fmt::format("{}", fmt::join(o.files, " "))},
                           {"policy", trace.policy.empty() ? "unknown" : trace.policy}};
  report.tables.push_back({"Each sequence alone, with the recorded experts and weights",
                           {"sequences", "tokens", "logits compared", "same bits"},
                           {{fmt::format("{}", found.sequences), fmt::format("{}", found.tokens),
                             fmt::format("{}", found.compared), fmt::format("{}", found.equal)}},
                           0});
  report.results.push_back(json::object{{"sequences", found.sequences},
                                        {"tokens", found.tokens},
                                        {"compared", found.compared},
                                        {"equal", found.equal},
                                        {"first_difference", found.first_difference}});
  report.notes = trace.notes;
  if (o.json != "-") write_output("-", bench_text(report));
  if (!o.json.empty()) write_output(o.json, pretty(bench_json(report)));
  if (found.equal == found.compared) return;
  throw Error(ErrorKind::kConfig,
              fmt::format("{} of {} logits are not the recorded bits, the first at {}: another build, instruction set, "
                          "cache format or kind of activations gives others",
                          found.compared - found.equal, found.compared, found.first_difference));
}

}  // namespace

void RecordOptions::add_to(CLI::App& command) {
  command.add_option("--trace", path,
                     "record the routing of every token to this file (docs/traces.md); as private as the prompts");
  command.add_flag("--trace-scores", scores, "with --trace: all scores of the router, too");
}

void RecordOptions::check() const {
  if (scores && path.empty()) throw Error(ErrorKind::kUsage, "--trace-scores has no effect without --trace");
  check_output(path);
}

std::unique_ptr<TraceRecorder> RecordOptions::recorder(TraceRecorder::Writing writing, const std::string& name,
                                                       const LanguageModel& model, const std::string& policy) const {
  if (path.empty()) return nullptr;
  const auto* routed = dynamic_cast<const Model*>(&model);  // the canary has no routers
  const TraceFacts facts{name, model_hash(name), policy, routed ? router_hash(*routed) : ""};
  return std::make_unique<TraceRecorder>(path, writing, model.config(), facts, scores);
}

void add_trace_record(CLI::App& trace, const Invocation& invocation) {
  auto o = std::make_shared<RecordCommand>();
  CLI::App& c = *trace.add_subcommand("record", "Documents decoded in step under a policy, recorded token by token");
  o->model.add_to(c);
  o->policy.add_to(c);
  c.add_option("--out,-o", o->out, "The file to write")->required();
  c.add_option("--text", o->text, "Text files, as for carpool eval (default: eval.txt of the model)")
      ->allow_extra_args(false)
      ->take_all();
  c.add_option("--batch", o->batch, "Documents decoded in step")->check(CLI::Range(1, 4096))->capture_default_str();
  c.add_option("--documents", o->documents, "A multiple of the batch (default: the first such number from 64 on)")
      ->check(CLI::Range(1, 1 << 20));
  c.add_option("--document-tokens", o->document_tokens, "Tokens of each")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 20));
  c.add_option("--seed", o->seed, "Which documents meet: 0 = in order, else the seed of a shuffle")
      ->capture_default_str();
  c.add_flag("--scores", o->scores, "All scores of the router, too: every policy can then be replayed exactly");
  c.footer(
      "Example: carpool trace record models/books-qwen3 --policy oea:k0=5 --batch 16 --out books.jsonl\n"
      "What run, eval and serve route is recorded with their option --trace FILE.");
  c.callback([o, &invocation] { run_record(*o, invocation); });
}

void add_trace_force(CLI::App& trace, const Invocation& invocation) {
  auto o = std::make_shared<ForceCommand>();
  CLI::App& c = *trace.add_subcommand(
      "force", "Run a recorded trace's sequences alone with its experts and weights: the same logits, bit for bit");
  o->model.add_to(c);
  c.add_option("FILES", o->files, "Traces that carpool recorded from this model")->required();
  c.add_option("--chunk", o->chunk, "Rows of a sequence in one step")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  c.add_option("--json", o->json, "write the results to this file (- = standard output instead of the tables)");
  c.footer("Example: carpool trace force models/books-qwen3 books.jsonl");
  c.callback([o, &invocation] { run_force(*o, invocation); });
}

}  // namespace carpool
