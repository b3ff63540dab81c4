// carpool trace: routing traces read, replayed under policies, and described. Formats: docs/traces.md.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/trace_options.h"
#include "measure/inspect.h"
#include "measure/trace_replay.h"
#include "routing/policy.h"

namespace carpool {
namespace {

struct TraceOptions {
  std::vector<std::string> files;
  std::string json;
  int n_experts = 0;
  std::string sampling = "independent";
  std::string out;  // of convert
  ReplayOptions replay;
};

std::string shape_text(const Trace& t) {
  std::string known = t.has_scores() ? "all scores" : t.has_weights() ? "weights of the chosen" : "no weights";
  return fmt::format("{} sequences, {} tokens, {} layers, {} of {} experts per token, {}, {}", t.sequences.size(),
                     t.tokens(), t.layers.size(), t.top_k, t.n_experts, t.ranked ? "best first" : "not ranked", known);
}

RunFacts facts_of(const Trace& trace, const Invocation& invocation) {
  RunFacts facts;
  facts.command = command_line(invocation.words);
  facts.commit = build_commit();
  facts.machine = machine_facts(1, "none");
  facts.model = trace.model.empty() ? trace.source : trace.model;
  facts.settings.emplace_back("trace", shape_text(trace));
  return facts;
}

// The tables, or the JSON alone where it goes to standard output.
void write_report(const BenchReport& report, const std::string& json) {
  if (json != "-") write_output("-", bench_text(report));
  if (!json.empty()) write_output(json, pretty(bench_json(report)));
}

void add_json(CLI::App* command, std::string& json) {
  command->add_option("--json", json, "write the results to this file (- = standard output instead of the tables)");
}

Table replay_table(const std::vector<ReplayRow>& rows) {
  Table table{"Distinct experts per layer and step, mean over batches and layers",
              {"batch", "policy", "experts", "95 %", "of plain", "per row", "weight kept", "ranks", "placement",
               "busiest", "imbalance", "us"},
              {}};
  for (const ReplayRow& r : rows) {
    const auto number = [](const std::optional<double>& v, int digits) {
      return v ? number_text(*v, digits) : std::string("-");
    };
    table.rows.push_back({fmt::format("{}", r.batch), r.policy, number_text(r.distinct.value, 2),
                          fmt::format("{} to {}", number_text(r.distinct.lo, 2), number_text(r.distinct.hi, 2)),
                          number_text(r.ratio, 3), number_text(r.slots, 2), number(r.kept_mass, 4),
                          fmt::format("{}", r.ranks), r.placement.empty() ? "-" : r.placement,
                          number_text(r.busiest, 2), number_text(r.imbalance, 3), number(r.layer_us, 1)});
  }
  return table;
}

json::object row_json(const ReplayRow& r) {
  json::object o{{"policy", r.policy}, {"batch", r.batch}, {"ranks", r.ranks}};
  if (!r.placement.empty()) o["placement"] = r.placement;
  put_estimate(o, "distinct_experts", r.distinct);
  put_estimate(o, "distinct_experts_plain", r.distinct_plain);
  put_number(o, "ratio", r.ratio);
  put_number(o, "experts_per_row", r.slots);
  if (r.kept_mass) put_number(o, "kept_mass", *r.kept_mass);
  put_number(o, "busiest_rank", r.busiest);
  put_number(o, "imbalance", r.imbalance);
  if (r.layer_us) put_number(o, "layer_us", *r.layer_us);
  return o;
}

void run_replay(TraceOptions& o, const Invocation& invocation) {
  check_output(o.json);
  o.replay.sampling =
      o.sampling == "aligned" ? ReplayOptions::Sampling::kAligned : ReplayOptions::Sampling::kIndependent;
  if (o.replay.base_us.has_value() != o.replay.expert_us.has_value()) {
    throw Error(ErrorKind::kUsage,
                "--base-us and --expert-us are the two halves of one model of time: give both or none");
  }
  if (o.replay.ranks.empty() && o.replay.placements != ReplayOptions{}.placements) {
    throw Error(ErrorKind::kUsage, "--placement needs --ranks");
  }
  const Trace trace = read_traces(o.files, o.n_experts);
  const std::vector<ReplayRow> rows = replay(trace, o.replay);
  BenchReport report;
  report.facts = facts_of(trace, invocation);
  report.facts.settings.emplace_back("sampling",
                                     fmt::format("{}, {} batches, seed {}{}", o.sampling, o.replay.draws, o.replay.seed,
                                                 o.replay.with_replacement ? ", with replacement" : ""));
  report.tables.push_back(replay_table(rows));
  for (const ReplayRow& r : rows) report.results.push_back(row_json(r));
  report.notes = trace.notes;
  if (!trace.has_scores()) {
    report.notes.emplace_back(
        "the trace holds the experts that the model chose and no others: counts are exact for topk, prune and OEA; a "
        "policy "
        "that drops all experts of a row gives it its best one, where it would find others with all scores known");
  }
  write_report(report, o.json);
}

void run_stats(TraceOptions& o, const Invocation& invocation) {
  check_output(o.json);
  const Trace trace = read_traces(o.files, o.n_experts);
  const TraceStats stats = trace_stats(trace);
  BenchReport report;
  report.facts = facts_of(trace, invocation);
  Table use{"Use of experts, mean over layers", {"what", "value"}, {}};
  const auto add = [&](const std::string& what, const char* key, double value, int digits) {
    use.rows.push_back({what, number_text(value, digits)});
    put_number(report.summary, key, value);
  };
  add("experts that some token uses", "used_experts", stats.used_experts, 1);
  add("experts that would be as evenly used (exp of entropy)", "even_experts", stats.even_experts, 1);
  add("share of the most used expert", "busiest_share", stats.busiest_share, 4);
  add("share of a token's experts that the token before it had", "reuse", stats.reuse, 3);
  if (stats.ties) add("share of rows with a tie of weights between neighbouring ranks", "ties", *stats.ties, 4);
  report.tables.push_back(std::move(use));
  if (!stats.profile.empty()) {
    Table profile{"Share of weight by rank", {"rank", "share"}, {}};
    for (size_t i = 0; i < stats.profile.size(); ++i)
      profile.rows.push_back({fmt::format("{}", i + 1), number_text(stats.profile[i], 4)});
    report.tables.push_back(std::move(profile));
  }
  ReplayOptions unions = o.replay;
  std::erase_if(unions.batches, [&](int b) { return b > static_cast<int>(trace.sequences.size()); });
  Table table{"Distinct experts by batch size, plain routing", {"batch", "measured", "uniform routing", "ratio"}, {}};
  for (const ReplayRow& r : replay(trace, unions)) {
    const double uniform = uniform_union(trace.n_experts, trace.top_k, r.batch);
    table.rows.push_back({fmt::format("{}", r.batch), number_text(r.distinct.value, 2), number_text(uniform, 2),
                          number_text(r.distinct.value / uniform, 3)});
    report.results.push_back(row_json(r));
  }
  report.tables.push_back(std::move(table));
  report.notes = trace.notes;
  write_report(report, o.json);
}

void add_sources(CLI::App* command, TraceOptions& o) {
  command->add_option("FILES", o.files, "Trace files or folders of them; formats are told apart by themselves")
      ->required();
  command->add_option("--experts", o.n_experts, "Experts per layer, where the files do not say it; 0 infers them")
      ->check(CLI::Range(0, kMaxTraceExperts));
  command->add_option("--seed", o.replay.seed, "Seed of the draws")->capture_default_str();
  command->add_option("--batches", o.replay.draws, "Batches drawn for each number")
      ->check(CLI::Range(1, 10'000'000))
      ->capture_default_str();
}

}  // namespace

void add_trace(CLI::App& app, const Invocation& invocation) {
  CLI::App* trace =
      app.add_subcommand("trace", "Routing traces: record them, replay policies on them, describe them, convert them");
  trace->require_subcommand(1);
  trace->footer("Example: carpool trace replay traces/ --policy topk --policy oea:k0=2 --batch 8,16");

  add_trace_record(*trace, invocation);
  add_trace_force(*trace, invocation);
  auto replayed = std::make_shared<TraceOptions>();
  CLI::App* replay = trace->add_subcommand("replay", "Distinct experts that policies would have loaded, by batch size");
  add_sources(replay, *replayed);
  ReplayOptions& r = replayed->replay;
  replay->add_option("--policy", r.policies, "Policy spec, repeatable (carpool routing list)")->take_all();
  replay->add_option("--batch", r.batches, "Rows per step, as 4,8,16")->delimiter(',')->check(CLI::Range(1, 65536));
  replay
      ->add_option("--sampling", replayed->sampling,
                   "independent: different sequences, a position drawn in each; aligned: the same position in all")
      ->check(CLI::IsMember({"independent", "aligned"}))
      ->capture_default_str();
  replay->add_flag("--with-replacement", r.with_replacement, "Allow more rows than there are sequences");
  replay
      ->add_option("--ranks", r.ranks,
                   "Machines or devices that share the experts, as 8,16: adds the busiest one's count")
      ->delimiter(',')
      ->check(CLI::Range(1, kMaxTraceExperts));
  replay->add_option("--placement", r.placements, "round_robin, greedy, replicated:N; repeatable")->take_all();
  replay->add_option("--base-us", r.base_us, "A layer's microseconds without experts, for predicted times")
      ->check(CLI::NonNegativeNumber);
  replay->add_option("--expert-us", r.expert_us, "Microseconds per expert of the busiest rank")
      ->check(CLI::NonNegativeNumber);
  add_json(replay, replayed->json);
  replay->footer(
      "Example: carpool trace replay traces/ --policy topk --policy oea:k0=2 --batch 8,16 --ranks 8 --placement "
      "greedy");
  replay->callback([replayed, &invocation] { run_replay(*replayed, invocation); });

  auto described = std::make_shared<TraceOptions>();
  described->replay.batches = {1, 2, 4, 8, 16, 32, 64};
  CLI::App* stats = trace->add_subcommand("stats", "Skew, reuse, weight by rank, and distinct experts by batch size");
  add_sources(stats, *described);
  add_json(stats, described->json);
  stats->footer("Example: carpool trace stats traces/gpt-oss-20b");
  stats->callback([described, &invocation] { run_stats(*described, invocation); });

  auto converted = std::make_shared<TraceOptions>();
  CLI::App* convert = trace->add_subcommand("convert", "Any trace to carpool's own format (docs/traces.md)");
  convert->add_option("FILES", converted->files, "Trace files or folders of them")->required();
  convert->add_option("--out,-o", converted->out, "The file to write")->required();
  convert
      ->add_option("--experts", converted->n_experts, "Experts per layer, where the files do not say it; 0 infers them")
      ->check(CLI::Range(0, kMaxTraceExperts));
  convert->footer("Example: carpool trace convert traces/gpt-oss-20b --out gpt-oss.jsonl");
  convert->callback([converted] {
    const Trace t = read_traces(converted->files, converted->n_experts);
    write_trace(t, converted->out);
    write_output("-", fmt::format("{}: {}\n", converted->out, shape_text(t)));
  });
}

}  // namespace carpool
