// How one architecture's files map to ModelConfig and to tensors.
//
// Owns the Family record and the list of families (families.def). To add one: families/<name>.cc, one line in
// families.def, a tiny golden model. Does not own arithmetic: a new feature goes into config.h and forward.cc.
#pragma once

#include <string_view>

#include "base/json.h"
#include "model/config.h"
#include "model/weights.h"

namespace carpool {

struct Family {
  const char* model_type;    // of config.json
  const char* architecture;  // "Qwen3MoeForCausalLM"
  ModelConfig (*read_config)(const JsonObject& config);
  // Takes every tensor of the model from `reader`, by name and shape.
  void (*take_weights)(const ModelConfig& config, TensorReader& reader, Weights& weights);
};

// Error{kConfig} listing the supported families when `model_type` is none of them.
const Family& find_family(std::string_view model_type);

}  // namespace carpool
