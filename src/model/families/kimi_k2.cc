// Kimi-K2: the DeepSeek-V3 architecture under a model type of its own.
#include "model/families/latent.h"
#include "model/family.h"

namespace carpool {

namespace deepseek_v3 {
extern const Family kFamily;
}

namespace kimi_k2 {
namespace {

ModelConfig read_config(const JsonObject& json) { return deepseek_v3::kFamily.read_config(json); }

}  // namespace

extern const Family kFamily;
const Family kFamily = {"kimi_k2", "DeepseekV3ForCausalLM", read_config, families::take_decoder};

}  // namespace kimi_k2
}  // namespace carpool
