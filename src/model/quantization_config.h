// What a checkpoint says about how it is quantised: "quantization_config" of config.json, and ModelOpt's
// hf_quant_config.json beside it.
//
// Owns which methods and algorithms are known, so that one that stores its tensors in another way is refused by name
// before any tensor is looked at. Nothing is taken from it: stored_matrix.h decides by the tensors themselves, so lists
// of modules that are left out or renamed cannot mislead.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace carpool {

// Throws Error{kConfig} for a method, algorithm, format or group size whose tensors are stored in other ways (the
// supported ones are listed). Without the key all is well.
void check_quantization_config(const JsonObject& config);

// What the two files state, and which of them: "quantization_config" of config.json or, without one, "quantization" of
// hf_quant_config.json in `directory`, whose method is "modelopt". An object.
struct StatedQuantization {
  json::value keys;
  std::string where;
};
// Nothing where neither file states anything. Throws Error{kMalformed} for a file that cannot be read as JSON.
std::optional<StatedQuantization> stated_quantization(const JsonObject& config, const std::string& directory);

// The same of the config.json `config` of `directory` and, if there is one, of hf_quant_config.json: alone it counts,
// and where both are there and differ config.json counts and a sentence says so. Returns such sentences.
std::vector<std::string> check_quantization(const JsonObject& config, const std::string& directory);

}  // namespace carpool
