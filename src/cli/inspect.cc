// `carpool inspect MODEL`: what a model is and what it will cost on this machine, before loading it.
#include "measure/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/cpu_info.h"
#include "base/error.h"
#include "base/threads.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "measure/ab.h"
#include "measure/quality.h"
#include "model/family.h"
#include "model/gguf_names.h"

namespace carpool {
namespace {

constexpr int kUsualContext = 512;

struct Options {
  std::string model, isa, json;
  std::vector<std::string> text;
  std::vector<int> batches = {1, 2, 4, 8, 16, 32, 64, 128, 256};
  std::string format = "bf16";
  int threads = 0;
  int context = -1;  // not given: kUsualContext, or what the model has
  bool quiet = false;
};

namespace fs = std::filesystem;

bool has_weights(const std::string& directory) {
  if (is_gguf_path(directory)) return true;
  const fs::path d(directory);
  return fs::exists(d / "model.safetensors") || fs::exists(d / "model.safetensors.index.json");
}

Format format_named(const std::string& name) {
  for (int f = 0; f < kFormatCount; ++f) {
    if (name == info(static_cast<Format>(f)).name) return static_cast<Format>(f);
  }
  throw Error(ErrorKind::kUsage, fmt::format("unknown format \"{}\"; known: {}", escape(name), format_names()));
}

// What the configuration lets one assume of weights that are not there.
StepBytes bytes_of_config(const ModelConfig& config, const std::string& directory, Format rest) {
  const std::string path = (fs::path(directory) / "config.json").string();
  const json::value root = parse_json(read_text_file(path), path);
  return assumed_bytes(config, stated_formats(stated_quantization(JsonObject(root, path), directory), config, rest));
}

// Exact sizes, from the files' headers: the tensors are laid out as a load would, but no matrix is read. Adds what a
// load would note of them.
StepBytes bytes_of_files(ModelConfig& config, const std::string& directory) {
  auto source = std::make_unique<WeightSource>(open_weights(directory));
  PanelPlan plan;  // sizes of what would be packed; nothing is
  TensorReader reader(*source, false, plan);
  Weights weights;
  find_family(config.family).take_weights(config, reader, weights);
  reader.finish();
  config.notes.insert(config.notes.end(), reader.notes().begin(), reader.notes().end());
  std::map<std::string, double> by_dtype;
  for (const TensorInfo& tensor : source->tensors()) by_dtype[tensor.dtype] += static_cast<double>(tensor.bytes);
  StepBytes bytes = assumed_bytes(config, AssumedFormats::all(Format::kF32));  // for the KV cache
  bytes.per_expert = static_cast<double>(weights.bytes_per_expert());
  bytes.dense = static_cast<double>(weights.dense_bytes_per_step());
  bytes.set_kv(config, default_kv_format(weights.block_quantized()));
  bytes.weights = static_cast<double>(source->total_bytes());
  bytes.source.clear();
  for (const auto& [dtype, n] : by_dtype)
    bytes.source += fmt::format("{}{} {:.1f} %", bytes.source.empty() ? "" : ", ", dtype, 100 * n / bytes.weights);
  return bytes;
}

// All tokens of the texts' documents (split_documents) in order.
std::vector<int> tokens_of(const Options& options, const Tokenizer& tokenizer) {
  std::vector<int> tokens;
  for (const std::string& path : options.text) {
    const std::string text = read_text_file(path);
    for (const std::string_view document : split_documents(text).documents) {
      const std::vector<int> more = tokenizer.encode(document, false, false);
      tokens.insert(tokens.end(), more.begin(), more.end());
    }
  }
  return tokens;
}

std::vector<TextRouting> count_texts(const Options& options) {
  std::vector<TextRouting> out;
  ModelOptions load;
  load.model = options.model;
  load.threads = options.threads;
  load.isa = options.isa;
  load.quiet = options.quiet;
  LoadedModel loaded = load_model(load);
  const std::vector<int> tokens = tokens_of(options, loaded.tokenizer);
  Progress progress(options.quiet);
  for (size_t i = 0; i < options.batches.size(); ++i) {
    progress.show("counting experts", static_cast<double>(i) / static_cast<double>(options.batches.size()));
    if (auto counted = count_on_text(loaded.model, tokens, options.batches[i])) out.push_back(std::move(*counted));
  }
  if (out.empty()) {
    throw Error(ErrorKind::kUsage,
                fmt::format("the text has {} tokens, too few for any batch (8 per stream)", tokens.size()));
  }
  return out;
}

void run(const Options& options, const Invocation& invocation) {
  InspectReport report;
  report.config = read_model_config(options.model);
  if (options.context > report.config.context) {
    throw Error(ErrorKind::kUsage, fmt::format("--context {} is more than the model's {} positions", options.context,
                                               report.config.context));
  }
  if (!options.text.empty() && report.config.moe_layers() == 0) {
    throw Error(ErrorKind::kConfig,
                fmt::format("{}: the model has no routed experts that --text could count", escape(options.model, 400)));
  }
  const bool files = has_weights(options.model);
  if (!options.text.empty() && !files)
    throw Error(ErrorKind::kMissing,
                fmt::format("{}: --text needs the weights, there are none", escape(options.model, 400)));
  report.cache_bytes = cpu_info().l3_bytes;
  report.parameters = count_parameters(report.config);
  const Format format = format_named(options.format);
  report.bytes =
      files ? bytes_of_files(report.config, options.model) : bytes_of_config(report.config, options.model, format);
  report.input.batches = options.batches;
  report.input.context_tokens = options.context >= 0 ? options.context : std::min(kUsualContext, report.config.context);
  if (!options.text.empty()) report.input.text = count_texts(options);
  const int threads = options.threads > 0 ? options.threads : default_threads();
  const std::unique_ptr<Ops> ops = make_cpu_ops(threads, options.isa);
  report.input.read_gbps = ReadProbe(*ops).gbps();
  report.rows = predict(report.config, report.bytes, report.input);
  report.facts = {command_line(invocation.words),
                  build_commit(),
                  machine_facts(threads, ops->isa()),
                  fmt::format("{} ({})", options.model, report.config.family),
                  {}};
  if (!files) {
    report.facts.settings.emplace_back(
        "weights", fmt::format("none in the directory: sizes follow from config.json and {}", options.format));
  }
  if (options.json != "-") write_output("-", inspect_text(report));
  if (!options.json.empty()) write_output(options.json, pretty(inspect_json(report)));
}

}  // namespace

void add_inspect(CLI::App& app, const Invocation& invocation) {
  auto options = std::make_shared<Options>();
  CLI::App& c = *app.add_subcommand(
      "inspect", "sizes of a model, distinct experts and bytes per step by batch, the speed that memory allows here");
  c.footer(
      "Example: carpool inspect models/books-qwen3 --batch 1,4,16 --text models/books-qwen3/eval.txt\n"
      "MODEL may hold only config.json; then --format says how weights would be stored.");
  c.add_option("MODEL", options->model, "Hugging Face directory, one with only a config.json, or a .gguf file")
      ->required();
  c.add_option("--batch", options->batches, "requests decoded together")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  c.add_option("--text", options->text, "count distinct experts on this text too (loads the model)");
  c.add_option("--context", options->context,
               "positions of context per row, for the bytes of the KV cache (default: 512, or the model's context)")
      ->check(CLI::Range(0, 1 << 24));
  c.add_option("--format", options->format,
               "format to assume of what no quantization_config names when the directory has no weights: f32 or bf16")
      ->capture_default_str();
  c.add_option("--threads", options->threads, "threads to read memory and compute with (default: usable CPUs)")
      ->check(CLI::Range(1, 1024));
  c.add_option("--isa", options->isa, "instruction set: auto, scalar, avx2 or avx512")
      ->default_val("auto")
      ->envname("CARPOOL_ISA");
  c.add_option("--json", options->json, "write the results to this file (- = standard output instead of the text)");
  c.add_flag("--quiet", options->quiet, "no progress on standard error");
  c.callback([options, &invocation] { run(*options, invocation); });
}

}  // namespace carpool
