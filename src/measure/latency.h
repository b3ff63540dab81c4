// From measured cells to a choice: does step time follow the number of distinct experts here, and which setting is the
// fastest that a quality budget allows?
//
// Owns the linear model of step time (arXiv 2511.02237 has it as a*B*K + b*T per layer: at one batch size a constant
// and a slope), its refusal when the slope may be zero, the quality budget, what was chosen per batch size, and the
// profile that keeps it for --policy auto. Does not measure (compare.h) and does not choose (tune.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "measure/compare.h"

namespace carpool {

constexpr int kFewestBlocks = 3;

// step ms = intercept + slope * distinct experts per layer, at one batch size.
struct LatencyFit {
  int batch = 0, cells = 0, blocks = 0;  // settings, and blocks of steps of each
  Estimate slope_ms, intercept_ms;
  double r2 = 0;  // of the cells' means
  // The slope's interval lies above zero: loading fewer experts saves time here.
  bool usable() const { return enough() && slope_ms.lo > 0; }
  bool enough() const { return cells >= 3 && blocks >= kFewestBlocks; }  // for a line, and to see how it varies
};

// Least squares over the cells of one batch size, topk among them: OEA's where there are at least three settings of it,
// since they run as many experts per row as topk, else all. The interval of the slope is the wider of two: bootstrap
// over blocks of steps (noise of time), and that of least squares (cells off the line).
LatencyFit fit_latency(const std::vector<CompareCell>& cells, int batch);

// "kl=0.01" or "ce=0.005": the most that the upper end of a setting's interval may be, nats per token.
struct QualityBudget {
  bool cross_entropy = false;
  double limit = 0;

  // Error{kUsage} when the text is neither.
  static QualityBudget parse(const std::string& text);
  std::string text() const;
};

// A k0 for each layer beside the best setting that has one for all.
struct LayerTrial {
  std::string policy;   // the fastest within the budget; "" when none is
  std::string against;  // the fastest other setting within the budget, or topk
  Estimate time_ratio;  // of the two step times
  Estimate cost;        // on the documents for tuning, in the budget's quantity
  bool kept = false;
};

// What a number of decode rows is to be routed by.
struct ChosenBand {
  int from = 0, to = 0;  // rows, both included
  std::string policy;    // canonical; topk where nothing else pays
  std::string reason;    // one sentence
  CompareCell cell;      // the measured one
  LatencyFit fit;
  Estimate tuning, held_out;  // what it costs on either part of the documents, in the budget's quantity; topk: 0
  std::optional<LayerTrial> by_layer;
};

struct Profile {
  std::string path;        // where it was read from
  std::string model;       // as it was called
  std::string model_hash;  // model_identity.h
  std::string spec;        // the policy: bands.h, or topk
};

// The text of a policy that routes by the bands, and plainly outside of them.
std::string bands_spec(const std::vector<ChosenBand>& bands);

json::value profile_json(const RunFacts& facts, const std::string& model, const std::string& hash,
                         const QualityBudget& budget, const std::vector<ChosenBand>& bands);
// Error{kMissing}, kMalformed for what is no profile, kConfig for policies that are none.
Profile read_profile(const std::string& path);
// Error{kConfig}, naming both models, when the profile was made for another than the one at `model`.
void check_profile(const Profile& profile, const std::string& model);

}  // namespace carpool
