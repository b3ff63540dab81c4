// The settings that a profile keeps: for each batch size the fastest that a quality budget allows, chosen on one half
// of the documents and verified on the other.
//
// Owns the search: candidates are screened on the beginning of every document, those that may win are measured on all
// of it, together with assignments of a k0 to each layer (layer_k0.h), and what was chosen must keep its budget on
// documents that no choice looked at. Does not run a model: cells come from a function. What is measured is in
// compare.h, the fit and the profile in latency.h.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "measure/latency.h"

namespace carpool {

// Even documents, counted from 0, are for choosing; odd ones are held out.
enum class TextPart { kTuning, kHeldOut };

// What a setting costs on one part of the documents, in the quantity of the budget: nats per token, with its interval
// over documents.
Estimate cost_on(const CompareCell& cell, const QualityBudget& budget, TextPart part);

// Step time of `first` over that of `other`, block by block of the same steps, each as a share of topk's beside it:
// median with its interval. Both are cells of one batch size and text.
Estimate time_against(const CompareCell& first, const CompareCell& other);

// Cells of `specs` (canonical) at one batch size, topk first, on the first `tokens` tokens of every document; 0: all.
using MeasureCells =
    std::function<std::vector<CompareCell>(int batch, const std::vector<std::string>& specs, int tokens)>;

struct TuneOptions {
  std::vector<std::string> candidates;  // canonical, without topk
  std::vector<int> batches;             // ascending
  QualityBudget budget;
  int screen_tokens = 0;        // of each document, for the first look at all candidates; 0: none, all are measured
  bool by_layer = true;         // try a k0 for each layer, where the candidates have settings oea:k0=N
  int top_k = 0;                // K
  std::vector<bool> moe_layer;  // [layers of the model]
};

// Of screened cells, those to measure in full: the fastest that may be within the budget, and the fastest that are
// well within it, should none of those be.
std::vector<std::string> finalists(const std::vector<CompareCell>& screened, const QualityBudget& budget);

// One band per batch size, ascending: from it to just below the next; the last one to just below twice its size, the
// most that still resembles what was measured. A setting is chosen where step time surely follows the number of
// experts, the upper end of its cost on the tuning part is within the budget, its cost on the held-out part as well,
// and its time is surely below topk's; of several the fastest, but a k0 for each layer only when it is surely faster
// than the best other one. Errors are those of `measure`.
std::vector<ChosenBand> tune(const TuneOptions& options, const MeasureCells& measure);

}  // namespace carpool
