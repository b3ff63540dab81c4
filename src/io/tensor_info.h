// One named tensor of a weight file: where its bytes lie and what the file says they are.
//
// What every reader of weight files (safetensors, GGUF) produces and what the model loader consumes. Points
// into a MappedFile and owns no bytes. Also: the check that a tensor holds only finite numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace carpool {

struct TensorInfo {
  std::string name;
  std::string dtype;                // a name of io/dtype.h, "BF16", or of a format made of blocks (tensor/format.h)
  std::vector<int64_t> shape;       // every entry >= 0; the product times the width of dtype is `bytes`
  const std::byte* data = nullptr;  // not aligned to the element in every file: read it with memcpy or unaligned loads
  size_t bytes = 0;
  size_t file_offset = 0;  // of data[0] in its file
  int shard = 0;           // which file of the WeightSource
};

struct NonFinite {
  uint64_t count = 0;
  int64_t first_index = -1;  // row-major element index of the first one, -1 when there is none
};

// Counts NaN and infinities of a float tensor (F64, F32, F16, BF16, F8 types). Types without such patterns
// (integers, F4, F6) and C64, which no model uses, give zero. Of formats made of blocks the scales are examined, and
// every element that a bad scale multiplies counts. Reads every byte once; no allocation.
NonFinite scan_non_finite(const TensorInfo& tensor);

}  // namespace carpool
