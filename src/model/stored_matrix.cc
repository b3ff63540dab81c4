// See stored_matrix.h.
#include "model/stored_matrix.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstring>

#include "base/error.h"

namespace carpool {
namespace {

constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kScales[] = {".weight_scale", ".weight_scale_2", ".weight_scale_inv", ".input_scale"};
constexpr int64_t kFp8Block = 128, kNvfp4Block = 16;

class Finder {
 public:
  Finder(const WeightSource& source, const TensorInfo& tensor) : source_(source), tensor_(tensor) {
    const std::string_view name = tensor.name;
    if (name.ends_with(kWeight)) stem_ = name.substr(0, name.size() - kWeight.size());
  }

  StoredMatrix find() {
    if (tensor_.shape.empty() || tensor_.shape.size() > 2) refuse(tensor_, "is neither a matrix nor a vector");
    for (const int64_t n : tensor_.shape) {
      if (n == 0) refuse(tensor_, fmt::format("has no values, its shape is [{}]", fmt::join(tensor_.shape, ", ")));
    }
    // All that scales say is about rows and columns of a matrix; a vector's shape is what its tensor says.
    for (const std::string_view ending : kScales) {
      if (tensor_.shape.size() == 1 && with(ending)) {
        refuse(tensor_,
               fmt::format("is a vector and cannot have scales, but there is \"{}{}\"", escape(stem_), ending));
      }
    }
    result_.view.rows = tensor_.shape.size() == 2 ? tensor_.shape[0] : 1;
    result_.view.cols = tensor_.shape.back();
    result_.view.data = tensor_.data;
    add(tensor_);
    const TensorInfo* apart = with(".weight_scale");
    if (tensor_.dtype == "U8" && apart) {
      modelopt_nvfp4(*apart);
    } else if (tensor_.dtype == "F8_E4M3") {
      fp8(apart);
    } else {
      plain();
    }
    if (const TensorInfo* activations = with(".input_scale")) add(*activations);
    return std::move(result_);
  }

 private:
  [[noreturn]] void refuse(const TensorInfo& t, const std::string& what) const {
    throw Error(ErrorKind::kMalformed,
                fmt::format("{}: tensor \"{}\" at byte {}: {}", source_.where(), escape(t.name), t.file_offset, what));
  }
  void add(const TensorInfo& part) { result_.parts.push_back(part); }
  const TensorInfo* with(std::string_view ending) const {
    return stem_.empty() ? nullptr : source_.find(fmt::format("{}{}", stem_, ending));
  }
  void expect(const TensorInfo& t, std::string_view dtype, const std::vector<int64_t>& shape) const {
    if (t.dtype == dtype && t.shape == shape) return;
    refuse(t, fmt::format("must be {} [{}] for a matrix of {} x {}, is {} [{}]", dtype, fmt::join(shape, ", "),
                          result_.view.rows, result_.view.cols, escape(t.dtype), fmt::join(t.shape, ", ")));
  }
  // One float32: shape [] or [1].
  float number(const TensorInfo& t) const {
    const bool one = t.shape.empty() || (t.shape.size() == 1 && t.shape[0] == 1);
    if (t.dtype != "F32" || !one) {
      refuse(t, fmt::format("must be one F32, is {} [{}]", escape(t.dtype), fmt::join(t.shape, ", ")));
    }
    float value;
    std::memcpy(&value, t.data, sizeof value);
    if (!std::isfinite(value)) refuse(t, fmt::format("must be finite, is {}", value));
    return value;
  }
  void second_scale(bool required) {
    const TensorInfo* second = with(".weight_scale_2");
    if (!second && required) refuse(tensor_, fmt::format("\"{}.weight_scale_2\" is missing", escape(stem_)));
    if (!second) return;
    result_.view.scale = number(*second);
    add(*second);
  }

  void modelopt_nvfp4(const TensorInfo& scales) {
    WeightView& v = result_.view;
    v.format = Format::kNVFP4;
    if (v.cols > (int64_t{1} << 40) || v.cols % 8 != 0) {  // of bytes; 8 hold a block
      refuse(tensor_, fmt::format("rows of {} bytes are not whole blocks of {} (nvfp4)", v.cols, kNvfp4Block));
    }
    v.cols *= 2;
    expect(scales, "F8_E4M3", {v.rows, v.cols / kNvfp4Block});
    v.scales = scales.data;
    add(scales);
    second_scale(true);
  }

  void fp8(const TensorInfo* per_tensor) {
    WeightView& v = result_.view;
    v.format = Format::kFP8;
    if (const TensorInfo* blocks = with(".weight_scale_inv")) {
      expect(*blocks, "F32", {(v.rows + kFp8Block - 1) / kFp8Block, (v.cols + kFp8Block - 1) / kFp8Block});
      v.scales = blocks->data;
      add(*blocks);
    } else if (per_tensor) {
      v.scale = number(*per_tensor);
      add(*per_tensor);
    }
  }

  void plain() {
    const Format* format = format_of_safetensors(tensor_.dtype);
    if (!format) format = format_of_name(tensor_.dtype);
    if (!format) refuse(tensor_, fmt::format("has dtype {}, supported: {}", escape(tensor_.dtype), format_names()));
    result_.view.format = *format;
    if (result_.view.cols % info(*format).block_elements != 0) {
      refuse(tensor_, fmt::format("rows of {} are not whole blocks of {} ({})", result_.view.cols,
                                  info(*format).block_elements, info(*format).name));
    }
    second_scale(false);
  }

  const WeightSource& source_;
  const TensorInfo& tensor_;
  std::string stem_;  // of NAME.weight, NAME; empty for other names
  StoredMatrix result_;
};

}  // namespace

StoredMatrix stored_matrix(const WeightSource& source, const TensorInfo& tensor) {
  return Finder(source, tensor).find();
}

void check_quantization_config(const JsonObject& config) {
  constexpr const char* kKey = "quantization_config";
  if (!config.has(kKey)) return;
  const JsonObject q = config.object(kKey);
  const std::string method = q.string_or("quant_method", ""), algorithm = q.string_or("quant_algo", "");
  bool known = method == "modelopt" && (algorithm == "NVFP4" || algorithm == "FP8");
  if (method == "fp8") {
    const json::array blocks = {kFp8Block, kFp8Block};
    known = !q.has("weight_block_size") || q.array("weight_block_size") == blocks;
  }
  if (known) return;
  throw Error(
      ErrorKind::kConfig,
      fmt::format("{}: \"{}\": checkpoints of the method \"{}\"{} are not supported; supported: fp8 in blocks of "
                  "128 x 128, modelopt NVFP4 and FP8",
                  config.where(), kKey, escape(method),
                  algorithm.empty() ? "" : fmt::format(" ({})", escape(algorithm))));
}

bool is_scale(const WeightSource& source, const TensorInfo& tensor) {
  for (const std::string_view ending : kScales) {
    const std::string_view name = tensor.name;
    if (!name.ends_with(ending)) continue;
    return source.find(fmt::format("{}{}", name.substr(0, name.size() - ending.size()), kWeight)) != nullptr;
  }
  return false;
}

}  // namespace carpool
