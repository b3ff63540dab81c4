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

std::optional<Format> format_of_algorithm(std::string_view algorithm) {
  if (algorithm.find("NVFP4") != algorithm.npos) return Format::kNVFP4;
  if (algorithm.starts_with("FP8")) return Format::kFP8;
  return std::nullopt;
}

// Of an entry of "config_groups", whose own "format" counts before that of all.
std::optional<Format> format_of_group(const JsonObject& group, const std::string& format_of_all) {
  if (!group.has("weights")) return std::nullopt;
  const JsonObject weights = group.object("weights");
  const int64_t bits = weights.integer("num_bits", 1, 64);
  if (weights.string_or("type", "int") != "float") {
    return bits == 4 ? std::optional(Format::kINT4) : bits == 8 ? std::optional(Format::kINT8) : std::nullopt;
  }
  if (bits == 8) return Format::kFP8;
  if (bits != 4) return std::nullopt;
  return group.string_or("format", format_of_all).starts_with("mxfp4") ? Format::kMXFP4 : Format::kNVFP4;
}

// A pattern names a module if it matches its whole name, a name above it, or some of its parts: "lm_head",
// "model.layers.0*", "*mlp.gate", "mlp.shared_experts".
bool names(std::string pattern, const std::string& module) {
  if (pattern.starts_with("re:")) {  // of the regular expressions in use: ".*", "\." and "(a|b)"
    pattern.erase(0, 3);
    for (size_t at = 0; (at = pattern.find(".*", at)) != pattern.npos; ++at) pattern.replace(at, 2, "*");
    for (size_t at = 0; (at = pattern.find('(', at)) != pattern.npos; at += 2) pattern.insert(at, "@");
    std::erase(pattern, '\\');
  }
  const std::string parts = "." + module + ".";
  return fnmatch(pattern.c_str(), module.c_str(), FNM_EXTMATCH) == 0 || parts.find("." + pattern + ".") != parts.npos ||
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

// Whether a group is for a module: by its name, or as one of a class ("Linear").
bool targets(const JsonObject& group, const std::string& module) {
  if (!group.has("targets")) return true;
  const json::array& all = group.array("targets");
  return std::any_of(all.begin(), all.end(), [&](const json::value& v) {
    if (!v.is_string()) group.fail("targets", "must be a list of names");
    const std::string pattern(v.as_string());
    return (!pattern.empty() && pattern[0] >= 'A' && pattern[0] <= 'Z') || names(pattern, module);
  });
}

// The format of a module's matrix; nothing for one that is left alone, or of a method that is not known.
std::optional<Format> format_of_module(const JsonObject& q, const Exceptions& exceptions, const std::string& module) {
  if (exceptions.cover(module)) return std::nullopt;
  if (q.has("quantized_layers")) {
    const JsonObject layers = q.object("quantized_layers");
    for (const auto& [name, value] : layers.raw()) {
      if (names(std::string(name), module)) return format_of_algorithm(layers.object(name).string("quant_algo"));
    }
    return std::nullopt;
  }
  const std::string method = q.string_or("quant_method", ""), algorithm = q.string_or("quant_algo", "");
  if (method == "fp8") return Format::kFP8;
  if (method == "mxfp4") return Format::kMXFP4;
  if (const auto format = format_of_algorithm(algorithm)) return format;
  if (!q.has("config_groups")) return std::nullopt;
  const JsonObject groups = q.object("config_groups");
  for (const auto& [name, value] : groups.raw()) {
    const JsonObject group = groups.object(name);
    if (targets(group, module)) return format_of_group(group, q.string_or("format", ""));
  }
  return std::nullopt;
}

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

AssumedFormats stated_formats(const std::optional<StatedQuantization>& stated, const ModelConfig& config, Format rest) {
  AssumedFormats out = AssumedFormats::all(rest);
  if (!stated) return out;
  const JsonObject q(stated->keys, stated->where);
  const Exceptions exceptions(q);
  const std::string moe = fmt::format("model.layers.{}.", last_layer(config, true)),
                    dense = fmt::format("model.layers.{}.", last_layer(config, false));
  const auto choose = [&](const std::string& module) { return format_of_module(q, exceptions, module).value_or(rest); };
  out.experts = choose(moe + "mlp.experts.0.gate_proj");
  out.shared = choose(moe + "mlp.shared_experts.gate_proj");
  out.dense = choose(dense + "mlp.gate_proj");
  out.attention = choose(moe + "self_attn.o_proj");
  return out;  // the head and the embedding keep 16 bits in checkpoints of all these methods
}

}  // namespace carpool
