// What `carpool quantize` stores as what: decided for every tensor before anything is written.
//
// Private to the files of quantize.h.
#pragma once

#include <string>
#include <vector>

#include "io/weight_source.h"
#include "model/matrix_encoder.h"
#include "model/quantize.h"
#include "model/quantize_parts.h"

namespace carpool {

struct PlannedTensor {
  TensorPart part;
  Format format;
  std::string why;

  int64_t rows() const { return part.shape.size() == 2 ? part.shape[0] : 1; }
  int64_t cols() const { return part.shape.back(); }
};

// The parts (quantize_parts.h) of each tensor of `source`, in its order.
std::vector<PlannedTensor> plan_quantize(const QuantizeOptions& options, const WeightSource& source,
                                         const PartsFor& what);

// Bytes of the parts that encode_matrix gives for a tensor, GGUF's number of a scale included.
uint64_t planned_bytes(const PlannedTensor& planned);

}  // namespace carpool
