// What `carpool quantize` stores as what: decided for every tensor before anything is written.
//
// Private to the files of quantize.h.
#pragma once

#include <string>
#include <vector>

#include "io/weight_source.h"
#include "model/matrix_encoder.h"
#include "model/quantize.h"
#include "model/stored_matrix.h"

namespace carpool {

struct PlannedTensor {
  const TensorInfo* tensor;
  std::string name;  // of the matrix, whatever its tensor is called
  StoredMatrix stored;
  Format format;
  std::string why;
};

// One entry for each tensor of `source` that is not a scale of another, in the order of the source.
std::vector<PlannedTensor> plan_quantize(const QuantizeOptions& options, const WeightSource& source, Layout layout);

// Bytes of the parts that encode_matrix gives for a tensor, GGUF's number of a scale included.
uint64_t planned_bytes(const PlannedTensor& planned);

}  // namespace carpool
