// All weights of one model: a safetensors file, an index and its shards, or GGUF files.
//
// Owns the mapped files and one list of tensors over them. Opening succeeds only if every shard is there, whole,
// and the index and the shards agree in both directions, so that "loaded" never means "some of it". Does not
// know which tensors a model needs: TensorReader of model/weights.h does, and reports what is missing or left over.
// Tensors have the names and shapes of Hugging Face checkpoints whatever the files; what a GGUF tensor is called there
// is told by the caller (model/gguf_names.h).
// Read next: io/safetensors.h and io/gguf.h (one file), io/tensor_info.h (what they give).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/gguf.h"
#include "io/safetensors.h"
#include "io/tensor_info.h"

namespace carpool {

// What a tensor of a GGUF file is called in a Hugging Face checkpoint: `before` and `after` put together, or, if
// `sliced`, one tensor for each index of the outermost dimension, with that index between them (an expert's number).
struct GgufPlace {
  std::string before, after;
  bool sliced = false;
  bool scalar = false;  // one number; its shape becomes []
  bool heads = false;   // [heads, rows, cols], in the checkpoint one matrix [heads * rows, cols]
};
using GgufNaming = std::function<GgufPlace(const GgufTensor&)>;

class WeightSource {
 public:
  // Opens `model_dir`/model.safetensors, or the shards of `model_dir`/model.safetensors.index.json. Throws
  // kMissing when neither is there or shards are absent (all of them are listed), kMalformed when a file is
  // broken or short (every bad shard is listed), when index and shards differ (the first ten differences and
  // their number), or when both a single file and an index of other files are present.
  static WeightSource open(const std::string& model_dir);

  // The tensors of a GGUF model. TensorInfo::dtype is "F32", "F16" or "BF16", else the format's name (tensor/format.h).
  // Throws kMalformed when slicing gives more than 2^20 tensors, a scalar has several elements, or two tensors get one
  // name.
  static WeightSource of_gguf(GgufSet files, const GgufNaming& naming);

  // The tensor named so, or nullptr. Valid while this object, or the one it was moved into, lives.
  const TensorInfo* find(std::string_view name) const;
  // By shard, then by place in the shard: reading in this order reads each file once, forwards.
  std::span<const TensorInfo> tensors() const { return tensors_; }
  uint64_t total_bytes() const { return total_bytes_; }  // of all tensors

  const std::string& where() const { return where_; }  // escaped path, for messages
  // What the tensors are: a line for each of the first 16 files (path, size, modification time), a checksum of those of
  // the others, and one of every tensor's name, type, shape and place: the same text means the same bytes, as far as
  // can be told without reading them.
  std::string identity() const;

  // MappedFile::verify_unchanged on every file (kIo): call when the weights were read, before "ready".
  void verify_unchanged() const;
  // The first file that was written to, else the first that was replaced. Looks at each, so not for every step.
  FileChange change() const;

 private:
  explicit WeightSource(std::string where) : where_(std::move(where)) {}
  void add(SafetensorsFile file);
  void add(const GgufTensor& tensor, const GgufPlace& place);
  void index_names();

  std::string where_;  // escaped path, begins every message
  std::vector<MappedFile> shards_;
  std::vector<TensorInfo> tensors_;
  std::vector<uint32_t> by_name_;  // indices of tensors_, sorted by name, then shard
  uint64_t total_bytes_ = 0;
};

}  // namespace carpool
