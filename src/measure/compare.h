// The grid of policies, settings and batch sizes: quality, distinct experts and step time of each cell, measured on the
// same text in the same minutes.
//
// Owns the default grid, the measuring of cells (policies of a batch size run side by side with topk, step by step, see
// lockstep.h), the file of finished cells, one JSON line each, that lets a later run go on, and the choice of Pareto
// fronts and of equal expert counts. The report for people is in compare_report.h; fits and choices in latency.h.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "measure/lockstep.h"
#include "measure/policy_score.h"
#include "routing/tables.h"

namespace carpool {

// The mean of some consecutive steps of one batch of documents: neighbouring steps are not independent, these nearly
// so.
struct StepBlock {
  double distinct = 0;  // experts per MoE layer
  double ms = 0;        // median step
  double plain_ms = 0;  // of topk, in the same block
};
inline constexpr int kBlockSteps = 16;

struct CompareCell {
  std::string policy;  // canonical
  int batch = 0;
  double distinct = 0, distinct_plain = 0;  // experts per MoE layer and step
  Estimate cross_entropy, cross_entropy_delta, kl_mean, top1_agreement;
  double kl_median = 0, kl_p99 = 0;
  Estimate step_ms;     // median over blocks of the median step
  Estimate time_ratio;  // step time over topk's in the same block: median over blocks
  std::vector<StepBlock> blocks;
  std::vector<double> document_kl, document_delta;  // [documents] of KL and of cross-entropy, mean nats per token

  double share() const { return distinct / distinct_plain; }  // of what plain routing loads
  std::string method() const { return policy.substr(0, policy.find(':')); }
};

// As many per policy as there are whole or begun blocks of kBlockSteps in a batch of documents.
std::vector<StepBlock> step_blocks(const LockstepRun& run, const LockstepRun& plain, int steps_per_batch);

CompareCell make_cell(const std::string& policy, int batch, const LockstepRun& run, const LockstepRun& plain,
                      int document_tokens);

// The built-in grid for a layer of E experts, K per token: every k0 of oea, prunings, and each method with a budget at
// 25, 50 and 75 % of what plain routing loads. `sigmoid`: what the router's scores are, which lynx_bins must know.
std::vector<std::string> default_grid(int n_experts, int top_k, bool sigmoid);

// What a file of routing tables adds to it: every k0 of sere, exfold at 25, 50 and 75 %, and oea with the k0 of each
// layer; each where `tables` has what it needs.
std::vector<std::string> table_grid(const std::string& file, const RoutingTables& tables, int top_k);

// A cell with the settings that decide its numbers, and back. Error{kMalformed} naming `where` for what is no cell.
json::object cell_json(const CompareCell& cell, const json::object& key);
CompareCell cell_of(const json::value& value, const std::string& where);

// The cells of `path` whose key equals `key` and that say what each document costs; none when the file is absent. Half
// a line, which an interrupted run leaves, is skipped. Error{kMalformed} for any other line that is no cell.
std::vector<CompareCell> read_cells(const std::string& path, const json::object& key);

struct CompareOptions {
  std::vector<std::string> policies;  // canonical; topk is always measured
  std::vector<int> batches;
  std::vector<uint64_t> seeds = {0};
  int together = 6;  // policies that run side by side: each has its own key-value cache
  std::function<void(const CompareCell&)> finished;
  std::function<void(const std::string& stage, double share)> progress;
};

// The cells of the grid, those in `known` not measured again; by batch, then in the order of the policies, topk first.
std::vector<CompareCell> measure_cells(Model& model, const Documents& documents, const CompareOptions& options,
                                       const std::vector<CompareCell>& known);

// Indices of the points that no other point beats in both, x ascending; of equal points the first.
std::vector<size_t> pareto_front(const std::vector<std::pair<double, double>>& points);

// Of each method, the cell of this batch whose share of plain routing's experts is nearest to `share`, if within
// `slack`; in the order of the cells.
std::vector<const CompareCell*> cells_near(const std::vector<CompareCell>& cells, int batch, double share,
                                           double slack);

// The KL that a method is expected to have at exactly `share`: along the straight line of log KL between its nearest
// cells below and above. None where it has no cell on one side, or one of the two costs nothing.
std::optional<double> kl_at_share(const std::vector<CompareCell>& cells, int batch, const std::string& method,
                                  double share);

}  // namespace carpool
