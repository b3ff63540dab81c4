// The matrices that a tensor of a model file is for `carpool quantize`: mostly itself, sometimes several.
//
// Owns the differences between files of one model: all experts of a layer in one tensor or a tensor for each, gate and
// up together or apart, keys and values of latent attention together or apart, and the order of the rows of queries and
// keys. Private to the files of quantize.h.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "io/weight_source.h"
#include "model/config.h"
#include "model/gguf_names.h"

namespace carpool {

// A matrix, or a vector (one row), under the name that a checkpoint with a tensor for each matrix has for it.
struct TensorPart {
  const TensorInfo* tensor;  // what it is read from
  std::string name;
  std::vector<int64_t> shape;                       // of values
  WeightView view;                                  // where the file stores its rows,
  std::function<std::vector<float>()> values = {};  // else set, and gives them
  int64_t heads = 0;                                // of a matrix that GGUF stores as [heads, rows / heads, cols]
};

// From where to where: null is a directory of safetensors.
struct PartsFor {
  const GgufArchitecture* from = nullptr;
  const GgufArchitecture* to = nullptr;
  const ModelConfig& config;
};

// Empty for what the output leaves out: scales, which belong to another tensor, and layers of multi-token prediction.
// Throws Error{kConfig} for what the output cannot hold, and as stored_matrix and stored_expert do.
std::vector<TensorPart> tensor_parts(const WeightSource& source, const TensorInfo& tensor, const PartsFor& what);

}  // namespace carpool
