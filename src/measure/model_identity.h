// A name for a model that follows its content and not its place: what profiles, traces and result files refer to.
//
// Owns the hash of a model's files: of each (config, tokenizer, weights, in the order of their names) the size and
// 64 KiB pieces spread over it, all of it where it is small. Tells models apart that differ in shape, format, version
// or training; no defence against somebody who forges one.
#pragma once

#include <string>

namespace carpool {

// Sixteen hexadecimal digits. `model` as for Model::load: a directory, a .gguf file, or dummy:..., whose text is
// hashed. Error{kMissing} when nothing is there, kIo when it cannot be read.
std::string model_hash(const std::string& model);

}  // namespace carpool
