// Llama: dense decoders with grouped-query attention, no routed experts.
//
// Maps config.json and tensor names of LlamaForCausalLM checkpoints as published (Llama 2 to 3.3, SmolLM2 and others of
// this form). Semantics follow the reference implementation in transformers. The list of families is families.def.
#include <fmt/format.h>

#include "model/families/common.h"
#include "model/family.h"

namespace carpool::llama {
namespace {

ModelConfig read_config(const JsonObject& json) {
  ModelConfig c;
  const families::Defaults defaults{.context = 2048, .norm_eps = 1e-6};
  families::read_common(json, defaults, c);
  families::read_grouped_attention(json, defaults, c);
  c.rope.interleaved = json.boolean_or("rope_interleave", false);  // as the rows of GGUF files want it
  c.qkv_bias = c.o_bias = json.boolean_or("attention_bias", false);
  families::require_false(json, "mlp_bias");
  families::read_dense(json, c);
  return c;
}

}  // namespace

extern const Family kFamily;
const Family kFamily = {"llama", "LlamaForCausalLM", read_config, families::take_dense_decoder};

}  // namespace carpool::llama
