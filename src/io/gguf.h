// GGUF files: their metadata and tensors, read strictly, as views into the mapping.
//
// The format (little-endian, versions 2 and 3): magic, version, two counts, key-value pairs, tensor infos, padding,
// data. Tensors must fill the data in the order of their infos without hole or overlap, so none can read outside it. A
// file that breaks a rule is refused with one line (file, field, byte, value found, limit); every count is bounded by
// the bytes that are left before anything is allocated for it. GgufSet opens the parts of a split model together.
// Does not know models: what a tensor is called elsewhere is model/gguf_names.h, keys of architectures gguf_config.h.
// Format: docs/gguf.md of the ggml project.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/mapped_file.h"
#include "tensor/format.h"

namespace carpool {

// The types of metadata values, by their numbers in the file.
enum class GgufType : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

// "uint32"; for messages.
std::string_view name(GgufType type);

struct GgufLimits {
  size_t tensors = 65'536;
  size_t keys = 65'536;
  size_t key_bytes = 65'535;
  size_t tensor_name_bytes = 63;
  size_t string_bytes = size_t{16} << 20;
  size_t array_elements = size_t{16} << 20;
  size_t rank = 4;
  uint32_t min_alignment = 8, max_alignment = 65'536;
  size_t parts = 10'000;  // of a split model
};

// The key-value pairs of one file, with typed access. Strings are views into the mapping.
class GgufMetadata {
 public:
  struct Entry {
    std::string_view key;
    GgufType type;                     // of the value
    GgufType element;                  // of an array's elements
    uint64_t count;                    // of an array's elements
    std::span<const std::byte> bytes;  // the value as stored; of an array, its elements; of a string, its text
    size_t file_offset;                // of the key
  };

  bool has(std::string_view key) const { return find(key) != nullptr; }
  // All of these throw Error{kMalformed} naming file, key and byte: the key is absent, has another type (wanted and
  // found are named), or a value outside of its bounds. Integers may be stored in any integer type, never as bool or
  // float; numbers as float32 or float64.
  int64_t integer(std::string_view key, int64_t low, int64_t high) const;
  int64_t integer_or(std::string_view key, int64_t fallback, int64_t low, int64_t high) const;
  double number(std::string_view key) const;  // finite
  bool boolean(std::string_view key) const;
  bool boolean_or(std::string_view key, bool fallback) const;
  std::string_view string(std::string_view key) const;
  std::vector<std::string_view> strings(std::string_view key) const;
  std::vector<int64_t> integers(std::string_view key) const;

  const Entry* find(std::string_view key) const;
  std::span<const Entry> entries() const { return entries_; }  // sorted by key
  const std::string& where() const { return where_; }          // escaped path, begins every message
  [[noreturn]] void fail(std::string_view key, const std::string& what) const;

 private:
  friend class GgufReader;
  const Entry& get(std::string_view key) const;
  std::vector<Entry> entries_;
  std::string where_;
};

struct GgufTensor {
  std::string_view name;
  Format format = Format::kF32;
  std::vector<int64_t> shape;  // outermost first, so a matrix is [rows, cols]; every entry >= 1; 1 to 4 entries
  std::span<const std::byte> bytes;
  size_t file_offset = 0;  // of bytes[0]
  int part = 0;            // which file of the set
};

class GgufFile {
 public:
  // Maps and checks `path`. Throws kMissing (absent, not a regular file) or kMalformed.
  static GgufFile open(const std::string& path, int part = 0, const GgufLimits& limits = {});

  const GgufMetadata& metadata() const { return metadata_; }
  std::span<const GgufTensor> tensors() const { return tensors_; }  // in the order of their data
  const std::string& path() const { return file_.path(); }
  uint32_t version() const { return version_; }
  uint32_t alignment() const { return alignment_; }
  // For an owner that keeps the mapping itself; views stay valid as long as that lives.
  MappedFile release_file() { return std::move(file_); }

 private:
  friend class GgufReader;
  explicit GgufFile(MappedFile file) : file_(std::move(file)) {}

  MappedFile file_;
  GgufMetadata metadata_;
  std::vector<GgufTensor> tensors_;
  uint32_t version_ = 0, alignment_ = 0;
};

// A model of one file, or of parts named NAME-00001-of-00003.gguf.
class GgufSet {
 public:
  // `path` is the file, or any part of a split model: all parts beside it are opened. Throws kMissing when parts are
  // absent (all are listed), kMalformed when a part is broken or does not belong to the others (number, count,
  // architecture, number of tensors), or when two parts hold one tensor.
  static GgufSet open(const std::string& path);

  const GgufMetadata& metadata() const { return files_[0].metadata(); }  // of the first part
  std::span<GgufFile> files() { return files_; }
  std::span<const GgufFile> files() const { return files_; }
  const std::string& where() const { return metadata().where(); }

 private:
  std::vector<GgufFile> files_;
};

// True for a name that ends in .gguf, however spelled.
bool is_gguf_path(std::string_view path);

}  // namespace carpool
