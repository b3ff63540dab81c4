// `carpool calibrate MODEL TEXT... --out FILE`: the tables that sere, exfold, cache_prior and oea:k0=table route by.
// What is computed is in measure/calibrate.h.
#include "measure/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <numeric>

#include "base/checksum.h"
#include "base/error.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "measure/bench_report.h"

namespace carpool {
namespace {

struct CalibrateCommand {
  ModelOptions model;
  CalibrateOptions calibrate;
  int documents = 32, tokens = 256;
  std::optional<int> probe_documents, resident;
  std::optional<double> mean_k0;
  bool no_sensitivity = false;
  std::vector<std::string> text;
  std::string out, json;
};

// What decides the numbers beside the model's routers and the options that are a calibration's own.
std::string inputs_of(const CalibrateCommand& command, const Documents& documents) {
  std::string tokens;
  for (const auto& document : documents) {
    for (const int token : document) tokens += fmt::format("{} ", token);
  }
  return fmt::format("{:016x}, activations {}, cache {}", checksum64(tokens), command.model.activations,
                     command.model.kv_cache_dtype);
}

// Fills what depends on the model and was not said.
void complete(CalibrateCommand& command, const ModelConfig& config) {
  CalibrateOptions& o = command.calibrate;
  o.documents = command.documents;
  o.resident = command.resident.value_or(std::max(config.top_k, config.n_experts / 4));
  o.probe_documents = 0;
  if (!command.no_sensitivity) {
    o.probe_documents = command.probe_documents.value_or(std::min(2, command.documents / o.batch) * o.batch);
    if (o.probe_documents == 0) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("{} documents do not fill a batch of {} rows: give more, a smaller --batch, or "
                              "--no-sensitivity",
                              command.documents, o.batch));
    }
  } else if (command.probe_documents || command.mean_k0 || !o.k0.empty()) {
    throw Error(ErrorKind::kUsage, "--probe-documents, --k0 and --mean-k0 have no effect with --no-sensitivity");
  }
  if (!command.no_sensitivity && o.k0.empty()) {
    o.k0.resize(static_cast<size_t>(std::max(0, config.top_k - 1)));
    std::iota(o.k0.begin(), o.k0.end(), 1);
  }
  o.mean_k0 = command.mean_k0.value_or(std::max(1.0, std::floor(config.top_k * 0.625)));
  if (!o.k0.empty() && !command.mean_k0) o.mean_k0 = std::max<double>(o.mean_k0, o.k0[0]);
}

std::string probes_text(const LayerCalibration& layer, const std::vector<int>& k0) {
  std::string text;
  for (size_t i = 0; i < layer.probes.size(); ++i) {
    text += fmt::format("{}{}: {:.4f}", i == 0 ? "" : "  ", k0[i], layer.probes[i].kl);
  }
  return text.empty() ? "-" : text;
}

void add_layers(const CalibrateCommand& command, const Calibration& found, BenchReport& report) {
  const std::vector<int>& k0 = command.calibrate.k0;
  Table table{
      "",
      {"layer", "similarity", "to the nearest", "lost by folding", "unused", "k0", "KL with k0 in this layer alone"},
      {},
      1,
      true};
  for (const LayerCalibration& l : found.layers) {
    table.rows.push_back({std::to_string(l.layer), number_text(l.mean_similarity, 3),
                          number_text(l.mean_best_similarity, 3), percent_text(l.mean_best_loss),
                          std::to_string(l.unused), l.k0 > 0 ? std::to_string(l.k0) : "-", probes_text(l, k0)});
    json::object row = {{"layer", l.layer}, {"unused_experts", l.unused}};
    put_number(row, "mean_similarity", l.mean_similarity);
    put_number(row, "mean_best_similarity", l.mean_best_similarity);
    put_number(row, "mean_best_fold_loss", l.mean_best_loss);
    if (l.k0 > 0) row["k0"] = l.k0;
    json::array probes;
    for (size_t i = 0; i < l.probes.size(); ++i) {
      json::object probe = {{"k0", k0[i]}};
      put_number(probe, "kl_mean", l.probes[i].kl);
      put_number(probe, "cross_entropy_delta", l.probes[i].cross_entropy_delta);
      probes.push_back(std::move(probe));
    }
    if (!probes.empty()) row["sensitivity"] = std::move(probes);
    report.results.push_back(std::move(row));
  }
  report.tables.push_back(std::move(table));
}

BenchReport calibration_report(const CalibrateCommand& command, const Invocation& invocation, Model& model,
                               const Calibration& found) {
  const CalibrateOptions& o = command.calibrate;
  BenchReport report;
  report.facts.command = command_line(invocation.words);
  report.facts.commit = build_commit();
  report.facts.machine = machine_facts(model.ops().threads(), model.ops().isa());
  report.facts.model =
      fmt::format("{} ({}, routers {})", command.model.model, model.config().family, router_hash(model));
  report.facts.settings = {{"text", fmt::format("{} documents of {} tokens", o.documents, command.tokens)},
                           {"activations", command.model.activations}};
  if (o.probe_documents > 0) {
    report.facts.settings.push_back(
        {"sensitivity", fmt::format("the first {} documents, {} rows in step", o.probe_documents, o.batch)});
  }
  add_layers(command, found, report);
  report.summary = {{"out", command.out},
                    {"model_hash", router_hash(model)},
                    {"tokens", found.tokens},
                    {"resident", o.resident},
                    {"resumed_documents", found.resumed_documents},
                    {"resumed_layers", found.resumed_layers}};
  if (found.resumed_documents > 0) {
    report.notes.push_back(fmt::format("{} documents and the sensitivity of {} layers were done before.",
                                       found.resumed_documents, found.resumed_layers));
  }
  report.notes.push_back(fmt::format("{}: tables for sere, exfold and cache_prior{}", command.out,
                                     o.probe_documents > 0 ? ", and oea:k0=table." : "."));
  return report;
}

void calibrate_command(CalibrateCommand& command, const Invocation& invocation) {
  check_output(command.json);
  check_output(command.out);
  if (command.out == command.json) throw Error(ErrorKind::kUsage, "--out and --json must name different files");
  check_routing_tables_output(command.out);
  LoadedModel loaded = load_model(command.model);
  complete(command, loaded.model.config());
  check_calibrate(loaded.model.config(), command.calibrate);
  const Documents documents = read_documents(loaded.tokenizer, command.text, {command.documents, command.tokens});
  CalibrateOptions& o = command.calibrate;
  o.inputs = inputs_of(command, documents);
  o.progress_file = command.out + ".part";
  Calibration found;
  {
    Progress progress(command.model.quiet);
    o.progress = [&](const std::string& stage, double share) { progress.show(stage, share); };
    found = calibrate(loaded.model, documents, o);
  }
  const std::string made_by =
      fmt::format("carpool {}: {} documents of {} tokens", build_commit(), o.documents, command.tokens);
  write_routing_tables(command.out, {router_hash(loaded.model), made_by, found.tables});
  std::error_code ignored;
  std::filesystem::remove(o.progress_file, ignored);
  const BenchReport report = calibration_report(command, invocation, loaded.model, found);
  if (command.json != "-") write_output("-", bench_text(report));
  if (!command.json.empty()) write_output(command.json, pretty(bench_json(report)));
}

}  // namespace

void add_calibrate(CLI::App& app, const Invocation& invocation) {
  auto command = std::make_shared<CalibrateCommand>();
  CLI::App& c = *app.add_subcommand("calibrate", "make the tables that some routing policies need, from a text");
  c.footer(
      "Example: carpool calibrate models/books-qwen3 TEXT --out books.tables\n"
      "         carpool ab models/books-qwen3 --b sere:table=books.tables,k0=4 --b exfold:table=books.tables,m=50%\n"
      "Every expert of every layer is run on every token, which costs E / K times what routing does; then each layer\n"
      "alone is re-routed for each --k0. A calibration that was stopped goes on from FILE.part when it is started "
      "again.");
  command->model.add_to(c);
  c.add_option("TEXT", command->text, "text files; lines of --- separate documents")->required();
  c.add_option("--out", command->out, "the file of tables; one that is there is replaced")->required();
  c.add_option("--documents", command->documents, "documents of the text")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  c.add_option("--tokens", command->tokens, "tokens of each")->check(CLI::Range(2, 1 << 20))->capture_default_str();
  c.add_option("--resident", command->resident,
               "experts of each layer that cache_prior finds in fast memory, those of most tokens (default: E/4)")
      ->check(CLI::Range(0, RoutingTables::kMaxExperts));
  c.add_flag("--no-sensitivity", command->no_sensitivity, "leave out the second pass, and with it the table of k0");
  c.add_option("--probe-documents", command->probe_documents,
               "documents of the second pass, whole batches (default: up to two batches)")
      ->check(CLI::Range(1, 1 << 20));
  c.add_option("--batch", command->calibrate.batch, "rows that are re-routed together there")
      ->check(CLI::Range(2, 4096))
      ->capture_default_str();
  c.add_option("--k0", command->calibrate.k0, "the k0 to try in each layer, such as 1,2,4 (default: 1 to K - 1)")
      ->delimiter(',')
      ->allow_extra_args(false);
  c.add_option("--mean-k0", command->mean_k0, "the table's mean k0, at most (default: 5/8 of K, rounded down)");
  c.add_flag("--restart", command->calibrate.restart, "begin anew whatever FILE.part holds");
  c.add_option("--json", command->json, "write the report to this file, too (- = standard output instead)");
  c.callback([command, invocation] { calibrate_command(*command, invocation); });
}

}  // namespace carpool
