// A calibration under way, on disk: what is done of it, and what it is a calibration of.
//
// A safetensors file: "key" (text, uint8), "done" [documents, layers] int64, "sums" [MoE layers, values] and "probes"
// [layers done, k0s, 2] float64. Written whole or not at all, removed when the calibration is complete.
#pragma once

#include <string>
#include <vector>

#include "measure/calibrate.h"

namespace carpool {

struct CalibrationProgress {
  std::string key;                         // model, text and options that decide the numbers
  int documents = 0;                       // gathered
  std::vector<ExpertSums> sums;            // of each MoE layer
  std::vector<std::vector<Probe>> probes;  // of each layer done
};

void save_progress(const std::string& path, const CalibrationProgress& progress);

// Fills the rest of `progress`, whose key and sums (of the right sizes) are set, from the file. False when there is
// none. Error{kConfig} when it is of another calibration, kMalformed when it is damaged; both say how to go on.
bool load_progress(const std::string& path, size_t probes_per_layer, CalibrationProgress& progress);

}  // namespace carpool
