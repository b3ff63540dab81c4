// Which format each kind of matrix has, when only the configuration of a model is there.
//
// Owns the reading of what model/quantization_config.h finds stated for that purpose: methods, algorithms, groups, and
// the lists of what is left out. Weights that are there say it themselves, tensor by tensor; nothing here is asked
// then.
#pragma once

#include <optional>
#include <string>

#include "model/config.h"
#include "model/quantization_config.h"
#include "tensor/format.h"

namespace carpool {

struct AssumedFormats {
  Format experts, shared, dense, attention,
      head;  // routed and shared experts, dense blocks; `head` is the embedding's too

  static AssumedFormats all(Format f) { return {f, f, f, f, f}; }
  std::string text() const;  // "nvfp4 experts, bf16 the rest"
};

// What a published model states of its matrices, `rest` being the format of those that it leaves alone, and of all
// where it states nothing. Kinds of matrices are found in lists of modules by the names they have in the last layer.
// Routers, norms and biases are float32 whatever is said.
AssumedFormats stated_formats(const std::optional<StatedQuantization>& stated, const ModelConfig& config, Format rest);

}  // namespace carpool
