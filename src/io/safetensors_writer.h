// Writing one safetensors file: tensors are declared, begin() writes the header, and the data follows in that order.
//
// The header is padded with spaces so that the data begins at a multiple of 8 bytes, as the format recommends. Knows no
// model. Read next: io/safetensors.h, which says what the format is.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "io/output_file.h"

namespace carpool {

class SafetensorsWriter {
 public:
  // `dtype` is a name of io/dtype.h; `bytes` what the shape needs in it. Each name once.
  void add_tensor(std::string_view name, std::string_view dtype, std::span<const int64_t> shape, uint64_t bytes);
  // Bytes of the whole file as declared so far.
  uint64_t file_bytes() const { return header().size() + data_bytes_; }
  // Writes everything in front of the data.
  void begin(OutputFile& out) const;

 private:
  std::string header() const;

  json::object tensors_;
  uint64_t data_bytes_ = 0;
};

}  // namespace carpool
