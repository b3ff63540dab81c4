// Options that every command with a model shares, and what they load.
//
// Owns the spelling of --threads, --isa, --policy and its aliases, loading progress on the terminal, and the JSON
// destination. Does not own what the commands do.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/model.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace carpool {

struct ModelOptions {
  std::string model;
  int threads = 0;
  std::string isa;
  bool check_finite = true;
  bool quiet = false;
  std::string kv_cache_dtype = "auto";
  std::string activations = "int8";
  std::string huge_pages = "auto";
  std::string repack_cache;

  // MODEL, --threads, --isa, --activations, --kv-cache-dtype, --hugepages, --repack-cache, --no-finite-check, --quiet.
  void add_to(CLI::App& command);
  // What Model::load is told of them.
  LoadOptions load_options() const;
};

// --profile FILE and what "auto" and "auto:FILE" in place of a policy mean: what `carpool tune` chose for this model.
struct ProfileOption {
  std::string path;

  void add_to(CLI::App& command);
  // `spec`, or the policy of the profile. Error{kConfig} when the profile is of another model, and for "auto" without
  // --profile; errors of read_profile.
  std::string resolve(const std::string& spec, const std::string& model) const;
  // Each of them. Error{kConfig} when --profile is given and none of them is auto.
  std::vector<std::string> resolve(const std::vector<std::string>& specs, const std::string& model) const;
};

// --policy SPEC with the aliases --oea-k0 and --oea-min-batch, which CARPOOL_OEA_K0 and CARPOOL_OEA_MIN_BATCH stand in
// for. The environment is read here and not by CLI11, for which a value from there would count as typed.
struct PolicyOption {
  std::string spec;
  std::optional<int> oea_k0, oea_min_batch;
  ProfileOption profile;

  void add_to(CLI::App& command);
  // The aliases alone, for commands that take several --policy themselves.
  void add_aliases_to(CLI::App& command);
  // The spec that was asked for: --policy, whatever the environment says; else oea from the aliases (k0 = 0 is off);
  // else "topk". Error{kConfig} for options that contradict each other, would have no effect, or, from the environment,
  // are no numbers in their range.
  std::string resolve() const;
  // The same with "auto" replaced by the profile's policy for `model` (ProfileOption).
  std::string resolve_for(const std::string& model) const;
};

struct LoadedModel {
  Model model;
  Tokenizer tokenizer;
  TokenizerConfig tokenizer_config;
};

// Loads the model and its tokenizer, checks that they fit each other, and shows progress on a terminal, and to
// `observer`.
using LoadObserver = std::function<void(const std::string& stage, double share)>;
LoadedModel load_model(const ModelOptions& options, const LoadObserver& observer = {});

// "note: ..." on standard error for what of the model is not used (ModelConfig::notes).
void print_notes(const ModelConfig& config);

// The text of quality passes: the files `given`, else the model's own eval.txt. Error{kUsage} without either.
std::vector<std::string> text_files(const std::vector<std::string>& given, const std::string& model);

// The non-empty lines of a text file, without their line ends.
std::vector<std::string> read_lines(const std::string& path);

// Writes `text` to the file, or to standard output for "-". A regular file is replaced as a whole by a temporary file
// beside it, so that a failure leaves no half of a result; a symbolic link stays and its target is replaced; a device
// or pipe is written into. Error{kCannotCreate} or Error{kIo}.
void write_output(const std::string& path, const std::string& text);

// Appends a line (without its end) to a file of such lines, creating it if need be, and lets the disk have it. What a
// failure leaves half written is taken back; half a line that somebody else left stays a line of its own.
// Error{kCannotCreate} or Error{kIo}.
void append_line(const std::string& path, const std::string& line);

// Error{kCannotCreate} when write_output could not write `path`, which would be noticed only after minutes of
// measuring. Changes nothing; "" and "-" pass.
void check_output(const std::string& path);

// A line on standard error that is rewritten as work goes on; nothing when standard error is not a terminal or `quiet`.
class Progress {
 public:
  explicit Progress(bool quiet);
  ~Progress();
  void show(const std::string& stage, double share);

 private:
  bool on_;
  double started_;
  std::string stage_;
  double last_ = 0;
  size_t width_ = 0;
};

// The command as one would type it in a shell, from its words after the program's name; for results, so valid UTF-8.
std::string command_line(const std::vector<std::string>& words);

}  // namespace carpool
