// `carpool tune MODEL --budget kl=0.01 --out FILE`: the fastest routing within a quality budget, by batch size, kept as
// a profile that --policy auto reads. What is measured is in measure/compare.h, how it is chosen in measure/latency.h.
#include "measure/tune.h"

#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/grid_options.h"

namespace carpool {
namespace {

struct Options {
  GridOptions grid;
  std::string budget, out, json, by_layer = "on";
};

constexpr int kScreenTokens = 64;     // at least, of each document
constexpr size_t kFewCandidates = 9;  // as many are measured in full at once

Table fit_table(const std::vector<ChosenBand>& bands) {
  Table table{"Step time against distinct experts per layer: ms = intercept + slope * experts",
              {"batch", "cells", "slope us", "intercept ms", "R^2", "usable"},
              {}};
  for (const ChosenBand& band : bands) {
    const LatencyFit& f = band.fit;
    table.rows.push_back({std::to_string(f.batch), std::to_string(f.cells),
                          estimate_text({1e3 * f.slope_ms.value, 1e3 * f.slope_ms.lo, 1e3 * f.slope_ms.hi}, 2, true),
                          estimate_text(f.intercept_ms, 3), number_text(f.r2, 4), f.usable() ? "yes" : "no"});
  }
  return table;
}

Table band_table(const std::vector<ChosenBand>& bands, const QualityBudget& budget) {
  const std::string what = budget.cross_entropy ? "cross-entropy" : "KL";
  Table table{fmt::format("Chosen within {}: on one half of the documents, verified on the other", budget.text()),
              {"rows", "policy", "experts", "plain", "of topk's time", what + ", tuning", what + ", held out", "why"},
              {},
              2,
              true};
  for (const ChosenBand& b : bands) {
    table.rows.push_back({fmt::format("{} to {}", b.from, b.to), b.policy, number_text(b.cell.distinct, 2),
                          number_text(b.cell.distinct_plain, 2), estimate_text(b.cell.time_ratio, 3),
                          estimate_text(b.tuning, 5, budget.cross_entropy),
                          estimate_text(b.held_out, 5, budget.cross_entropy), b.reason});
  }
  return table;
}

Table layer_table(const std::vector<ChosenBand>& bands) {
  Table table{"A k0 for each layer, beside the best other setting on the same steps; kept where it is surely faster",
              {"rows", "policy", "beside", "of its time", "cost, tuning", "kept"},
              {},
              3,
              true};
  for (const ChosenBand& b : bands) {
    if (!b.by_layer) continue;
    const LayerTrial& t = *b.by_layer;
    const bool none = t.policy.empty();
    table.rows.push_back({fmt::format("{} to {}", b.from, b.to), none ? "none within the budget" : t.policy, t.against,
                          none ? "-" : estimate_text(t.time_ratio, 3), none ? "-" : estimate_text(t.cost, 5),
                          t.kept ? "yes" : "no"});
  }
  return table;
}

TuneOptions tune_options(const Options& options, const GridSession& grid, const QualityBudget& budget) {
  TuneOptions o;
  o.candidates = grid.policies();
  o.batches = grid.batches();
  o.budget = budget;
  o.by_layer = options.by_layer == "on";
  o.top_k = grid.config().top_k;
  o.moe_layer.assign(grid.config().moe_layer.begin(), grid.config().moe_layer.end());
  const int quarter = options.grid.document_tokens / 4;
  if (o.candidates.size() > kFewCandidates && quarter >= kScreenTokens) o.screen_tokens = quarter;
  return o;
}

std::string screened_text(const TuneOptions& o) {
  if (o.screen_tokens == 0) return fmt::format("no: all {} candidates in full", o.candidates.size());
  return fmt::format("{} candidates on {} tokens of each document", o.candidates.size(), o.screen_tokens);
}

void run(Options& options, const Invocation& invocation) {
  const QualityBudget budget = QualityBudget::parse(options.budget);
  check_output(options.out);
  check_output(options.json);
  if (options.out == options.json || options.out == options.grid.cells_file ||
      (!options.json.empty() && options.json == options.grid.cells_file))
    throw Error(ErrorKind::kUsage, "--out, --json and --cells must name different files");
  if (options.grid.documents && *options.grid.documents < 4)
    throw Error(ErrorKind::kUsage, "tune needs at least 4 documents: half of them are held out to verify its choice");
  GridSession grid(options.grid, invocation);
  const TuneOptions tuned = tune_options(options, grid, budget);
  const std::vector<ChosenBand> bands = tune(tuned, [&](int batch, const std::vector<std::string>& specs, int tokens) {
    return grid.measure({batch}, specs, tokens);
  });
  BenchReport report;
  report.facts = grid.facts();
  report.facts.settings.emplace_back("budget", budget.text());
  report.facts.settings.emplace_back("screened", screened_text(tuned));
  report.facts.settings.emplace_back("by_layer", options.by_layer);
  report.tables = {fit_table(bands), band_table(bands, budget)};
  if (tuned.by_layer) report.tables.push_back(layer_table(bands));
  const json::value profile = profile_json(report.facts, options.grid.model.model, grid.hash(), budget, bands);
  report.results = profile.at("bands").as_array();
  report.summary["policy"] = bands_spec(bands);
  const bool any = std::any_of(bands.begin(), bands.end(), [](const ChosenBand& b) { return b.fit.usable(); });
  if (any) report.notes.push_back(fmt::format("{}: {}", options.out, bands_spec(bands)));
  if (options.json != "-") write_output("-", bench_text(report));
  if (!options.json.empty()) write_output(options.json, pretty(bench_json(report)));
  if (!any) {
    throw Error(
        ErrorKind::kUnavailable,
        fmt::format("nothing to recommend, so no profile was written; topk is the right policy here. At batch {}: {}",
                    bands.back().cell.batch, bands.back().reason));
  }
  write_output(options.out, pretty(profile));
}

}  // namespace

void add_tune(CLI::App& app, const Invocation& invocation) {
  auto options = std::make_shared<Options>();
  CLI::App& c = *app.add_subcommand(
      "tune", "the fastest routing within a quality budget, by batch size, written as a profile for --policy auto");
  c.footer(
      "Example: carpool tune models/books-qwen3 --budget kl=0.01 --out books.profile.json\n"
      "         carpool serve models/books-qwen3 --policy auto --profile books.profile.json\n"
      "Without --policy the candidates are the built-in grid of carpool compare. Settings are chosen on every other\n"
      "document and verified on the rest: the upper end of the interval of KL (or cross-entropy) must be within the\n"
      "budget, that on held-out documents as well, and the step time surely below topk's. See docs/eval.md.");
  options->grid.add_to(c);
  c.add_option("--budget", options->budget, "most nats per token: kl=0.01 against topk, or ce=0.005 of cross-entropy")
      ->required();
  c.add_option("--by-layer", options->by_layer,
               "on: also try a k0 of OEA for each layer, by what lowering it costs in that layer alone, and keep it "
               "where it is surely faster; off: one setting for all layers")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  c.add_option("--out,-o", options->out, "the profile to write")->required();
  c.add_option("--json", options->json, "write the results to this file (- = standard output instead of the tables)");
  c.callback([options, &invocation] { run(*options, invocation); });
}

}  // namespace carpool
