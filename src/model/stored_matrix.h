// A matrix as a checkpoint stores it: its own tensor and, for some formats, tensors with its scales.
//
// Owns the conventions of names. What counts is what is on disk, matrix by matrix: lists of a config that say which
// modules are quantised are never asked. By the matrix NAME.weight:
//   NVFP4   ModelOpt: NAME.weight U8 [rows, cols/2], NAME.weight_scale F8_E4M3 [rows, cols/16], NAME.weight_scale_2
//           compressed-tensors: NAME.weight_packed, NAME.weight_scale alike, NAME.weight_global_scale, which divides
//   MXFP4   NAME.weight_packed U8 [rows, cols/2], NAME.weight_scale U8 [rows, cols/32]
//   INT4/8  NAME.weight_packed I32 [rows, cols*bits/32], NAME.weight_shape, NAME.weight_scale [rows, groups], and
//           NAME.weight_zero_point I32 [rows*bits/32, groups] where codes are not symmetric; NAME.weight_g_idx only if
//           it says what is so without it
//   FP8     NAME.weight F8_E4M3 [rows, cols], NAME.weight_scale_inv [rows/128, cols/128] (rounded up), or
//           NAME.weight_scale, which is that or one number or one for each row, or neither
//   GGUF    a tensor of blocks, with one number NAME.weight_scale_2 (there "NAME.scale") if it has one
// Scales that say nothing else are F32, BF16 or F16. Scales of activations (input_scale, input_global_scale) may be
// there and are not used: carpool multiplies with weights only. Everything else is a tensor by itself, and so is every
// vector.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/weight_source.h"
#include "tensor/format.h"

namespace carpool {

struct StoredMatrix {
  WeightView view;
  // The tensors that the view reads, its own first. Scales have the dtype that their bytes are.
  std::vector<TensorInfo> parts;
  std::vector<std::string> unused;  // names of tensors that belong to it besides
};

// The tensor that holds the matrix or vector called `name`, which is "NAME.weight" also where the file has
// "NAME.weight_packed"; nullptr when there is neither.
const TensorInfo* stored_tensor(const WeightSource& source, const std::string& name);
// The other way round: what the matrix in `tensor` is called.
std::string matrix_name(const TensorInfo& tensor);

// The matrix, or vector (one row), whose data is `tensor`. Throws Error{kMalformed} naming the tensor: a dtype that no
// format has, scales that are missing or of another shape or dtype, or beside a vector, a row that is not whole blocks,
// no values, more than two dimensions. So view.cols of a vector is its tensor's length, and no view is empty.
StoredMatrix stored_matrix(const WeightSource& source, const TensorInfo& tensor);

// True for a tensor that holds scales, or the like, of another one of `source`.
bool is_scale(const WeightSource& source, const TensorInfo& tensor);

// True for the name of a tensor with a scale of the KV cache, which carpool scales by itself.
bool is_cache_scale(std::string_view name);

}  // namespace carpool
