// Which format each kind of matrix has, when only the configuration of a model is there.
//
// Owns the reading of "quantization_config" (config.json) and hf_quant_config.json for that purpose: the method, and
// the lists of what it leaves out. Weights that are there say it themselves, tensor by tensor; nothing here is asked
// then.
#pragma once

#include <string>

#include "base/json.h"
#include "model/config.h"
#include "tensor/format.h"

namespace carpool {

struct AssumedFormats {
  Format experts, shared, dense, attention,
      head;  // routed and shared experts, dense blocks; `head` is the embedding's too

  static AssumedFormats all(Format f) { return {f, f, f, f, f}; }
  std::string text() const;  // "nvfp4 experts, bf16 the rest"
};

// What the "quantization_config" of a published model says of its matrices, `rest` being the format of those that it
// leaves alone, and of all without one. Kinds of matrices are found in the lists of exceptions by the names they have
// in the last layer. Routers, norms and biases are float32 whatever is said.
AssumedFormats formats_of_config(const JsonObject& config_json, const ModelConfig& config, Format rest);

}  // namespace carpool
