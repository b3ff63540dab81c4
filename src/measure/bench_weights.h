// Random weights in panels, for benches that need no model.
//
// Owns RandomPanels: matrices of one size and format in one allocation, filled by the threads that compute. Values have
// mean 0 and standard deviation near 1/sqrt(cols); see FormatCode::random_panel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/ops.h"
#include "base/large_buffer.h"
#include "tensor/panels.h"

namespace carpool {

class RandomPanels {
 public:
  // `count` matrices [rows, cols]. cols is a multiple of the format's block. Error{kNoMemory} naming `what` when they
  // do not fit.
  RandomPanels(Ops& ops, const PanelView& shape, int count, uint64_t seed, const std::string& what);

  std::span<const PanelView> views() const { return views_; }

 private:
  LargeBuffer memory_;
  std::vector<PanelView> views_;
};

}  // namespace carpool
