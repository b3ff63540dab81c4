// What `compare` and `tune` share: a grid of policies and batch sizes, measured on a model with a text, resumable.
//
// Owns their options, the key under which finished cells are kept, and the measuring. Does not own what is made of the
// cells.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/model_options.h"
#include "measure/compare.h"
#include "measure/quality.h"

namespace carpool {

struct GridOptions {
  ModelOptions model;
  std::vector<std::string> policies, text;
  std::string grid_file, cells_file, tables_file;
  std::vector<int> batches;
  std::vector<uint64_t> seeds = {0};
  std::optional<int> documents, cold_copies;
  int document_tokens = TextOptions().tokens, together = CompareOptions().together;

  // MODEL, --policy, --grid, --tables, --batch, --text, --documents, --document-tokens, --seed, --cold-copies,
  // --together, --cells.
  void add_to(CLI::App& command);
};

// A loaded model with its text, and the cells that were measured on them or read from --cells.
class GridSession {
 public:
  // Loads the model. Error as in load_model and read_documents; kConfig for a model without routed experts and policies
  // that do not fit it; before the load where that is possible.
  GridSession(GridOptions& options, const Invocation& invocation);

  // Canonical, each once, without topk: those that were given, or the built-in grid.
  const std::vector<std::string>& policies() const { return policies_; }
  const std::vector<int>& batches() const { return options_.batches; }  // ascending
  const ModelConfig& config() const { return config_; }
  const std::string& hash() const { return hash_; }  // of the model

  // Cells of `policies` (canonical) and topk at these batch sizes, on the first `tokens` tokens of every document (0:
  // all). What is known is not measured again. Error as in measure_cells.
  std::vector<CompareCell> measure(const std::vector<int>& batches, const std::vector<std::string>& policies,
                                   int tokens = 0);
  // Of all that was measured so far.
  RunFacts facts();

 private:
  struct Cut {  // the documents at one length
    Documents documents;
    json::object key;
    std::vector<CompareCell> cells;               // known ones, asked for or not
    std::set<std::pair<std::string, int>> asked;  // policy, batch
  };
  Cut& cut(int tokens);

  GridOptions& options_;
  std::string command_, hash_;
  ModelConfig config_;
  std::vector<std::string> policies_, files_;
  std::optional<LoadedModel> loaded_;
  Documents documents_;
  int copies_ = 0;
  std::map<int, Cut> cuts_;
  size_t measured_ = 0, asked_ = 0;
};

}  // namespace carpool
