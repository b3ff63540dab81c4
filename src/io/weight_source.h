// All weights of one model directory: one safetensors file, or an index and its shards.
//
// Owns the mapped files and one list of tensors over them. open() succeeds only if every shard is there, whole,
// and the index and the shards agree in both directions, so that "loaded" never means "some of it". Does not
// know which tensors a model needs: TensorReader of model/weights.h does, and reports what is missing or left over.
// Read next: io/safetensors.h (one file), io/tensor_info.h (what it gives).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"
#include "io/tensor_info.h"

namespace carpool {

class WeightSource {
 public:
  // Opens `model_dir`/model.safetensors, or the shards of `model_dir`/model.safetensors.index.json. Throws
  // kMissing when neither is there or shards are absent (all of them are listed), kMalformed when a file is
  // broken or short (every bad shard is listed), when index and shards differ (the first ten differences and
  // their number), or when both a single file and an index of other files are present.
  static WeightSource open(const std::string& model_dir);

  // The tensor named so, or nullptr. Valid while this object, or the one it was moved into, lives.
  const TensorInfo* find(std::string_view name) const;
  // By shard, then by place in the shard: reading in this order reads each file once, forwards.
  std::span<const TensorInfo> tensors() const { return tensors_; }
  uint64_t total_bytes() const { return total_bytes_; }  // of all tensors

  const std::string& where() const { return where_; }  // escaped path, for messages

  // MappedFile::verify_unchanged on every file (kIo): call when the weights were read, before "ready".
  void verify_unchanged() const;

 private:
  explicit WeightSource(std::string where) : where_(std::move(where)) {}
  void add(SafetensorsFile file);
  void index_names();

  std::string where_;  // escaped path, begins every message
  std::vector<MappedFile> shards_;
  std::vector<TensorInfo> tensors_;
  std::vector<uint32_t> by_name_;  // indices of tensors_, sorted by name, then shard
  uint64_t total_bytes_ = 0;
};

}  // namespace carpool
