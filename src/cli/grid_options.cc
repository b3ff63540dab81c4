#include "cli/grid_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/checksum.h"
#include "base/cpu_info.h"
#include "base/error.h"
#include "measure/ab.h"
#include "measure/model_identity.h"
#include "model/routing_tables.h"

namespace carpool {
namespace {

const std::vector<int> kBatches = {4, 8, 16, 32, 64};
constexpr size_t kMostPolicies = 1000;

// {"policies": [...], "batch": [...]}; what is not given on the command line.
void read_grid_file(GridOptions& options) {
  const std::string where = escape(options.grid_file, 400);
  const json::value root = parse_json(read_text_file(options.grid_file), where);
  const JsonObject grid(root, where);
  for (const auto& entry : grid.raw()) {
    if (entry.key() != "policies" && entry.key() != "batch")
      grid.fail(entry.key(), "is not known; a grid has \"policies\" and \"batch\"");
  }
  for (const json::value& spec : grid.array("policies")) {
    if (!spec.is_string()) grid.fail("policies", "must be a list of texts");
    options.policies.emplace_back(spec.as_string());
  }
  if (!grid.has("batch") || !options.batches.empty()) return;
  for (const json::value& batch : grid.array("batch")) {
    if (!batch.is_int64() || batch.as_int64() < 1 || batch.as_int64() > 4096)
      grid.fail("batch", "must be a list of whole numbers, 1 to 4096");
    options.batches.push_back(static_cast<int>(batch.as_int64()));
  }
}

std::vector<std::string> canonical(const std::vector<std::string>& specs, const ModelConfig& config) {
  std::vector<std::string> out;
  for (const std::string& spec : specs) {
    const std::unique_ptr<Policy> policy = make_policy(spec);
    check_spec(spec, config);
    const bool known = std::find(out.begin(), out.end(), policy->spec()) != out.end();
    if (!known && policy->spec() != "topk") out.push_back(policy->spec());
  }
  return out;
}

// The built-in grid of the layer's E and K, and of what --tables has tables for.
std::vector<std::string> built_in(const GridOptions& options, const ModelConfig& config) {
  std::vector<std::string> specs =
      default_grid(config.n_experts, config.top_k, config.scoring.kind == Scoring::Kind::kSigmoid);
  if (options.tables_file.empty()) return specs;
  const RoutingTables tables = read_routing_tables(options.tables_file).tables;
  for (std::string& spec : table_grid(options.tables_file, tables, config.top_k)) specs.push_back(std::move(spec));
  return specs;
}

// Of the running program: builds of one commit differ while it is worked on.
std::string build_checksum() {
  static const std::string checksum =
      fmt::format("{:016x}", checksum64(read_text_file("/proc/self/exe", size_t{1} << 31)));
  return checksum;
}

// The key of cells that route by the tables of this file, whatever it is called.
json::object with_tables(json::object key, const std::string& file) {
  key["tables"] = fmt::format("{:016x}", checksum64(read_text_file(file, size_t{1} << 31)));
  return key;
}

// Everything that decides a cell's numbers, beside its policy and batch.
json::object key_of(const GridOptions& options, const Documents& documents, Model& model, const std::string& hash,
                    int copies, int tokens) {
  std::string text;
  for (const auto& document : documents) {
    for (const int token : document) text += fmt::format("{},", token);
  }
  return {{"model", hash},
          {"text", fmt::format("{:016x}", checksum64(text))},
          {"documents", documents.size()},
          {"document_tokens", tokens},
          {"seeds", fmt::format("{}", fmt::join(options.seeds, ","))},
          {"activations", options.model.activations},
          {"kv_cache_dtype", std::string(name(model.kv_format()))},
          {"cold_copies", copies},
          {"machine", machine_facts(model.ops().threads(), model.ops().isa())},
          {"hugepages", options.model.huge_pages},
          {"build", build_checksum()}};
}

}  // namespace

void GridOptions::add_to(CLI::App& c) {
  model.add_to(c);
  c.add_option("--policy", policies, "a policy of the grid; may be given several times (default: a built-in grid)")
      ->allow_extra_args(false)
      ->take_all();
  c.add_option("--grid", grid_file, "the grid from a file: {\"policies\": [\"oea:k0=5\"], \"batch\": [4, 16]}");
  c.add_option("--tables", tables_file,
               "file of carpool calibrate: the built-in grid then has the policies that route by its tables as well");
  c.add_option("--batch", batches, "documents decoded in step (default: 4,8,16,32,64)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->take_all()
      ->check(CLI::Range(1, 4096));
  c.add_option(
       "--text", text,
       "text files: documents separated by lines of ---, .jsonl with a \"text\" a line, or plain text, which is "
       "cut; may be given several times (default: eval.txt of the model)")
      ->allow_extra_args(false)
      ->take_all();
  c.add_option("--documents", documents,
               "documents; a multiple of each batch (default: the first such number from 64 on)")
      ->check(CLI::Range(1, 1 << 20));
  c.add_option("--document-tokens", document_tokens, "tokens of each")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 20));
  c.add_option("--seed", seeds,
               "which documents meet in a batch: 0 = in order, else the seed of a shuffle; as 0,1,2: the mean of all")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->take_all()
      ->capture_default_str();
  c.add_option("--cold-copies", cold_copies,
               "private copies of the experts used in turn, so that they come from memory and not from cache; 0 = none "
               "(default: four times the last-level cache for models smaller than that, else 0)")
      ->check(CLI::Range(0, 4096));
  c.add_option("--together", together, "policies that run side by side, each with a key-value cache of its own")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  c.add_option("--cells", cells_file,
               "keep each finished cell as a line of this file, and do not measure again what it holds for the same "
               "model, text, settings, machine and build");
}

GridSession::GridSession(GridOptions& options, const Invocation& invocation)
    : options_(options), command_(command_line(invocation.words)) {
  if (!options.grid_file.empty()) read_grid_file(options);
  if (options.batches.empty()) options.batches = kBatches;
  std::sort(options.batches.begin(), options.batches.end());
  options.batches.erase(std::unique(options.batches.begin(), options.batches.end()), options.batches.end());
  const int count = options.documents.value_or(default_documents(options.batches));
  check_document_count(count, options.batches);
  check_output(options.cells_file);
  config_ = read_model_config(options.model.model);
  if (config_.moe_layers() == 0)
    throw Error(ErrorKind::kConfig, "the model has no routed experts: there is nothing for policies to compare");
  check_fits(options.document_tokens, config_);
  policies_ = canonical(options.policies.empty() ? built_in(options, config_) : options.policies, config_);
  if (policies_.size() > kMostPolicies)
    throw Error(ErrorKind::kUsage, fmt::format("{} policies in the grid, at most {}", policies_.size(), kMostPolicies));
  if (!options.policies.empty() && !options.tables_file.empty()) {
    throw Error(ErrorKind::kUsage,
                "--tables is for the built-in grid; a policy of your own names its file itself, as sere:table=FILE");
  }
  files_ = text_files(options.text, options.model.model);
  hash_ = model_hash(options.model.model);
  loaded_.emplace(load_model(options.model));
  for (const std::string& spec : policies_) make_policy(spec, loaded_->model)->check(config_.n_experts, config_.top_k);
  if (!options.model.quiet) print_notes(loaded_->model.config());
  documents_ = read_documents(loaded_->tokenizer, files_, {count, options.document_tokens});
  copies_ = options.cold_copies.value_or(default_cold_copies(loaded_->model));
  cut(0);  // a file of cells that cannot be read is said before anything is measured
  loaded_->model.set_cold_copies(copies_);
}

GridSession::Cut& GridSession::cut(int tokens) {
  if (tokens == 0) tokens = options_.document_tokens;
  CARPOOL_CHECK(tokens > 1 && tokens <= options_.document_tokens);
  const auto found = cuts_.find(tokens);
  if (found != cuts_.end()) return found->second;
  Cut cut;
  cut.documents = documents_;
  for (auto& document : cut.documents) document.resize(static_cast<size_t>(tokens));
  cut.key = key_of(options_, cut.documents, loaded_->model, hash_, copies_, tokens);
  cut.cells = read_cells(options_.cells_file, cut.key);
  std::set<std::string> tables;
  for (const std::string& spec : policies_) tables.insert(make_policy(spec)->tables_file());
  tables.erase("");
  for (const std::string& file : tables) {
    for (CompareCell& cell : read_cells(options_.cells_file, with_tables(cut.key, file))) {
      if (make_policy(cell.policy)->tables_file() == file) cut.cells.push_back(std::move(cell));
    }
  }
  return cuts_.emplace(tokens, std::move(cut)).first->second;
}

std::vector<CompareCell> GridSession::measure(const std::vector<int>& batches, const std::vector<std::string>& policies,
                                              int tokens) {
  Cut& part = cut(tokens);
  CompareOptions compare;
  compare.policies = policies;
  compare.batches = batches;
  compare.seeds = options_.seeds;
  compare.together = options_.together;
  Progress progress(options_.model.quiet);
  compare.progress = [&](const std::string& stage, double share) { progress.show(stage, share); };
  std::vector<CompareCell> fresh;
  compare.finished = [&](const CompareCell& cell) {
    fresh.push_back(cell);
    if (options_.cells_file.empty()) return;
    const std::string tables = make_policy(cell.policy)->tables_file();
    const json::object key = tables.empty() ? part.key : with_tables(part.key, tables);
    append_line(options_.cells_file, json::serialize(cell_json(cell, key)));
  };
  std::vector<CompareCell> cells = measure_cells(loaded_->model, part.documents, compare, part.cells);
  measured_ += fresh.size();
  for (const CompareCell& cell : cells) asked_ += part.asked.emplace(cell.policy, cell.batch).second ? 1 : 0;
  part.cells.insert(part.cells.end(), fresh.begin(), fresh.end());
  return cells;
}

RunFacts GridSession::facts() {
  Model& model = loaded_->model;
  RunFacts facts;
  facts.command = command_;
  facts.commit = build_commit();
  facts.machine = machine_facts(model.ops().threads(), model.ops().isa());
  facts.model = fmt::format("{} ({}, {})", options_.model.model, config_.family, hash_);
  facts.settings = {
      {"text", fmt::format("{}", fmt::join(files_, " "))},
      {"documents", fmt::format("{} of {} tokens, decoded in step", documents_.size(), options_.document_tokens)},
      {"seeds", fmt::format("{}", fmt::join(options_.seeds, ","))},
      {"activations", options_.model.activations},
      {"cold_copies", std::to_string(copies_)},
      {"cells", fmt::format("{} measured, {} from an earlier run", measured_, asked_ - measured_)}};
  return facts;
}

}  // namespace carpool
