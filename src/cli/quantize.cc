// `carpool quantize IN OUT`: a model in another number format. What it does is model/quantize.h.
#include "cli/quantize.h"

#include <fmt/format.h>

#include <memory>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/model_options.h"

namespace carpool {
namespace {

struct Options {
  QuantizeOptions quantize;
  std::string format = "q8_0", json;
  std::vector<std::string> exceptions;
  bool quiet = false;
};

Format format_named(const std::string& name) {
  if (const Format* format = format_of_name(name)) return *format;
  throw Error(ErrorKind::kUsage, fmt::format("unknown format \"{}\"; known: {}", escape(name), format_names()));
}

json::object report_json(const Options& options, const QuantizeReport& report) {
  json::array rows;
  for (const StoredAs& s : report.stored) {
    rows.push_back(json::object{{"format", s.format}, {"why", s.why}, {"tensors", s.tensors}, {"bytes", s.bytes}});
  }
  return {{"input", options.quantize.input},   {"output", options.quantize.output},
          {"input_bytes", report.input_bytes}, {"output_bytes", report.output_bytes},
          {"stored", std::move(rows)},         {"notes", json::array(report.notes.begin(), report.notes.end())}};
}

void run(Options& options) {
  QuantizeOptions& q = options.quantize;
  q.format = format_named(options.format);
  for (const std::string& e : options.exceptions) q.exceptions.push_back(parse_exception(e));
  QuantizeReport report;
  {
    Progress progress(options.quiet);
    q.progress = [&](double share) { progress.show("quantizing", share); };
    report = quantize(q);
  }
  if (options.json != "-") write_output("-", quantize_text(q, report));
  if (!options.json.empty()) write_output(options.json, pretty(report_json(options, report)));
}

}  // namespace

std::pair<std::string, Format> parse_exception(const std::string& text) {
  const size_t at = text.rfind('=');
  if (at == std::string::npos || at == 0 || at + 1 == text.size()) {
    throw Error(ErrorKind::kUsage, fmt::format("--format-for must be PATTERN=FORMAT, got \"{}\"", escape(text)));
  }
  return {text.substr(0, at), format_named(text.substr(at + 1))};
}

std::string quantize_text(const QuantizeOptions& options, const QuantizeReport& report) {
  const auto mb = [](uint64_t bytes) { return static_cast<double>(bytes) / 1e6; };
  std::string out = fmt::format("{}: {:.1f} MB, from {:.1f} MB\n", escape(options.output, 400), mb(report.output_bytes),
                                mb(report.input_bytes));
  out += fmt::format("  {:<8} {:>8} {:>10}  {}\n", "stored", "tensors", "MB", "why");
  for (const StoredAs& s : report.stored) {
    out += fmt::format("  {:<8} {:>8} {:>10.1f}  {}\n", s.format, s.tensors, mb(s.bytes), s.why);
  }
  for (const std::string& note : report.notes) out += fmt::format("note: {}\n", note);
  return out;
}

void add_quantize(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App& c = *app.add_subcommand("quantize", "write a model in another number format, as GGUF or safetensors");
  c.footer(
      "Examples: carpool quantize models/books-qwen3 books-q8_0.gguf --format q8_0\n"
      "          carpool quantize MODEL small.gguf --format q4_0 --format-for 'lm_head.weight=q8_0'\n"
      "          carpool quantize MODEL DIRECTORY --format nvfp4\n"
      "The router, norms and biases become float32 whatever the format. Where rows are not whole blocks of a format, "
      "a\n"
      "finer one takes its place; the command prints what was stored as what.");
  c.add_option("IN", options->quantize.input, "Hugging Face directory or .gguf file")->required();
  c.add_option("OUT", options->quantize.output, "a name that ends in .gguf, or a directory of safetensors to be made")
      ->required();
  c.add_option("--format", options->format,
               "of the matrices: f32, bf16, f16, q8_0, q4_0, q4_1, q5_0, q5_1, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, "
               "iq4_xs, nvfp4 or mxfp4 in GGUF; f32, bf16, f16, nvfp4 or "
               "fp8 in a directory")
      ->capture_default_str();
  c.add_option("--format-for", options->exceptions,
               "PATTERN=FORMAT: another format for the matrices whose checkpoint names match, such as "
               "'*.down_proj.weight=q8_0'; the last pattern that matches counts; may be given several times")
      ->allow_extra_args(false)
      ->take_all();
  c.add_flag("--force", options->quantize.replace, "replace an output that is there already");
  c.add_option("--threads", options->quantize.threads, "threads to work with (default: usable CPUs)")
      ->check(CLI::Range(1, 1024));
  c.add_option("--json", options->json, "write what was stored as what to this file (- = standard output)");
  c.add_flag("--quiet", options->quiet, "no progress on standard error");
  c.callback([options] { run(*options); });
}

}  // namespace carpool
