// See assumed_formats.h.
#include "measure/assumed_formats.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/error.h"

namespace carpool {
namespace {

// Lists of what is not quantised, by the names that different tools give them.
constexpr const char* kExceptions[] = {"ignore", "exclude_modules", "modules_to_not_convert"};

std::optional<Format> format_of_method(const JsonObject& q) {
  const std::string method = q.string_or("quant_method", "modelopt"), algorithm = q.string_or("quant_algo", "");
  if (method == "modelopt" && algorithm.find("NVFP4") != std::string::npos) return Format::kNVFP4;
  if (method == "fp8" || algorithm == "FP8") return Format::kFP8;
  if (method == "mxfp4") return Format::kMXFP4;
  return std::nullopt;
}

// A pattern names a module if it matches its whole name, a name above it, or some of its parts: "lm_head",
// "model.layers.0*", "*mlp.gate", "mlp.shared_experts".
bool names(std::string pattern, const std::string& module) {
  if (pattern.starts_with("re:")) {  // of the regular expressions in use: ".*" for anything and "\." for a point
    pattern.erase(0, 3);
    for (size_t at = 0; (at = pattern.find(".*", at)) != pattern.npos; ++at) pattern.replace(at, 2, "*");
    std::erase(pattern, '\\');
  }
  const std::string parts = "." + module + ".";
  return fnmatch(pattern.c_str(), module.c_str(), 0) == 0 || parts.find("." + pattern + ".") != parts.npos ||
         module.starts_with(pattern + ".");
}

class Exceptions {
 public:
  explicit Exceptions(const JsonObject& q) {
    for (const char* key : kExceptions) {
      if (!q.has(key)) continue;
      for (const json::value& v : q.array(key)) {
        if (!v.is_string()) q.fail(key, "must be a list of names");
        patterns_.emplace_back(v.as_string());
      }
    }
  }
  bool cover(const std::string& module) const {
    return std::any_of(patterns_.begin(), patterns_.end(), [&](const auto& p) { return names(p, module); });
  }

 private:
  std::vector<std::string> patterns_;
};

int last_layer(const ModelConfig& c, bool moe) {
  for (int l = c.layers - 1; l > 0; --l) {
    if (c.moe_layer[static_cast<size_t>(l)] == moe) return l;
  }
  return 0;
}

}  // namespace

std::string AssumedFormats::text() const {
  const auto named = [](Format f) { return std::string(info(f).name); };
  if (experts == shared && experts == dense && experts == attention && experts == head) return named(experts);
  if (shared == dense && shared == attention && shared == head) {
    return fmt::format("{} routed experts, {} the rest", named(experts), named(shared));
  }
  return fmt::format("{} routed experts, {} shared experts, {} dense blocks, {} attention, {} embedding and head",
                     named(experts), named(shared), named(dense), named(attention), named(head));
}

AssumedFormats formats_of_config(const JsonObject& config_json, const ModelConfig& config, Format rest) {
  constexpr const char* kKey = "quantization_config";
  AssumedFormats out = AssumedFormats::all(rest);
  if (!config_json.has(kKey)) return out;
  const JsonObject q = config_json.object(kKey);
  const std::optional<Format> format = format_of_method(q);
  if (!format) return out;
  const Exceptions exceptions(q);
  const std::string moe = fmt::format("model.layers.{}.", last_layer(config, true)),
                    dense = fmt::format("model.layers.{}.", last_layer(config, false));
  const auto choose = [&](const std::string& module) { return exceptions.cover(module) ? rest : *format; };
  out.experts = choose(moe + "mlp.experts.0.gate_proj");
  out.shared = choose(moe + "mlp.shared_experts.gate_proj");
  out.dense = choose(dense + "mlp.gate_proj");
  out.attention = choose(moe + "self_attn.o_proj");
  return out;  // the head and the embedding keep 16 bits in checkpoints of all these methods
}

}  // namespace carpool
