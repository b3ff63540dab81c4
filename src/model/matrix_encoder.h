// Storing a matrix in another format, with the scales that a file keeps beside it.
//
// Owns what encode_row (tensor/format.h) does not: scales of a whole matrix (NVFP4), of blocks of 128 x 128 (FP8), the
// two layouts of NVFP4, and the check that values fit. A matrix that is in the wanted format already keeps its bits.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/threads.h"
#include "tensor/format.h"

namespace carpool {

// How a format lies in the file: in blocks of GGUF, or as the tensors of stored_matrix.h.
enum class Layout { kGguf, kCheckpoint };

struct EncodedMatrix {
  std::vector<std::byte> data;    // kCheckpoint NVFP4: [rows, cols/2]; else rows of `format`
  std::vector<std::byte> scales;  // kCheckpoint: NVFP4 E4M3 [rows, cols/16], FP8 float32 of the blocks; else empty
  float scale = 1.0f;             // NVFP4: multiplies every value; else 1
};

// `what` names the matrix in errors. cols must be whole blocks of `format` (of 16 for NVFP4 in kCheckpoint). Throws
// Error{kMalformed} for values that are not finite, kConfig for values that the format cannot hold (f16 above 65504).
EncodedMatrix encode_matrix(const WeightView& view, Format format, Layout layout, ThreadPool& pool,
                            const std::string& what);

}  // namespace carpool
