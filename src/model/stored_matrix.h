// A matrix as a checkpoint stores it: its own tensor and, for some formats, tensors with its scales.
//
// Owns the conventions of names, by the tensor NAME.weight:
//   NVFP4 (ModelOpt)  NAME.weight U8 [rows, cols/2], NAME.weight_scale F8_E4M3 [rows, cols/16], NAME.weight_scale_2 one
//                     number; NAME.input_scale, of activations, is not needed: carpool multiplies weights only
//   FP8               NAME.weight F8_E4M3 [rows, cols], NAME.weight_scale_inv F32 [rows/128, cols/128] (rounded up), or
//                     NAME.weight_scale one number, or neither
//   GGUF              a tensor of blocks, with one number NAME.weight_scale_2 (there "NAME.scale") if it has one
// Everything else is a tensor by itself, and so is every vector.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "io/weight_source.h"
#include "tensor/format.h"

namespace carpool {

struct StoredMatrix {
  WeightView view;
  // The tensors that it is made of, its own first, then those that belong to it, in use or not. Scales have the dtype
  // that their bytes are.
  std::vector<TensorInfo> parts;
};

// The matrix, or vector (one row), whose data is `tensor`. Throws Error{kMalformed} naming the tensor: a dtype that no
// format has, scales that are missing or of another shape or dtype, or beside a vector, a row that is not whole blocks,
// no values, more than two dimensions. So view.cols of a vector is its tensor's length, and no view is empty.
StoredMatrix stored_matrix(const WeightSource& source, const TensorInfo& tensor);

// What "quantization_config" of a config.json may say; nothing is taken from it, because the tensors say it too. Throws
// Error{kConfig} for a method whose tensors are stored in other ways (the supported ones are listed).
void check_quantization_config(const JsonObject& config);

// True for a tensor that holds the scales of another one of `source`.
bool is_scale(const WeightSource& source, const TensorInfo& tensor);

}  // namespace carpool
