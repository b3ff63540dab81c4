// What `compare` and `tune` share: a grid of policies and batch sizes, measured on a model with a text, resumable.
//
// Owns their options, the key under which finished cells are kept, and the run. Does not own what is made of the cells.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
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
  std::string grid_file, cells_file;
  std::vector<int> batches;
  std::vector<uint64_t> seeds = {0};
  std::optional<int> documents, cold_copies;
  int document_tokens = TextOptions().tokens, together = CompareOptions().together;

  // MODEL, --policy, --grid, --batch, --text, --documents, --document-tokens, --seed, --cold-copies, --together,
  // --cells.
  void add_to(CLI::App& command);
};

struct Grid {
  ModelConfig config;
  std::string hash;  // of the model
  RunFacts facts;
  std::vector<CompareCell> cells;
  size_t reused = 0;  // of them, from --cells
};

// Canonical specs of the grid, each once, without topk: those given, or `fallback` of the layer's E and K.
using GridFallback = std::function<std::vector<std::string>(int n_experts, int top_k)>;

// Loads the model and measures what --cells does not hold. Error as in measure_cells, load_model and read_documents;
// kConfig for a model without routed experts and policies that do not fit it; before the load where that is possible.
Grid measure_grid(GridOptions& options, const Invocation& invocation, const GridFallback& fallback);

}  // namespace carpool
