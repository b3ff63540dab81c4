// `carpool tune MODEL --budget kl=0.01 --out FILE`: the fastest routing within a quality budget, by batch size, kept as
// a profile that --policy auto reads. What is measured is in measure/compare.h, how it is chosen in measure/latency.h.
#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/grid_options.h"
#include "measure/latency.h"

namespace carpool {
namespace {

struct Options {
  GridOptions grid;
  std::string budget, out, json;
};

// Every k0 of OEA: one knob, and what it loads is told by it alone.
std::vector<std::string> candidates(int, int top_k) {
  std::vector<std::string> specs;
  for (int k0 = 1; k0 < top_k; ++k0) specs.push_back(fmt::format("oea:k0={}", k0));
  return specs;
}

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
  Table table{fmt::format("Chosen within {}", budget.text()),
              {"rows", "policy", "experts", "plain", "of topk's time", "KL", "cross-entropy", "why"},
              {},
              2,
              true};
  for (const ChosenBand& b : bands) {
    table.rows.push_back({fmt::format("{} to {}", b.from, b.to), b.policy, number_text(b.cell.distinct, 2),
                          number_text(b.cell.distinct_plain, 2), estimate_text(b.cell.time_ratio, 3),
                          estimate_text(b.cell.kl_mean, 5), estimate_text(b.cell.cross_entropy_delta, 4, true),
                          b.reason});
  }
  return table;
}

void run(Options& options, const Invocation& invocation) {
  const QualityBudget budget = QualityBudget::parse(options.budget);
  check_output(options.out);
  check_output(options.json);
  const Grid grid = measure_grid(options.grid, invocation, candidates);
  const std::vector<ChosenBand> bands = choose_bands(grid.cells, budget);
  BenchReport report;
  report.facts = grid.facts;
  report.facts.settings.emplace_back("budget", budget.text());
  report.tables = {fit_table(bands), band_table(bands, budget)};
  const json::value profile = profile_json(report.facts, options.grid.model.model, grid.hash, budget, bands);
  report.results = profile.at("bands").as_array();
  report.summary["policy"] = bands_spec(bands);
  const bool any = std::any_of(bands.begin(), bands.end(), [](const ChosenBand& b) { return b.fit.usable(); });
  if (any) report.notes.push_back(fmt::format("{}: {}", options.out, bands_spec(bands)));
  if (options.json != "-") write_output("-", bench_text(report));
  if (!options.json.empty()) write_output(options.json, pretty(bench_json(report)));
  if (!any) {
    throw Error(ErrorKind::kUnavailable,
                "nothing to recommend: at no batch size does step time surely fall with the number of experts, so no "
                "profile was written; topk is the right policy here");
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
      "Without --policy the candidates are OEA with every k0. A setting is chosen where the upper end of its interval "
      "of\n"
      "KL (or cross-entropy) is within the budget and its step time surely below topk's. See docs/eval.md.");
  options->grid.add_to(c);
  c.add_option("--budget", options->budget, "most nats per token: kl=0.01 against topk, or ce=0.005 of cross-entropy")
      ->required();
  c.add_option("--out,-o", options->out, "the profile to write")->required();
  c.add_option("--json", options->json, "write the results to this file (- = standard output instead of the tables)");
  c.callback([options, &invocation] { run(*options, invocation); });
}

}  // namespace carpool
