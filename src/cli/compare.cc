// `carpool compare MODEL`: routing policies, their settings and batch sizes side by side, quality against experts and
// against measured time. What is measured is in measure/compare.h.
#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/grid_options.h"
#include "measure/compare_report.h"

namespace carpool {
namespace {

struct Options {
  GridOptions grid;
  std::string json, html;
};

void run(Options& options, const Invocation& invocation) {
  check_output(options.json);
  check_output(options.html);
  const std::string files[] = {options.json, options.html, options.grid.cells_file};
  for (size_t i = 0; i < std::size(files); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (!files[i].empty() && files[i] == files[j])
        throw Error(ErrorKind::kUsage, "--json, --html and --cells must name different files");
    }
  }
  GridSession grid(options.grid, invocation);
  const std::vector<CompareCell> cells = grid.measure(grid.batches(), grid.policies());
  const RunFacts facts = grid.facts();
  const BenchReport report = compare_report(facts, cells);
  if (options.json != "-" && options.html != "-") write_output("-", bench_text(report));
  if (!options.json.empty()) write_output(options.json, pretty(bench_json(report)));
  if (!options.html.empty()) write_output(options.html, compare_html(facts, cells));
}

}  // namespace

void add_compare(CLI::App& app, const Invocation& invocation) {
  auto options = std::make_shared<Options>();
  CLI::App& c = *app.add_subcommand(
      "compare", "a grid of policies, settings and batch sizes: quality against experts and against measured time");
  c.footer(
      "Examples: carpool compare models/books-qwen3 --cells cells.jsonl --html compare.html\n"
      "          carpool compare MODEL --policy oea:k0=5 --policy xshare:m=50% --batch 8,32\n"
      "          carpool compare MODEL --tables model.tables    # sere and exfold as well\n"
      "The built-in grid takes some twenty minutes on two cores; with --cells a run that was stopped goes on where it "
      "was. See docs/eval.md.");
  options->grid.add_to(c);
  c.add_option("--json", options->json, "write the results to this file (- = standard output instead of the tables)");
  c.add_option("--html", options->html,
               "write a report with charts to this file (- = standard output instead of the tables)");
  c.callback([options, &invocation] { run(*options, invocation); });
}

}  // namespace carpool
