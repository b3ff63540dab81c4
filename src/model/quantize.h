// Writing a model in another number format: what `carpool quantize` does.
//
// Owns which tensor is stored as what, and the two kinds of output: one .gguf file, or a Hugging Face directory of
// safetensors. The router, norms and biases become float32, which is exact. Nothing appears under the output's name
// before it is complete. Read next: matrix_encoder.h (numbers), gguf_names.h (names).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tensor/format.h"

namespace carpool {

struct QuantizeOptions {
  std::string input;   // Hugging Face directory or .gguf file
  std::string output;  // ends in .gguf, or is a directory to be made
  Format format = Format::kQ8_0;
  // Shell patterns of checkpoint names ("*.down_proj.weight", with * ? and []) and the format of the matrices they
  // match; the last one that matches counts.
  std::vector<std::pair<std::string, Format>> exceptions;
  bool replace = false;  // an output that is there already
  int threads = 0;       // 0 = default_threads()
  std::function<void(double share)> progress;
};

// Tensors that were stored in one format for one reason.
struct StoredAs {
  std::string format;
  std::string why;  // "as asked", "rows of 192 are not whole blocks of 256 (q4_k)"
  int64_t tensors = 0;
  uint64_t bytes = 0;
};

struct QuantizeReport {
  std::vector<StoredAs> stored;  // by bytes, most first
  std::vector<std::string> notes;
  uint64_t input_bytes = 0, output_bytes = 0;  // of all tensors; of the file that holds the weights
};

// Errors: as of opening the input; kUsage for an output that cannot hold the format, or a pattern that matches no
// matrix; kConfig for an architecture that GGUF output does not know; kCannotCreate when the output is there, or the
// disk is too small (both numbers are named); kIo.
QuantizeReport quantize(const QuantizeOptions& options);

}  // namespace carpool
