// Qwen3: dense decoders with norms of each query and key head, no routed experts.
//
// Maps config.json and tensor names of Qwen3ForCausalLM checkpoints as published. Semantics follow the reference
// implementation in transformers. The list of families is families.def.
#include <fmt/format.h>

#include "model/families/common.h"
#include "model/family.h"

namespace carpool::qwen3 {
namespace {

ModelConfig read_config(const JsonObject& json) {
  ModelConfig c;
  const families::Defaults defaults;
  families::read_common(json, defaults, c);
  families::read_grouped_attention(json, defaults, c);
  c.qk_norm = ModelConfig::QkNorm::kHead;
  c.qkv_bias = c.o_bias = json.boolean_or("attention_bias", false);
  families::require_false(json, "use_sliding_window");
  families::read_dense(json, c);
  return c;
}

}  // namespace

extern const Family kFamily;
const Family kFamily = {"qwen3", "Qwen3ForCausalLM", read_config, families::take_dense_decoder};

}  // namespace carpool::qwen3
