// Model configuration in GGUF metadata: read as the config.json of a checkpoint, and written from a ModelConfig.
//
// The metadata becomes a JSON object with the keys of config.json, so that Family::read_config is the one place that
// understands an architecture. What GGUF does not say is taken from the tensors (rows of the embedding, an output
// matrix of its own, layers without experts) or is the architecture's convention (qwen3moe renormalises its top-k
// weights). Two keys of that object are not of config.json: "rope_divisors", and "rope_interleave" for architectures
// whose checkpoints do not have it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "io/gguf.h"
#include "io/gguf_writer.h"
#include "model/config.h"
#include "model/gguf_names.h"

namespace carpool {

// The keys of config.json. Throws Error{kMalformed} naming the key for absent or impossible values, kConfig for an
// architecture or feature that is not supported.
json::object gguf_config(const GgufSet& files);
// The keys of generation_config.json, as far as the file has them.
json::object gguf_generation_config(const GgufMetadata& metadata);

// The tensor of a GGUF file that divides single frequencies of the rotation, and what it is for a model of Llama 3's
// scaling; empty for others.
inline constexpr std::string_view kGgufRopeDivisors = "rope_freqs.weight";
std::vector<float> gguf_rope_divisors(const ModelConfig& config);

// What of the model no file of this architecture can say; "" when all can be said.
std::string not_in_gguf(const ModelConfig& config, const GgufArchitecture& architecture);

// The metadata of `config`, whose family gguf_names.h knows. `first_end`: which of the end tokens the tokenizer calls
// its own; it comes first.
void add_gguf_config(const ModelConfig& config, std::optional<int> first_end, GgufWriter& out);

}  // namespace carpool
