// Writing GGUF files, version 3.
//
// Owns the header: metadata and tensor infos are collected, then begin() writes them, and the data follows tensor by
// tensor in the order of their declaration. Knows no model; what is stored is model/quantize.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/gguf.h"
#include "io/output_file.h"

namespace carpool {

class GgufWriter {
 public:
  // Each key once; keys and strings within GgufLimits.
  void add_u32(std::string_view key, uint32_t value);
  void add_u64(std::string_view key, uint64_t value);
  void add_f32(std::string_view key, float value);
  void add_bool(std::string_view key, bool value);
  void add_string(std::string_view key, std::string_view value);
  void add_strings(std::string_view key, const std::vector<std::string>& values);
  void add_i32s(std::string_view key, std::span<const int32_t> values);
  void add_f32s(std::string_view key, std::span<const float> values);
  void add(const GgufMetadata::Entry& entry);  // as it stands in another file
  bool has(std::string_view key) const;

  // `shape` outermost first; its last entry a multiple of the format's block.
  void add_tensor(std::string_view name, Format format, std::span<const int64_t> shape);
  size_t tensor_bytes(size_t index) const { return tensors_[index].bytes; }

  // Bytes of the whole file as declared so far.
  uint64_t file_bytes() const;
  // Writes everything in front of the data.
  void begin(OutputFile& out) const;
  // Writes the padding behind a tensor's data.
  void pad(OutputFile& out) const;

 private:
  struct Declared {
    std::string info;  // as in the file, offset excluded
    size_t bytes;
  };

  void start(std::string_view key, GgufType type);
  void put_string(std::string_view text);
  std::string header() const;

  std::string keys_;
  std::vector<std::string> names_;  // of the keys
  std::vector<Declared> tensors_;
};

}  // namespace carpool
