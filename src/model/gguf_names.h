// What the tensors and architectures of GGUF files are called in Hugging Face checkpoints, and back.
//
// Owns the table of names. A GGUF file keeps all experts of a layer in one tensor [E, rows, cols]; checkpoints have one
// per expert, and so does WeightSource, so families know only checkpoint names. Several model types may share an
// architecture. To add one: a row of kArchitectures, and of its own names a table like kCommon. Read next:
// gguf_config.h.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "io/weight_source.h"

namespace carpool {

// Names on both sides. In a layer, "blk.N." and "model.layers.N." precede them; "{e}" is an expert's number.
struct GgufNameRow {
  enum class Kind {
    kStem,   // without their last part, ".weight" or what stands for it
    kWhole,  // with it
    kHeads,  // as kStem; in GGUF [heads, rows, cols], in the checkpoint one matrix, heads one after another
  };
  std::string_view gguf, checkpoint;
  bool in_layer;
  Kind kind = Kind::kStem;
};

struct GgufArchitecture {
  std::string_view name;        // general.architecture, "qwen3moe"
  std::string_view model_type;  // of config.json, "qwen3_moe"
  // Its own names, which come before those that all have.
  std::array<std::span<const GgufNameRow>, 2> rows = {};
  // Rows of queries and keys are stored so that the pairs that are rotated together are neighbours, where the
  // checkpoint has them half a head apart.
  bool paired_rows = false;
  bool yarn_truncates = true;  // Rope::truncate, for which there is no key
  // Which of several model types of one architecture a file is of, when it does not say (kGgufModelType); the first
  // that is true.
  bool (*is)(const GgufMetadata& metadata) = nullptr;
};
// The key by which files of carpool name the model type.
inline constexpr std::string_view kGgufModelType = "carpool.model_type";

// Error{kConfig} listing the supported ones when the file is of none of them, kMalformed when it does not say.
const GgufArchitecture& gguf_architecture(const GgufMetadata& metadata);
// That of a .gguf file.
const GgufArchitecture* gguf_architecture_of_file(const std::string& path);
// The one that stores models of `model_type`; nullptr for none.
const GgufArchitecture* gguf_architecture_of(std::string_view model_type);

// Where a tensor's data appears in a checkpoint. A name that is in no table stays, so that whoever misses it sees it.
GgufPlace checkpoint_place(const GgufArchitecture& architecture, std::string_view name);

// The tensor of a GGUF file that a checkpoint's tensor belongs to, and its place in the outermost dimension.
struct GgufName {
  std::string name;
  int64_t expert = -1;  // -1: the whole tensor
};
// nullopt when the table has no such name.
std::optional<GgufName> gguf_name(const GgufArchitecture& architecture, std::string_view checkpoint_name);

// The weights of a Hugging Face directory or a .gguf file. Errors as of WeightSource and GgufSet.
WeightSource open_weights(const std::string& model);

}  // namespace carpool
