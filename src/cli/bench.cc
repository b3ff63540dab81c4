#include "cli/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/threads.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "measure/ab.h"
#include "measure/bench_decode.h"
#include "measure/bench_kernels.h"
#include "measure/bench_layer.h"
#include "measure/bench_prefill.h"
#include "model/dummy.h"

namespace carpool {
namespace {

// Options of the benches that load no model.
struct MachineOptions {
  int threads = 0;  // 0 = default_threads()
  std::string isa;
  bool quiet = false;
};

struct DecodeCommand {
  ModelOptions model;
  ProfileOption profile;
  DecodeOptions bench;
  std::optional<int> cold_copies;  // default: decided by size
  std::string json;
};

struct PrefillCommand {
  ModelOptions model;
  PrefillOptions bench;
  std::string json;
};

struct LayerCommand {
  MachineOptions machine;
  LayerOptions bench;
  std::string shape, format = "q4_0", routing = "uniform", json;
};

struct KernelsCommand {
  MachineOptions machine;
  KernelOptions bench;
  std::vector<std::string> formats = {"all"}, isas = {"all"};
  std::string shape = "2048x1024", json;
};

template <class T>
std::string list_text(const std::vector<T>& values) {
  return fmt::format("{}", fmt::join(values, ","));
}

// What can be known of MODEL before it is loaded.
ModelConfig config_of(const std::string& model) {
  return is_dummy(model) ? dummy_config(parse_dummy(model)) : read_model_config(model);
}

Model load(const ModelOptions& options) {
  Progress progress(options.quiet);
  LoadOptions load = options.load_options();
  load.progress = [&](double share) { progress.show("loading", share); };
  Model model = Model::load(options.model, load);
  if (!options.quiet) print_notes(model.config());
  return model;
}

RunFacts facts_of(const Invocation& invocation, const Ops& ops, const std::string& model) {
  return {command_line(invocation.words), build_commit(), machine_facts(ops.threads(), ops.isa()), model, {}};
}

std::string model_text(const ModelOptions& options, const Model& model) {
  return fmt::format("{} ({})", options.model, model.config().family);
}

void write_report(const BenchReport& report, const std::string& json) {
  if (json != "-") write_output("-", bench_text(report));
  if (!json.empty()) write_output(json, pretty(bench_json(report)));
}

void run_decode_command(DecodeCommand& command, const Invocation& invocation) {
  check_output(command.json);
  command.bench.policies = command.profile.resolve(command.bench.policies, command.model.model);
  check_decode(config_of(command.model.model), command.bench);  // before the load
  Model model = load(command.model);
  const int copies = command.cold_copies.value_or(default_cold_copies(model));
  model.set_cold_copies(copies);
  Progress progress(command.model.quiet);
  command.bench.progress = [&](const std::string& stage, double share) { progress.show(stage, share); };
  BenchReport report;
  report.facts = facts_of(invocation, model.ops(), model_text(command.model, model));
  report.facts.settings = {{"repeats", std::to_string(command.bench.repeats)},
                           {"tokens", "random, uniform over the vocabulary, a stream per sequence"},
                           {"seed", std::to_string(command.bench.seed)},
                           {"chunk", std::to_string(command.bench.chunk)},
                           {"kv_cache_dtype", std::string(name(model.kv_format()))},
                           {"activations", command.model.activations},
                           {"weights", model.memory_text()},
                           {"cold_copies", std::to_string(copies)}};
  const std::vector<DecodeRow> rows = run_decode(model, command.bench);
  report_decode(rows, model.config(), command.model.model, command.bench.repeats, report);
  write_report(report, command.json);
}

void run_prefill_command(PrefillCommand& command, const Invocation& invocation) {
  check_output(command.json);
  check_prefill(config_of(command.model.model), command.bench);
  Model model = load(command.model);
  Progress progress(command.model.quiet);
  command.bench.progress = [&](const std::string& stage, double share) { progress.show(stage, share); };
  BenchReport report;
  report.facts = facts_of(invocation, model.ops(), model_text(command.model, model));
  report.facts.settings = {{"repeats", std::to_string(command.bench.repeats)},
                           {"tokens", "random, uniform over the vocabulary"},
                           {"kv_cache_dtype", std::string(name(model.kv_format()))},
                           {"activations", command.model.activations},
                           {"weights", model.memory_text()},
                           {"seed", std::to_string(command.bench.seed)}};
  report_prefill(run_prefill(model, command.bench), command.bench.repeats, report);
  write_report(report, command.json);
}

Format one_format(const std::string& name) {
  const std::vector<Format> formats = parse_formats({name});
  if (formats.size() == 1) return formats[0];
  throw Error(ErrorKind::kConfig, fmt::format("a layer has one format: one of {}", format_names()));
}

void run_layer_command(LayerCommand& command, bool batches_or_policies, const Invocation& invocation) {
  LayerOptions& bench = command.bench;
  check_output(command.json);
  bench.shape = find_shape(command.shape);
  bench.format = one_format(command.format);
  bench.routing = parse_routing(command.routing);
  if (!bench.routing.forced.empty() && batches_or_policies) {
    throw Error(ErrorKind::kConfig, "--batch and --policy have no effect with forced routing, which says both itself");
  }
  check_layer(bench);
  const MachineOptions& machine = command.machine;
  const std::unique_ptr<Ops> ops = make_cpu_ops(machine.threads > 0 ? machine.threads : default_threads(), machine.isa);
  Progress progress(machine.quiet);
  bench.progress = [&](const std::string& stage, double share) { progress.show(stage, share); };
  BenchReport report;
  report.facts = facts_of(invocation, *ops,
                          fmt::format("one MoE layer of {} in {}, random weights: {} of {} experts, {} MB",
                                      command.shape, command.format, bench.shape.top_k, bench.shape.n_experts,
                                      number_text(static_cast<double>(layer_bytes(bench)) / 1e6, 0)));
  report.facts.settings = {{"repeats", std::to_string(bench.repeats)},
                           {"steps", fmt::format("{} per row and repeat, fresh routing in each", bench.steps)},
                           {"routing", command.routing},
                           {"seed", std::to_string(bench.seed)},
                           {"cold_copies", std::to_string(layer_copies(bench))}};
  report_layer(run_layer(*ops, bench), bench, report);
  write_report(report, command.json);
}

void run_kernels_command(KernelsCommand& command, const Invocation& invocation) {
  KernelOptions& bench = command.bench;
  check_output(command.json);
  bench.formats = parse_formats(command.formats);
  bench.isas = parse_isas(command.isas);
  std::tie(bench.k, bench.n) = parse_matrix(command.shape);
  const int threads = command.machine.threads > 0 ? command.machine.threads : default_threads();
  bench.threads = threads > 1 ? std::vector{1, threads} : std::vector{1};
  Progress progress(command.machine.quiet);
  bench.progress = [&](const std::string& stage, double share) { progress.show(stage, share); };
  BenchReport report;
  report.facts = {command_line(invocation.words),
                  build_commit(),
                  machine_facts(threads, list_text(bench.isas)),
                  fmt::format("none: random matrices of {} inputs by {} outputs", bench.k, bench.n),
                  {{"repeats", std::to_string(bench.repeats)},
                   {"milliseconds", number_text(bench.seconds * 1e3, 0)},
                   {"seed", std::to_string(bench.seed)}}};
  report_kernels(run_kernels(bench), bench.repeats, report);
  write_report(report, command.json);
}

void add_repeat(CLI::App& c, int& repeats, uint64_t& seed, std::string& json) {
  c.add_option("--repeat,--repeats", repeats, "rounds in which every row runs once")->capture_default_str();
  c.add_option("--seed", seed, "of tokens, routing and random weights of the bench")->capture_default_str();
  c.add_option("--json", json, "write the results to this file (- = standard output instead of the tables)");
}

void add_machine(CLI::App& c, MachineOptions& machine) {
  c.add_option("--threads", machine.threads, "threads to compute with (default: usable CPUs, cgroup quota included)")
      ->check(CLI::Range(1, 1024));
  c.add_flag("--quiet", machine.quiet, "no progress and no notes on standard error");
}

void add_decode(CLI::App& bench, const Invocation& invocation) {
  auto command = std::make_shared<DecodeCommand>();
  CLI::App& c = *bench.add_subcommand("decode", "decode steps at several batches and policies, random tokens");
  c.footer("Example: carpool bench decode dummy:qwen3-30b-a3b,layers=8 --batch 1,16 --policy topk --policy oea:k0=5");
  command->model.add_to(c);
  c.add_option("--batch", command->bench.batches, "sequences decoded together, e.g. 1,4,16")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  c.add_option("--policy", command->bench.policies, "routing policy; may be given several times (default: topk)")
      ->allow_extra_args(false);
  command->profile.add_to(c);
  c.add_option("--prompt", command->bench.prompt, "prompt tokens of each sequence")->capture_default_str();
  c.add_option("--steps", command->bench.steps, "decode steps of each row and round")->capture_default_str();
  c.add_option("--chunk", command->bench.chunk, "prompt rows per step")->capture_default_str();
  c.add_option(
       "--cold-copies", command->cold_copies,
       "private copies of the experts used in turn, so that they come from memory; 0 = none (default: four times "
       "the last-level cache for models smaller than that, else 0)")
      ->check(CLI::Range(0, 4096));
  add_repeat(c, command->bench.repeats, command->bench.seed, command->json);
  c.callback([command, &invocation] { run_decode_command(*command, invocation); });
}

void add_prefill(CLI::App& bench, const Invocation& invocation) {
  auto command = std::make_shared<PrefillCommand>();
  CLI::App& c = *bench.add_subcommand("prefill", "prompt processing of one sequence, random tokens");
  c.footer("Example: carpool bench prefill dummy:qwen3-30b-a3b,layers=8 --tokens 512,2048");
  command->model.add_to(c);
  c.add_option("--tokens", command->bench.tokens, "prompt lengths")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  c.add_option("--chunk", command->bench.chunk, "prompt rows per step")->capture_default_str();
  add_repeat(c, command->bench.repeats, command->bench.seed, command->json);
  c.callback([command, &invocation] { run_prefill_command(*command, invocation); });
}

void add_layer(CLI::App& bench, const Invocation& invocation) {
  auto command = std::make_shared<LayerCommand>();
  CLI::App& c = *bench.add_subcommand("layer", "one full-size MoE layer with random weights");
  c.footer(
      "Examples: carpool bench layer --shape glm-5 --format nvfp4 --batch 16 --policy topk --policy oea:k0=5\n"
      "          carpool bench layer --shape qwen3-30b-a3b --routing forced:8x1,8x2,8x4,8x8,16x1,32x1");
  std::string shapes;
  for (const ModelShape& shape : model_shapes()) shapes += fmt::format("{}{}", shapes.empty() ? "" : ", ", shape.name);
  c.add_option("--shape", command->shape, "whose layer: " + shapes)->required();
  c.add_option("--format", command->format, fmt::format("of the experts: {}", format_names()))->capture_default_str();
  CLI::Option* batch = c.add_option("--batch", command->bench.batches, "tokens of a step, e.g. 1,4,16")
                           ->delimiter(',')
                           ->allow_extra_args(false)
                           ->capture_default_str();
  CLI::Option* policy =
      c.add_option("--policy", command->bench.policies, "routing policy; may be given several times (default: topk)")
          ->allow_extra_args(false);
  c.add_option(
       "--routing", command->routing,
       "uniform; skewed or skewed:S (popularity of experts ~ rank^-S, default 1); forced:UxR,UxR,... (U experts "
       "with R rows each, which also gives the cost of a row)")
      ->capture_default_str();
  c.add_option("--steps", command->bench.steps, "steps of each row and round")->capture_default_str();
  c.add_option(
       "--cold-copies", command->bench.cold_copies,
       "copies of the layer used in turn, so that experts come from memory (default: as many as make four times "
       "the last-level cache)")
      ->check(CLI::Range(1, 4096));
  c.add_option("--isa", command->machine.isa, "instruction set: auto, scalar, avx2 or avx512")
      ->default_val("auto")
      ->envname("CARPOOL_ISA");
  add_machine(c, command->machine);
  add_repeat(c, command->bench.repeats, command->bench.seed, command->json);
  c.callback([command, batch, policy, &invocation] {
    run_layer_command(*command, batch->count() > 0 || policy->count() > 0, invocation);
  });
}

void add_kernels(CLI::App& bench, const Invocation& invocation) {
  auto command = std::make_shared<KernelsCommand>();
  CLI::App& c =
      *bench.add_subcommand("kernels", "matrix products by format and instruction set, from memory and cache");
  c.footer("Example: carpool bench kernels --format q4_0,nvfp4 --isa all --rows 1,4,16 --shape 2048x1536");
  c.add_option("--format", command->formats, fmt::format("all, or of {}", format_names()))
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  c.add_option("--isa", command->isas, "all of this machine, or of scalar, avx2, avx512; the first is the reference")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  c.add_option("--rows", command->bench.rows, "rows of a product")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  c.add_option("--shape", command->shape, "matrix of K inputs by N outputs, KxN")->capture_default_str();
  c.add_option_function<double>(
       "--milliseconds", [command](const double& ms) { command->bench.seconds = ms / 1e3; },
       "shortest time of a cell and round (default: 20)")
      ->check(CLI::Range(0.01, 1e5));
  add_machine(c, command->machine);
  add_repeat(c, command->bench.repeats, command->bench.seed, command->json);
  c.callback([command, &invocation] { run_kernels_command(*command, invocation); });
}

}  // namespace

std::vector<Format> parse_formats(const std::vector<std::string>& names) {
  std::vector<Format> out;
  for (const std::string& name : names) {
    if (name == "all") {
      for (int i = 0; i < kFormatCount; ++i) out.push_back(static_cast<Format>(i));
    } else if (const Format* format = format_of_name(name)) {
      out.push_back(*format);
    } else {
      throw Error(ErrorKind::kConfig, fmt::format("no format \"{}\"; there are {}", escape(name, 60), format_names()));
    }
  }
  return out;
}

std::vector<std::string> parse_isas(const std::vector<std::string>& names) {
  const std::vector<std::string> all = cpu_isa_names();
  std::vector<std::string> out;
  for (const std::string& name : names) {
    if (name == "all") {
      out.insert(out.end(), all.begin(), all.end());
    } else if (std::find(all.begin(), all.end(), name) != all.end()) {
      out.push_back(name);
    } else {
      throw Error(ErrorKind::kConfig,
                  fmt::format("no instruction set \"{}\" here; there are {}", escape(name, 60), fmt::join(all, ", ")));
    }
  }
  return out;
}

std::pair<int64_t, int64_t> parse_matrix(std::string_view text) {
  int64_t k = 0, n = 0;
  const char* end = text.data() + text.size();
  const auto [x, first] = std::from_chars(text.data(), end, k);
  if (first == std::errc() && x != end && *x == 'x') {
    const auto [stop, second] = std::from_chars(x + 1, end, n);
    if (second == std::errc() && stop == end && k > 0 && n > 0) return {k, n};
  }
  throw Error(
      ErrorKind::kConfig,
      fmt::format("the shape of a matrix is KxN, inputs by outputs, as in 2048x1536; got \"{}\"", escape(text, 60)));
}

void add_bench(CLI::App& app, const Invocation& invocation) {
  CLI::App& c = *app.add_subcommand("bench", "offline benches: decode, prefill, one layer, the kernels");
  c.require_subcommand(1);
  c.footer("Example: carpool bench layer --shape glm-5 --format nvfp4 --batch 16 --policy topk --policy oea:k0=5");
  add_decode(c, invocation);
  add_prefill(c, invocation);
  add_layer(c, invocation);
  add_kernels(c, invocation);
}

}  // namespace carpool
