// See stored_matrix.h.
#include "model/stored_matrix.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace carpool {
namespace {

using Shape = std::vector<int64_t>;

constexpr std::string_view kWeight = ".weight", kPacked = ".weight_packed";
// What may stand beside a matrix: in use, and not.
constexpr std::string_view kScales[] = {".weight_scale",        ".weight_scale_2", ".weight_scale_inv",
                                        ".weight_global_scale", ".weight_shape",   ".weight_zero_point",
                                        ".weight_g_idx"};
constexpr std::string_view kUnused[] = {".input_scale", ".input_global_scale"};
constexpr std::string_view kColumnScale = ".pre_quant_scale";
constexpr int64_t kFp8Block = 128, kNvfp4Block = 16, kMxfp4Block = 32, kGroup = 32;
constexpr int64_t kMostBytes = int64_t{1} << 40;  // of a packed row, so that counts of its values stay far from 2^63

int64_t blocks(int64_t n, int64_t block) { return (n + block - 1) / block; }

class Finder {
 public:
  Finder(const WeightSource& source, const TensorInfo& tensor) : source_(source), tensor_(tensor) {
    const std::string_view name = tensor.name;
    for (const std::string_view ending : {kWeight, kPacked}) {
      if (name.ends_with(ending)) stem_ = name.substr(0, name.size() - ending.size());
    }
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
    if (const TensorInfo* scale = with(kColumnScale)) {
      refuse(*scale, "columns that are scaled before they are quantised (AWQ) are not supported");
    }
    result_.view.rows = tensor_.shape.size() == 2 ? tensor_.shape[0] : 1;
    result_.view.cols = tensor_.shape.back();
    result_.view.data = tensor_.data;
    add(tensor_);
    choose();
    for (const std::string_view ending : kUnused) {
      if (const TensorInfo* t = with(ending)) result_.unused.push_back(t->name);
    }
    return std::move(result_);
  }

 private:
  void choose() {
    const TensorInfo* scales = with(".weight_scale");
    const bool packed = tensor_.name.ends_with(kPacked);
    if (packed && !scales) refuse(tensor_, fmt::format("\"{}.weight_scale\" is missing", escape(stem_)));
    if (packed && tensor_.dtype == "I32") return integers(*scales);
    if (packed && tensor_.dtype != "U8") {
      refuse(tensor_, fmt::format("packed values are U8 or I32, these are {}", escape(tensor_.dtype)));
    }
    if (packed && scales->dtype != "F8_E4M3") return mxfp4(*scales);
    if (packed) return nvfp4(*scales, "global_scale");
    if (tensor_.dtype == "U8" && scales) return nvfp4(*scales, "scale_2");
    if (tensor_.dtype == "F8_E4M3") return fp8(scales);
    plain();
  }

  [[noreturn]] void refuse(const TensorInfo& t, const std::string& what) const {
    throw Error(ErrorKind::kMalformed,
                fmt::format("{}: tensor \"{}\" at byte {}: {}", source_.where(), escape(t.name), t.file_offset, what));
  }
  void add(const TensorInfo& part) { result_.parts.push_back(part); }
  const TensorInfo* with(std::string_view ending) const {
    return stem_.empty() ? nullptr : source_.find(fmt::format("{}{}", stem_, ending));
  }
  [[noreturn]] void refuse_scales(const TensorInfo& t, std::string_view dtype, const std::string& shape) const {
    refuse(t, fmt::format("must be {} {} for a matrix of {} x {}, is {} [{}]", dtype, shape, result_.view.rows,
                          result_.view.cols, escape(t.dtype), fmt::join(t.shape, ", ")));
  }
  void expect(const TensorInfo& t, std::string_view dtype, const Shape& shape) const {
    if (t.dtype != dtype || t.shape != shape) refuse_scales(t, dtype, fmt::format("[{}]", fmt::join(shape, ", ")));
  }
  static bool is_one(const TensorInfo& t) { return t.shape.empty() || t.shape == Shape{1}; }
  // The type of scales that may be any float.
  Format type_of(const TensorInfo& t, const std::string& shape) const {
    const Format* format = format_of_safetensors(t.dtype);
    if (!format || info(*format).block_elements != 1 || *format == Format::kFP8) {
      refuse_scales(t, "F32, BF16 or F16", shape);
    }
    return *format;
  }
  // One number: shape [] or [1].
  float number(const TensorInfo& t) const {
    if (t.dtype != "F32" || !is_one(t)) {
      refuse(t, fmt::format("must be one F32, is {} [{}]", escape(t.dtype), fmt::join(t.shape, ", ")));
    }
    float value;
    std::memcpy(&value, t.data, sizeof value);
    if (!std::isfinite(value)) refuse(t, fmt::format("must be finite, is {}", value));
    return value;
  }
  // NAME.weight_ENDING; nullptr when it is absent and need not be there.
  const TensorInfo* second_scale(std::string_view ending, bool required) const {
    const TensorInfo* second = with(fmt::format(".weight_{}", ending));
    if (!second && required) refuse(tensor_, fmt::format("\"{}.weight_{}\" is missing", escape(stem_), ending));
    return second;
  }

  // Two values a byte, in whole blocks.
  void nibbles(Format format, int64_t block) {
    WeightView& v = result_.view;
    v.format = format;
    if (v.cols > kMostBytes || 2 * v.cols % block != 0) {
      refuse(tensor_,
             fmt::format("rows of {} bytes are not whole blocks of {} ({})", v.cols, block, info(format).name));
    }
    v.cols *= 2;
  }

  void nvfp4(const TensorInfo& scales, std::string_view second) {
    WeightView& v = result_.view;
    nibbles(Format::kNVFP4, kNvfp4Block);
    expect(scales, "F8_E4M3", {v.rows, v.cols / kNvfp4Block});
    v.scales = scales.data;
    add(scales);
    const TensorInfo& whole = *second_scale(second, true);
    v.scale = number(whole);
    add(whole);
    if (second == "scale_2") return;
    v.scale = 1.0f / v.scale;
    if (!std::isfinite(v.scale)) refuse(whole, "is what values are divided by and must not be 0");
  }

  void mxfp4(const TensorInfo& scales) {
    WeightView& v = result_.view;
    nibbles(Format::kMXFP4, kMxfp4Block);
    const bool exponents = scales.dtype == "F8_E8M0";
    expect(scales, exponents ? "F8_E8M0" : "U8", {v.rows, v.cols / kMxfp4Block});
    v.scales = scales.data;
    add(scales);
    result_.parts.back().dtype = "F8_E8M0";  // what its bytes are
  }

  // How many columns share a scale, or rows and columns; sets the grid. `shape` is what was expected, for messages.
  void groups(const TensorInfo& scales, const std::string& shape) {
    WeightView& v = result_.view;
    v.grid.format = type_of(scales, shape);
    v.scales = scales.data;
    add(scales);
    v.grid.rows = 1;
    v.grid.cols = v.cols;
    if (is_one(scales)) {
      v.grid.rows = v.rows;
      return;
    }
    const bool list = scales.shape.size() == 1;
    const int64_t count = list ? 1 : scales.shape.back();
    if (scales.shape.size() > 2 || scales.shape[0] != v.rows || count < 1 || v.cols % count != 0) {
      refuse_scales(scales, scales.dtype, shape);
    }
    v.grid.cols = v.cols / count;
  }

  // compressed-tensors: codes of 4 or 8 bits in words of 32.
  void integers(const TensorInfo& scales) {
    WeightView& v = result_.view;
    const int64_t words = v.cols, bits = read_shape(words);
    v.format = bits == 8 ? Format::kINT8 : Format::kINT4;
    if (v.cols % kGroup != 0) {
      refuse(tensor_, fmt::format("rows of {} are not whole groups of {} ({})", v.cols, kGroup, info(v.format).name));
    }
    groups(scales, "[rows], [rows, 1] or [rows, groups]");
    if (v.grid.cols % kGroup != 0) {
      refuse(scales,
             fmt::format("groups of {} columns are not supported, supported: multiples of {}", v.grid.cols, kGroup));
    }
    if (const TensorInfo* zeros = with(".weight_zero_point")) {
      expect(*zeros, "I32", {blocks(v.rows * bits, 32), v.cols / v.grid.cols});
      if (v.grid.rows != 1) refuse(*zeros, "one scale for a matrix with zero points is not supported");
      v.zeros = zeros->data;
      add(*zeros);
    }
    if (v.format == Format::kINT4 && (v.zeros || v.grid.format != Format::kBF16)) v.format = Format::kINT4F;
    if (const TensorInfo* order = with(".weight_g_idx")) check_order(*order);
  }

  // Sets the number of columns, which packed words do not tell; returns bits of a code.
  int64_t read_shape(int64_t words) {
    WeightView& v = result_.view;
    const TensorInfo* t = with(".weight_shape");
    if (!t) refuse(tensor_, fmt::format("\"{}.weight_shape\" is missing", escape(stem_)));
    const bool wide = t->dtype == "I64";
    if ((!wide && t->dtype != "I32") || t->shape != Shape{2}) {
      refuse(*t, fmt::format("must be I64 [2], is {} [{}]", escape(t->dtype), fmt::join(t->shape, ", ")));
    }
    int64_t shape[2];
    for (size_t i = 0; i < 2; ++i) {
      int32_t narrow;
      std::memcpy(&narrow, t->data + i * sizeof narrow, sizeof narrow);
      shape[i] = narrow;
      if (wide) std::memcpy(&shape[i], t->data + i * sizeof shape[i], sizeof shape[i]);
    }
    if (words <= kMostBytes && shape[0] == v.rows && shape[1] > 0 && shape[1] <= 8 * words) {
      add(*t);
      v.cols = shape[1];
      for (const int64_t bits : {4, 8}) {
        if (blocks(v.cols * bits, 32) == words) return bits;
      }
    }
    refuse(tensor_, fmt::format("words of shape [{}, {}] hold [{}, {}] values of 4 bits or [{}, {}] of 8, but "
                                "\"{}\" says [{}, {}]",
                                v.rows, words, v.rows, 8 * std::min(words, kMostBytes), v.rows,
                                4 * std::min(words, kMostBytes), escape(t->name), shape[0], shape[1]));
  }

  // The group of each column; supported if groups follow each other.
  void check_order(const TensorInfo& t) {
    const WeightView& v = result_.view;
    expect(t, "I32", {v.cols});
    for (int64_t c = 0; c < v.cols; ++c) {
      int32_t group;
      std::memcpy(&group, t.data + c * 4, sizeof group);
      if (group == c / v.grid.cols) continue;
      refuse(t, fmt::format("column {} is of group {}: columns that are sorted by activation are not supported", c,
                            group));
    }
    add(t);
  }

  void fp8(const TensorInfo* scales) {
    WeightView& v = result_.view;
    v.format = Format::kFP8;
    const Shape by_block = {blocks(v.rows, kFp8Block), blocks(v.cols, kFp8Block)};
    const TensorInfo* inverse = with(".weight_scale_inv");  // it multiplies, whatever it is called
    const TensorInfo* t = inverse ? inverse : scales;
    if (!t) return;
    const std::string shape = fmt::format("[{}]", fmt::join(by_block, ", "));
    if (t->shape == by_block) {
      v.grid.format = type_of(*t, shape);
      v.scales = t->data;
      return add(*t);
    }
    if (inverse) refuse_scales(*t, "F32, BF16 or F16", shape);
    if (is_one(*t) && t->dtype == "F32") {
      v.scale = number(*t);
      return add(*t);
    }
    groups(*t, fmt::format("[], [{}, 1] or {}", v.rows, shape));
    if (v.grid.cols != v.cols) refuse_scales(*t, t->dtype, fmt::format("[], [{}, 1] or {}", v.rows, shape));
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
    if (const TensorInfo* second = second_scale("scale_2", false)) {
      result_.view.scale = number(*second);
      add(*second);
    }
  }

  const WeightSource& source_;
  const TensorInfo& tensor_;
  std::string stem_;  // of NAME.weight, NAME; empty for other names
  StoredMatrix result_;
};

}  // namespace

const TensorInfo* stored_tensor(const WeightSource& source, const std::string& name) {
  const TensorInfo* own = source.find(name);
  return own || !name.ends_with(kWeight) ? own : source.find(name + "_packed");
}

std::string matrix_name(const TensorInfo& tensor) {
  const std::string& name = tensor.name;
  return name.ends_with(kPacked) ? name.substr(0, name.size() - kPacked.size()) + std::string(kWeight) : name;
}

StoredMatrix stored_matrix(const WeightSource& source, const TensorInfo& tensor) {
  return Finder(source, tensor).find();
}

bool is_scale(const WeightSource& source, const TensorInfo& tensor) {
  const std::string_view name = tensor.name;
  const auto beside = [&](std::string_view ending) {
    if (!name.ends_with(ending)) return false;
    const std::string_view stem = name.substr(0, name.size() - ending.size());
    return stored_tensor(source, fmt::format("{}{}", stem, kWeight)) != nullptr;
  };
  return std::any_of(std::begin(kScales), std::end(kScales), beside) ||
         std::any_of(std::begin(kUnused), std::end(kUnused), beside);
}

bool is_cache_scale(std::string_view name) {
  constexpr std::string_view kEndings[] = {".k_scale", ".v_scale", ".q_scale", ".prob_scale"};
  return std::any_of(std::begin(kEndings), std::end(kEndings), [&](auto ending) { return name.ends_with(ending); });
}

}  // namespace carpool
