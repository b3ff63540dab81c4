// What the tensors and architectures of GGUF files are called in Hugging Face checkpoints, and back.
//
// Owns the table of names. A GGUF file keeps all experts of a layer in one tensor [E, rows, cols]; checkpoints have one
// per expert, and so does WeightSource, so families know only checkpoint names. Rows are in checkpoint order for every
// architecture listed here: none of them permutes query and key rows for rotary embedding, as files of llama do.
// To add an architecture: a row of kArchitectures, and of its own names a table like kCommon. Read next: gguf_config.h.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "io/weight_source.h"

namespace carpool {

struct GgufArchitecture {
  std::string_view name;        // general.architecture, "qwen3moe"
  std::string_view model_type;  // of config.json, "qwen3_moe"
};

// Error{kConfig} listing the supported ones when the file is of none of them, kMalformed when it does not say.
const GgufArchitecture& gguf_architecture(const GgufMetadata& metadata);
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
