// One safetensors file: its header read strictly, its tensors as views into the mapping.
//
// The format: 8 bytes little-endian header length, a JSON object {"name": {"dtype", "shape", "data_offsets"}},
// then the data; offsets count from the end of the header. Every byte of the data belongs to exactly one
// tensor, so no file can be two things at once and no tensor can read outside it. A file that breaks a rule is
// refused with one line (file, tensor, byte, value found, limit); nothing is ever repaired or filled in.
// Does not know models or shard sets: that is io/weight_source.h. Format: the README of the safetensors project.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/mapped_file.h"
#include "io/tensor_info.h"

namespace carpool {

// Limits of one file. The format itself sets the first; the others bound memory and are stricter than it.
struct SafetensorsLimits {
  size_t header_bytes = 100'000'000;
  size_t tensors = 1'048'576;
  size_t metadata_entries = 65'536;
  size_t rank = 16;           // entries of one shape
  size_t name_bytes = 4'096;  // of a tensor's name
};

class SafetensorsFile {
 public:
  // Maps and checks `path`; `shard` is copied into every TensorInfo. Throws kMissing (absent, not a regular
  // file) or kMalformed. Stricter than the reference reader, beside the limits: a name or key given
  // twice anywhere, an unknown field of a tensor, a tensor written as an array, `__metadata__: null`, white space
  // before the header, and any but spaces behind it are refused.
  static SafetensorsFile open(const std::string& path, int shard = 0, const SafetensorsLimits& limits = {});

  // In the order of their data, so that reading them one after another reads the file once, forwards.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  // The tensor named so, or nullptr.
  const TensorInfo* find(std::string_view name) const;

  const MappedFile& file() const { return file_; }
  // For an owner that keeps both itself; this object is empty afterwards.
  std::vector<TensorInfo> release_tensors() { return std::move(tensors_); }
  MappedFile release_file() { return std::move(file_); }
  const std::string& path() const { return file_.path(); }
  size_t data_bytes() const { return data_bytes_; }  // file size less length field and header

 private:
  explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}

  MappedFile file_;
  std::vector<TensorInfo> tensors_;
  std::vector<uint32_t> by_name_;  // indices of tensors_, sorted by name
  size_t data_bytes_ = 0;
};

}  // namespace carpool
