// `carpool calibrate`: the tables that some routing policies need, from a model and a text.
//
// Owns the two passes and their progress on disk. First every document is computed as a prompt, plainly, and all
// experts of all MoE layers are run on its tokens (expert_sums.h). Then, for each layer and each probed k0, the quality
// of the model is measured with only that layer re-routed by oea:k0 (quality.h): the layer's sensitivity, from which a
// k0 for each layer is chosen. Both go on where they stopped from a file beside the output. Knows no command line.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "measure/expert_sums.h"
#include "measure/quality.h"
#include "model/routing_tables.h"

namespace carpool {

struct CalibrateOptions {
  int documents = 0;          // of the text, for the first pass
  int probe_documents = 0;    // the first ones, for the second; 0 leaves that pass and the table k0 out
  int batch = 8;              // rows that are re-routed together; divides probe_documents
  std::vector<int> k0;        // probed, ascending, 1 to K - 1
  double mean_k0 = 0;         // of all layers, at most; 1 to K
  int resident = 0;           // experts of each layer that count as resident, 0 to E
  std::string progress_file;  // "": nothing is kept
  bool restart = false;       // forget what is kept there
  double save_every_s = 30;   // 0: after every document and layer
  std::string inputs;         // names the text and how the model computes: what was kept of others is not gone on with
  std::function<void(const std::string& stage, double share)> progress = {};
};

// What re-routing one layer alone costs.
struct Probe {
  double kl = 0;                   // KL(plain || re-routed), nats per token
  double cross_entropy_delta = 0;  // nats per token
};

struct LayerCalibration {
  int layer = 0;                                         // the model's number
  double mean_similarity = 0, mean_best_similarity = 0;  // over pairs; over experts, to the most similar other
  double mean_best_loss = 0;                             // over experts, folded into the best other
  int unused = 0;                                        // experts that no token of the text went to
  std::vector<Probe> probes;                             // as CalibrateOptions::k0
  int k0 = 0;                                            // chosen; 0 without probes
};

struct Calibration {
  RoutingTables tables;
  std::vector<LayerCalibration> layers;
  int64_t tokens = 0;                             // of the first pass
  int resumed_documents = 0, resumed_layers = 0;  // found in the progress file
};

// Error{kUsage} for options that do not fit the model or the documents, kConfig when the progress file is of another
// calibration, kNoMemory, kMalformed for outputs that are not finite.
void check_calibrate(const ModelConfig& config, const CalibrateOptions& options);
Calibration calibrate(Model& model, const Documents& documents, const CalibrateOptions& options);

// A k0 for each layer out of `k0` and K, at which a layer loses nothing: from the smallest everywhere, the step that
// takes away most loss for each expert it adds, until no step fits a mean of `mean_k0`. `loss` [layers][k0.size()].
std::vector<int> choose_k0(const std::vector<std::vector<double>>& loss, const std::vector<int>& k0, int top_k,
                           double mean_k0);

}  // namespace carpool
