// See quantization_config.h.
#include "model/quantization_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"

namespace carpool {
namespace {

constexpr const char* kKey = "quantization_config";
constexpr std::string_view kSupported =
    "fp8 in blocks of 128 x 128; mxfp4; modelopt NVFP4, W4A16_NVFP4, FP8, FP8_PER_CHANNEL_PER_TOKEN and "
    "MIXED_PRECISION "
    "of these; compressed-tensors nvfp4-pack-quantized, mxfp4-pack-quantized, pack-quantized of 4 or 8 bits, "
    "float-quantized and mixed-precision of these";
constexpr int64_t kNvfp4Group = 16, kFp8Block = 128, kPackedGroup = 32;

[[noreturn]] void refuse(const JsonObject& q, const std::string& what) {
  throw Error(ErrorKind::kConfig, fmt::format("{}: {} is not supported; supported: {}", q.where(), what, kSupported));
}

bool is_nvfp4(std::string_view algorithm) { return algorithm == "NVFP4" || algorithm == "W4A16_NVFP4"; }

void check_modelopt_layer(const JsonObject& q, const std::string& algorithm) {
  if (!is_nvfp4(algorithm) && algorithm != "FP8" && algorithm != "FP8_PER_CHANNEL_PER_TOKEN") {
    refuse(q, fmt::format("the algorithm \"{}\" of modelopt", escape(algorithm)));
  }
  if (!is_nvfp4(algorithm) || !q.has("group_size")) return;
  const int64_t group = q.integer("group_size", 0, INT32_MAX);
  if (group != kNvfp4Group) refuse(q, fmt::format("{} in groups of {} values, not {},", algorithm, group, kNvfp4Group));
}

// The algorithm that the weights of "config_groups" amount to; "" without any.
std::string algorithm_of_groups(const JsonObject& q) {
  std::string all;
  if (!q.has("config_groups")) return all;
  const JsonObject groups = q.object("config_groups");
  for (const auto& [name, value] : groups.raw()) {
    const JsonObject weights = groups.object(name).object("weights");
    const int64_t bits = weights.integer("num_bits", 1, 64);
    const bool floats = weights.string_or("type", "int") == "float";
    const std::string one = floats && bits == 4 ? "NVFP4" : floats && bits == 8 ? "FP8" : "";
    if (one.empty()) refuse(groups, fmt::format("\"{}\" of {} bits", escape(name), bits));
    if (one == "NVFP4") check_modelopt_layer(weights, one);
    if (!all.empty() && all != one) all = "MIXED_PRECISION";
    if (all.empty()) all = one;
  }
  return all;
}

void check_modelopt(const JsonObject& q) {
  const std::string found = algorithm_of_groups(q), algorithm = q.string_or("quant_algo", found);
  if (algorithm.empty()) refuse(q, "modelopt without \"quant_algo\"");
  if (algorithm != "MIXED_PRECISION") return check_modelopt_layer(q, algorithm);
  if (!q.has("quantized_layers")) return;
  const JsonObject layers = q.object("quantized_layers");
  for (const auto& [name, value] : layers.raw()) {
    const JsonObject layer = layers.object(name);
    check_modelopt_layer(layer, layer.string("quant_algo"));
  }
}

void check_group(const JsonObject& group, const std::string& format) {
  if (!group.has("weights")) return;
  const JsonObject weights = group.object("weights");
  const int64_t bits = weights.integer("num_bits", 1, 64);
  const bool floats = weights.string_or("type", "int") == "float";
  const auto size = [&] { return weights.integer_or("group_size", -1, -1, INT32_MAX); };
  if (format == "pack-quantized") {
    if (floats || (bits != 4 && bits != 8)) refuse(group, fmt::format("{} of {} bits", format, bits));
    if (size() > 0 && size() % kPackedGroup != 0) refuse(group, fmt::format("{} in groups of {}", format, size()));
  } else if (format == "nvfp4-pack-quantized" || format == "mxfp4-pack-quantized") {
    const int64_t wanted = format[0] == 'n' ? kNvfp4Group : kPackedGroup;
    if (weights.has("group_size") && size() != wanted) refuse(group, fmt::format("{} in groups of {}", format, size()));
  } else if (format == "float-quantized") {
    if (!floats || bits != 8) refuse(group, fmt::format("{} of {} bits", format, bits));
    const json::array block = {kFp8Block, kFp8Block};
    if (weights.has("block_structure") && weights.array("block_structure") != block) {
      refuse(group, fmt::format("{} in blocks of {}", format, json::serialize(weights.value("block_structure"))));
    }
  } else if (format != "dense") {
    refuse(group, fmt::format("the format \"{}\" of compressed-tensors", escape(format)));
  }
}

void check_compressed_tensors(const JsonObject& q) {
  const std::string format = q.string_or("format", "dense");
  for (const char* other : {"sparsity_config", "transform_config"}) {
    if (!q.has(other)) continue;
    const JsonObject more = q.object(other);
    if (!more.raw().empty() && more.string_or("format", "") != "dense") refuse(q, fmt::format("\"{}\"", other));
  }
  if (!q.has("config_groups")) return;
  const JsonObject groups = q.object("config_groups");
  for (const auto& [name, value] : groups.raw()) {
    const JsonObject group = groups.object(name);
    const std::string own = group.string_or("format", format);
    if (own == "mixed-precision") refuse(group, "a group without \"format\" of its own");
    check_group(group, own);
  }
}

void check(const JsonObject& q, const std::string& method) {
  if (method.starts_with("modelopt")) return check_modelopt(q);
  if (method == "compressed-tensors") return check_compressed_tensors(q);
  if (method == "mxfp4") return;
  const json::array blocks = {kFp8Block, kFp8Block};
  if (method == "fp8" && (!q.has("weight_block_size") || q.array("weight_block_size") == blocks)) return;
  refuse(q, method == "fp8" ? fmt::format("fp8 in blocks of {}", json::serialize(q.value("weight_block_size")))
                            : fmt::format("the quantisation method \"{}\"", escape(method)));
}

// What the two files may say differently, in comparable form. Lists of modules that are left out have another name in
// each.
std::set<std::string> left_out(const JsonObject& q) {
  std::set<std::string> out;
  for (const char* key : {"exclude_modules", "ignore"}) {
    if (!q.has(key)) continue;
    for (const json::value& v : q.array(key)) out.insert(json::serialize(v));
  }
  return out;
}

// "NVFP4 in groups of 16", "FP8", "compressed-tensors".
std::string described(const JsonObject& q) {
  const std::string method = q.string_or("quant_method", "nothing");
  std::string algorithm = q.string_or("quant_algo", "");
  if (algorithm.empty() && method.starts_with("modelopt")) algorithm = algorithm_of_groups(q);
  if (algorithm.empty()) return method;
  if (!is_nvfp4(algorithm)) return algorithm;
  return fmt::format("{} in groups of {}", algorithm, q.integer_or("group_size", kNvfp4Group, 0, INT32_MAX));
}

// hf_quant_config.json of the directory, if there is one.
std::optional<StatedQuantization> stated_beside(const std::string& directory) {
  const std::string path = (std::filesystem::path(directory) / "hf_quant_config.json").string();
  if (!file_exists(path)) return std::nullopt;
  const json::value root = parse_json(read_text_file(path, size_t{16} << 20), path);
  const JsonObject q = JsonObject(root, path).object("quantization");
  return StatedQuantization{q.raw(), q.where()};
}

}  // namespace

void check_quantization_config(const JsonObject& config) {
  if (!config.has(kKey)) return;
  const JsonObject q = config.object(kKey);
  check(q, q.string_or("quant_method", ""));
}

std::optional<StatedQuantization> stated_quantization(const JsonObject& config, const std::string& directory) {
  if (!config.has(kKey)) return stated_beside(directory);
  const JsonObject own = config.object(kKey);
  return StatedQuantization{own.raw(), own.where()};
}

std::vector<std::string> check_quantization(const JsonObject& config, const std::string& directory) {
  check_quantization_config(config);
  const std::optional<StatedQuantization> beside = stated_beside(directory);
  if (!beside) return {};
  const JsonObject q(beside->keys, beside->where);
  if (!config.has(kKey)) {
    if (q.has("quant_algo")) check(q, "modelopt");  // null: nothing is quantised but the cache, perhaps
    return {};
  }
  const JsonObject own = config.object(kKey);
  std::string differ;
  if (described(own) != described(q)) {
    differ = fmt::format("config.json {}, hf_quant_config.json {}", described(own), described(q));
  } else if (left_out(own) != left_out(q)) {
    differ = "the modules that they leave out differ";
  }
  if (differ.empty()) return {};
  return {
      fmt::format("config.json and hf_quant_config.json say different things about quantisation ({}): config.json "
                  "counts, and the tensors themselves",
                  escape(differ, 400))};
}

}  // namespace carpool
