#include "cli/model_options.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/time.h"
#include "measure/latency.h"
#include "measure/report.h"
#include "text/tokenizer_files.h"
#include "text/tokenizer_gguf.h"
#include "text/utf8.h"

namespace carpool {
namespace {

constexpr double kProgressInterval = 0.1;  // seconds between two paints
constexpr int kMaxK0 = 4096, kMaxMinBatch = 65536;
constexpr const char* kEnvK0 = "CARPOOL_OEA_K0";
constexpr const char* kEnvMinBatch = "CARPOOL_OEA_MIN_BATCH";

std::string path_in(const std::string& directory, const char* file) {
  return (std::filesystem::path(directory) / file).string();
}

// The number in an environment variable; nullopt when it is unset or empty.
std::optional<int> environment_number(const char* name, int low, int high) {
  const char* text = std::getenv(name);
  if (!text || !*text) return std::nullopt;
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc() || stop != end || value < low || value > high) {
    throw Error(ErrorKind::kConfig,
                fmt::format("the environment's {} must be {} to {}, got \"{}\"", name, low, high, escape(text, 60)));
  }
  return value;
}

[[noreturn]] void cannot_create(const std::string& path, int code) {
  throw Error(ErrorKind::kCannotCreate,
              fmt::format("{}: cannot be created: {}", escape(path, 400), std::strerror(code)));
}

// Writes all of `text`; 0, or errno of what failed.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : EIO;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return 0;
}

[[noreturn]] void cannot_write(const std::string& path, int code) {
  throw Error(ErrorKind::kIo, fmt::format("{}: cannot be written: {}", escape(path, 400), std::strerror(code)));
}

// Into a device, pipe or socket as it stands; nothing is created or replaced.
void write_into(const std::string& path, const std::string& text) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);  // of a pipe: waits for its reader
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) cannot_create(path, errno);
  int code = write_all(fd, text);
  if (::close(fd) != 0 && code == 0) code = errno;
  if (code != 0) cannot_write(path, code);
}

// A new file of a name nobody else has, then a rename over `path`. `mode` of the result.
void replace_file(const std::string& path, const std::string& text, mode_t mode) {
  std::string temporary = path + ".XXXXXX";
  const int fd = ::mkstemp(temporary.data());
  if (fd < 0) cannot_create(path, errno);
  int code = write_all(fd, text);
  if (code == 0 && (::fchmod(fd, mode) != 0 || ::fsync(fd) != 0)) code = errno;
  if (::close(fd) != 0 && code == 0) code = errno;
  if (code == 0 && std::rename(temporary.c_str(), path.c_str()) != 0) code = errno;
  if (code == 0) return;
  ::unlink(temporary.c_str());
  cannot_write(path, code);
}

// The file that `path` leads to, which need not exist: also the end of a link to nowhere, where open() would create it.
std::string behind_links(const std::string& path) {
  std::error_code error;
  std::filesystem::path target = std::filesystem::weakly_canonical(path, error);
  for (int hops = 0; !error && std::filesystem::is_symlink(target, error) && hops < 40; ++hops) {
    const std::filesystem::path next = std::filesystem::read_symlink(target, error);
    if (!error) target = std::filesystem::weakly_canonical(target.parent_path() / next, error);
  }
  if (error && error != std::errc::no_such_file_or_directory) cannot_create(path, error.value());
  return target.string();
}

// Permissions of a file created the usual way.
mode_t new_file_mode() {
  const mode_t mask = ::umask(0);  // reading is setting; no other thread of ours creates files
  ::umask(mask);
  return 0644 & ~mask;
}

}  // namespace

void ModelOptions::add_to(CLI::App& command) {
  command
      .add_option("MODEL", model,
                  "Hugging Face directory with config.json, safetensors and tokenizer.json, or a .gguf file")
      ->required();
  command.add_option("--threads", threads, "threads to compute with (default: usable CPUs, cgroup quota included)")
      ->check(CLI::Range(1, 1024));
  command.add_option("--isa", isa, "instruction set: auto, scalar, avx2 or avx512")
      ->default_val("auto")
      ->envname("CARPOOL_ISA");
  command
      .add_option(
          "--kv-cache-dtype", kv_cache_dtype,
          "elements of the key-value cache: f32 is exact, bf16 halves it, q8 quarters it (int8, a scale per 32); "
          "auto = bf16 for block-quantised weights, else f32")
      ->check(CLI::IsMember({"auto", "f32", "bf16", "q8"}))
      ->capture_default_str();
  command
      .add_option("--activations", activations,
                  "how activations enter products with block-quantised weights: int8 is fast, float is exact")
      ->check(CLI::IsMember({"int8", "float"}))
      ->capture_default_str();
  command
      .add_option(
          "--hugepages", huge_pages,
          "memory of the weights: auto = huge pages where the system has them, thp = an error where it has none, "
          "off = small pages")
      ->check(CLI::IsMember({"auto", "thp", "off"}))
      ->capture_default_str();
  command.add_option("--repack-cache", repack_cache,
                     "folder that keeps the repacked weights, to be mapped instead of repacked the next time");
  command.add_flag("!--no-finite-check", check_finite, "do not scan the weights for NaN and infinity while loading");
  command.add_flag("--quiet", quiet, "no progress and no notes on standard error");
}

LoadOptions ModelOptions::load_options() const {
  LoadOptions load;
  load.threads = threads;
  load.isa = isa;
  load.check_finite = check_finite;
  load.activations = activations == "float" ? Activations::kFloat : Activations::kInt8;
  load.huge_pages = *hugepages_of_name(huge_pages);
  load.repack_cache = repack_cache;
  load.kv_format = kv_format_of_name(kv_cache_dtype);  // none for auto
  return load;
}

void PolicyOption::add_to(CLI::App& command) {
  command.add_option(
      "--policy", spec,
      "routing policy, e.g. topk or oea:k0=5 (see carpool routing list), or auto: what carpool tune chose");
  profile.add_to(command);
  add_aliases_to(command);
}

void PolicyOption::add_aliases_to(CLI::App& command) {
  command
      .add_option("--oea-k0", oea_k0,
                  fmt::format("same as --policy oea:k0=N; 0 = off (environment: {}, unless --policy is given)", kEnvK0))
      ->check(CLI::Range(0, kMaxK0));
  command
      .add_option("--oea-min-batch", oea_min_batch,
                  fmt::format("min_batch of --oea-k0 (environment: {})", kEnvMinBatch))
      ->check(CLI::Range(1, kMaxMinBatch));
}

void ProfileOption::add_to(CLI::App& command) {
  command.add_option("--profile", path, "the profile that --policy auto reads, as carpool tune wrote it");
}

std::string ProfileOption::resolve(const std::string& spec, const std::string& model) const {
  if (spec != "auto" && !spec.starts_with("auto:")) return spec;
  const std::string file = spec == "auto" ? path : spec.substr(5);
  if (file.empty()) {
    throw Error(ErrorKind::kConfig,
                "the policy auto needs a profile: give --profile FILE, or auto:FILE; carpool tune writes one");
  }
  const Profile profile = read_profile(file);
  check_profile(profile, model);
  return profile.spec;
}

std::vector<std::string> ProfileOption::resolve(const std::vector<std::string>& specs, const std::string& model) const {
  const bool used = std::find(specs.begin(), specs.end(), "auto") != specs.end();
  if (!path.empty() && !used) throw Error(ErrorKind::kConfig, "--profile has no effect without the policy auto");
  std::vector<std::string> out;
  for (const std::string& spec : specs) out.push_back(resolve(spec, model));
  return out;
}

std::string PolicyOption::resolve_for(const std::string& model) const {
  return profile.resolve(std::vector<std::string>{resolve()}, model)[0];
}

std::string PolicyOption::resolve() const {
  const auto refuse = [](const std::string& sentence) { throw Error(ErrorKind::kConfig, sentence); };
  if (!spec.empty()) {
    if (oea_k0) refuse(fmt::format("both --policy ({}) and --oea-k0 ({}) are set; give one", escape(spec), *oea_k0));
    if (oea_min_batch) {
      refuse(fmt::format("--oea-min-batch has no effect with --policy; write it as an argument: {}{}min_batch={}",
                         escape(spec), spec.find(':') == std::string::npos ? ":" : ",", *oea_min_batch));
    }
    return spec;
  }
  const int k0 = oea_k0 ? *oea_k0 : environment_number(kEnvK0, 0, kMaxK0).value_or(0);
  if (k0 == 0) {
    if (oea_min_batch) refuse("--oea-min-batch has no effect without --oea-k0 of at least 1");
    return "topk";
  }
  const auto min_batch = oea_min_batch ? oea_min_batch : environment_number(kEnvMinBatch, 1, kMaxMinBatch);
  return min_batch ? fmt::format("oea:k0={},min_batch={}", k0, *min_batch) : fmt::format("oea:k0={}", k0);
}

namespace {

// What reads and writes a model's text, and the name of the file it is from.
struct TextParts {
  std::string where;
  Tokenizer tokenizer;
  TokenizerConfig config;
};

TextParts text_of_gguf(const std::string& path) {
  const GgufSet files = GgufSet::open(path);
  if (!gguf_has_tokenizer(files.metadata())) {
    throw Error(ErrorKind::kConfig,
                fmt::format("{}: the file has no tokenizer; only carpool bench and inspect can use it", files.where()));
  }
  return {files.where(), gguf_tokenizer(files.metadata()), gguf_tokenizer_config(files.metadata())};
}

TextParts text_of_directory(const std::string& directory) {
  const std::string path = tokenizer_file(directory), config = path_in(directory, "tokenizer_config.json");
  TextParts parts{escape(path, 400), load_tokenizer(directory), {}};
  if (file_exists(config)) parts.config = TokenizerConfig::load(config);
  return parts;
}

}  // namespace

LoadedModel load_model(const ModelOptions& options, const LoadObserver& observer) {
  std::error_code ignored;  // a name that cannot be followed is no directory either
  const bool gguf = is_gguf_path(options.model);
  if (!gguf && !std::filesystem::is_directory(options.model, ignored)) {
    throw Error(ErrorKind::kMissing, fmt::format("{}: no such model directory", escape(options.model, 400)));
  }
  std::optional<TextParts> text;
  if (gguf) text = text_of_gguf(options.model);  // a file without a tokenizer is refused before it is read
  Progress progress(options.quiet);
  LoadOptions load = options.load_options();
  load.progress = [&](double share) {
    progress.show("loading", share);
    if (observer) observer("loading", share);
  };
  Model model = Model::load(options.model, load);
  if (!gguf) text = text_of_directory(options.model);
  if (text->tokenizer.vocab_size() > model.config().vocab) {
    throw Error(ErrorKind::kMalformed,
                fmt::format("{}: token ids go up to {}, the model's embedding has {} rows", text->where,
                            text->tokenizer.vocab_size() - 1, model.config().vocab));
  }
  return {std::move(model), std::move(text->tokenizer), std::move(text->config)};
}

void print_notes(const ModelConfig& config) {
  for (const std::string& note : config.notes) std::fprintf(stderr, "note: %s\n", printable(note).c_str());
}

std::vector<std::string> text_files(const std::vector<std::string>& given, const std::string& model) {
  if (!given.empty()) return given;
  const std::string beside = path_in(model, "eval.txt");
  std::error_code ignored;
  if (std::filesystem::exists(beside, ignored)) return {beside};
  throw Error(ErrorKind::kUsage, "the quality of a policy needs a text: give --text FILE");
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
  if (path.empty() || path.find('\0') != std::string::npos) cannot_create(path, EINVAL);
  struct stat status{};
  const bool there = ::stat(path.c_str(), &status) == 0;
  if (!there && errno != ENOENT) cannot_create(path, errno);
  if (there && S_ISDIR(status.st_mode)) cannot_create(path, EISDIR);
  if (there && !S_ISREG(status.st_mode)) return write_into(path, text);
  replace_file(behind_links(path), text, there ? status.st_mode & 0777 : new_file_mode());
}

void append_line(const std::string& path, const std::string& line) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) cannot_create(path, errno);
  struct stat status{};
  char last = '\n';
  const bool regular = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  if (regular && status.st_size > 0 && ::pread(fd, &last, 1, status.st_size - 1) != 1) last = '\n';
  int code = write_all(fd, (last == '\n' ? "" : "\n") + line + "\n");
  if (code == 0 && regular && ::fsync(fd) != 0) code = errno;
  if (code != 0 && regular) static_cast<void>(!::ftruncate(fd, status.st_size));
  if (::close(fd) != 0 && code == 0) code = errno;
  if (code != 0) cannot_write(path, code);
}

void check_output(const std::string& path) {
  namespace fs = std::filesystem;
  if (path.empty() || path == "-") return;
  std::error_code ignored;
  const fs::path parent = fs::absolute(path, ignored).parent_path();
  const bool there = fs::exists(path, ignored);
  bool writable = fs::is_directory(parent, ignored) && !fs::is_directory(path, ignored);
  if (writable && there && !fs::is_regular_file(path, ignored)) {
    writable = access(path.c_str(), W_OK) == 0;  // opening a pipe would wait for its reader
  } else if (writable) {
    std::FILE* file = std::fopen(path.c_str(), "ab");
    writable = file && std::fclose(file) == 0 && access(parent.c_str(), W_OK | X_OK) == 0;
    if (file && !there) std::remove(path.c_str());
  }
  if (!writable) throw Error(ErrorKind::kCannotCreate, fmt::format("{}: cannot be written", escape(path, 400)));
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
  return sanitize_utf8(out);
}

}  // namespace carpool
