#include "cli/model_options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "base/time.h"

namespace carpool {
namespace {

constexpr double kProgressInterval = 0.1;  // seconds between two paints

std::string path_in(const std::string& directory, const char* file) {
  return (std::filesystem::path(directory) / file).string();
}

}  // namespace

void ModelOptions::add_to(CLI::App& command) {
  command.add_option("MODEL", model, "Hugging Face directory with config.json, safetensors and tokenizer.json")
      ->required();
  command.add_option("--threads", threads, "threads to compute with (default: usable CPUs, cgroup quota included)")
      ->check(CLI::Range(1, 1024));
  command.add_option("--isa", isa, "instruction set: auto, scalar, avx2 or avx512")
      ->default_val("auto")
      ->envname("CARPOOL_ISA");
  command.add_flag("!--no-finite-check", check_finite, "do not scan the weights for NaN and infinity while loading");
  command.add_flag("--quiet", quiet, "no progress on standard error");
}

void PolicyOption::add_to(CLI::App& command) {
  command.add_option("--policy", spec, "routing policy, e.g. topk or oea:k0=5 (see carpool routing list)");
  command.add_option("--oea-k0", oea_k0, "same as --policy oea:k0=N; 0 = off")
      ->check(CLI::Range(0, 4096))
      ->envname("CARPOOL_OEA_K0");
  command.add_option("--oea-min-batch", oea_min_batch, "min_batch of --oea-k0")
      ->check(CLI::Range(1, 65536))
      ->envname("CARPOOL_OEA_MIN_BATCH");
}

std::string PolicyOption::resolve() const {
  if (!spec.empty()) {
    if (oea_k0 > 0)
      throw Error(ErrorKind::kConfig,
                  fmt::format("both a policy ({}) and OEA's k0 ({}) are set; give one", escape(spec), oea_k0));
    return spec;
  }
  if (oea_k0 == 0) return "topk";
  return oea_min_batch > 0 ? fmt::format("oea:k0={},min_batch={}", oea_k0, oea_min_batch)
                           : fmt::format("oea:k0={}", oea_k0);
}

LoadedModel load_model(const ModelOptions& options) {
  if (!std::filesystem::is_directory(options.model)) {
    throw Error(ErrorKind::kMissing, fmt::format("{}: no such model directory", escape(options.model, 400)));
  }
  Progress progress(options.quiet);
  LoadOptions load;
  load.threads = options.threads;
  load.isa = options.isa;
  load.check_finite = options.check_finite;
  load.progress = [&](double share) { progress.show("loading", share); };
  Model model = Model::load(options.model, load);
  const std::string path = path_in(options.model, "tokenizer.json");
  Tokenizer tokenizer = Tokenizer::load(path);
  if (tokenizer.vocab_size() > model.config().vocab) {
    throw Error(ErrorKind::kMalformed,
                fmt::format("{}: token ids go up to {}, the model's embedding has {} rows", escape(path, 400),
                            tokenizer.vocab_size() - 1, model.config().vocab));
  }
  const std::string config = path_in(options.model, "tokenizer_config.json");
  TokenizerConfig tokenizer_config;
  if (std::filesystem::exists(config)) tokenizer_config = TokenizerConfig::load(config);
  return {std::move(model), std::move(tokenizer), std::move(tokenizer_config)};
}

std::vector<std::string> read_lines(const std::string& path) {
  const std::string text = read_text_file(path);
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) lines.push_back(std::move(line));
    at = end + 1;
  }
  return lines;
}

void write_output(const std::string& path, const std::string& text) {
  if (path == "-") {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
      throw Error(ErrorKind::kIo, "standard output cannot be written");
    }
    return;
  }
  const std::string temporary = path + ".tmp";
  std::FILE* file = std::fopen(temporary.c_str(), "wb");
  if (!file) throw Error(ErrorKind::kCannotCreate, fmt::format("{}: cannot be created", escape(temporary, 400)));
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0 &&
                       fsync(fileno(file)) == 0;
  const bool closed = std::fclose(file) == 0;
  if (!written || !closed || std::rename(temporary.c_str(), path.c_str()) != 0) {
    std::remove(temporary.c_str());
    throw Error(ErrorKind::kIo, fmt::format("{}: cannot be written", escape(path, 400)));
  }
}

Progress::Progress(bool quiet) : on_(!quiet && isatty(STDERR_FILENO)), started_(now_seconds()) {}

Progress::~Progress() {
  if (on_ && width_) std::fprintf(stderr, "\r%*s\r", static_cast<int>(width_), "");
}

void Progress::show(const std::string& stage, double share) {
  if (!on_) return;
  const double now = now_seconds();
  if (stage != stage_) {
    stage_ = stage;
    started_ = now;
  } else if (now - last_ < kProgressInterval) {
    return;
  }
  last_ = now;
  const double left = share > 0.01 ? (now - started_) / share * (1 - share) : 0;
  const std::string line =
      fmt::format("{}: {:.0f} %{}", stage, share * 100, left >= 1 ? fmt::format(", {:.0f} s left", left) : "");
  std::fprintf(stderr, "\r%-*s", static_cast<int>(width_), line.c_str());
  width_ = line.size();
}

std::string command_line(const std::vector<std::string>& words) {
  std::string out = "carpool";
  for (const std::string& word : words) {
    const bool plain = !word.empty() && word.find_first_of(" \t\n\"'\\$`*?[](){}<>|&;#~!") == std::string::npos;
    std::string quoted;
    for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    out += " " + (plain ? word : "'" + quoted + "'");
  }
  return out;
}

}  // namespace carpool
