// Whole models whose matrices are quantised, or whose experts share a tensor: the logits, bit for bit, of the model
// whose file holds the same values as float32, one matrix a tensor.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>

#include "io/test_files.h"
#include "model/golden_test_util.h"
#include "model/quantize.h"
#include "model/stored_matrix.h"

namespace carpool {
namespace {

using test::Part;

const std::string kCase = golden::kFolder + "/float32_untied";

std::string bytes_of(const void* data, size_t n) { return {static_cast<const char*>(data), n}; }

std::string shape_of(const std::vector<int64_t>& shape) {
  std::string out;
  for (const int64_t n : shape) out += (out.empty() ? "" : ",") + std::to_string(n);
  return out;
}

Part copied(const TensorInfo& t) { return {t.name, t.dtype, shape_of(t.shape), bytes_of(t.data, t.bytes)}; }

std::string random_bytes(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::string out(n, '\0');
  for (char& c : out) c = static_cast<char>(random());
  return out;
}

// Floats near `size`, as bytes of bfloat16 or float32.
std::string scales(size_t n, float size, bool wide, uint32_t seed) {
  std::mt19937 random(seed);
  std::string out;
  for (size_t i = 0; i < n; ++i) {
    const float value = bf16_to_float(float_to_bf16(size * (0.5f + static_cast<float>(random() % 256) / 256)));
    const uint16_t narrow = float_to_bf16(value);
    out += wide ? bytes_of(&value, 4) : bytes_of(&narrow, 2);
  }
  return out;
}

// A matrix NAME.weight [rows, cols] in one of the ways of stored_matrix.h, with random codes.
using Stored = std::vector<Part> (*)(const std::string& stem, int64_t rows, int64_t cols, uint32_t seed);

std::vector<Part> int4(const std::string& stem, int64_t rows, int64_t cols, uint32_t seed) {
  const int64_t shape[2] = {rows, cols};
  const auto n = static_cast<size_t>(rows * cols);
  return {{stem + ".weight_packed", "I32", shape_of({rows, cols / 8}), random_bytes(n / 2, seed)},
          {stem + ".weight_scale", "BF16", shape_of({rows, cols / 32}), scales(n / 32, 0.03f, false, seed + 1)},
          {stem + ".weight_shape", "I64", "2", bytes_of(shape, sizeof shape)}};
}

std::vector<Part> int4_with_zeros(const std::string& stem, int64_t rows, int64_t cols, uint32_t seed) {
  std::vector<Part> parts = int4(stem, rows, cols, seed);
  const int64_t words = (rows + 7) / 8 * (cols / 32);
  parts.push_back({stem + ".weight_zero_point", "I32", shape_of({(rows + 7) / 8, cols / 32}),
                   random_bytes(static_cast<size_t>(words) * 4, seed + 2)});
  return parts;
}

std::vector<Part> int8(const std::string& stem, int64_t rows, int64_t cols, uint32_t seed) {
  const int64_t shape[2] = {rows, cols};
  const auto n = static_cast<size_t>(rows * cols);
  return {
      {stem + ".weight_packed", "I32", shape_of({rows, cols / 4}), random_bytes(n, seed)},
      {stem + ".weight_scale", "F32", shape_of({rows, 1}), scales(static_cast<size_t>(rows), 0.002f, true, seed + 1)},
      {stem + ".weight_shape", "I64", "2", bytes_of(shape, sizeof shape)}};
}

std::vector<Part> nvfp4(const std::string& stem, int64_t rows, int64_t cols, uint32_t seed) {
  const auto n = static_cast<size_t>(rows * cols);
  const float divisor = std::ldexp(1.0f, 4 + static_cast<int>(seed % 3));  // exact wherever it is divided by
  return {{stem + ".weight_packed", "U8", shape_of({rows, cols / 2}), random_bytes(n / 2, seed)},
          {stem + ".weight_scale", "F8_E4M3", shape_of({rows, cols / 16}), std::string(n / 16, '\x3a')},
          {stem + ".weight_global_scale", "F32", "1", bytes_of(&divisor, 4)},
          {stem + ".input_global_scale", "F32", "1", bytes_of(&divisor, 4)}};
}

std::vector<Part> mxfp4(const std::string& stem, int64_t rows, int64_t cols, uint32_t seed) {
  const auto n = static_cast<size_t>(rows * cols);
  return {{stem + ".weight_packed", "U8", shape_of({rows, cols / 2}), random_bytes(n / 2, seed)},
          {stem + ".weight_scale", "U8", shape_of({rows, cols / 32}), std::string(n / 32, '\x7a')}};
}

std::vector<Part> fp8_by_row(const std::string& stem, int64_t rows, int64_t cols, uint32_t seed) {
  std::string codes = random_bytes(static_cast<size_t>(rows * cols), seed);
  for (char& c : codes) c = static_cast<char>(c & 0xbf);  // below 2
  return {
      {stem + ".weight", "F8_E4M3", shape_of({rows, cols}), codes},
      {stem + ".weight_scale", "BF16", shape_of({rows, 1}), scales(static_cast<size_t>(rows), 0.1f, false, seed + 1)}};
}

class QuantizedModel : public testing::Test {
 protected:
  QuantizedModel() : source_(WeightSource::open(kCase)) {}

  // A folder with the config of the golden case and these tensors.
  std::string folder(const std::string& name, const std::vector<Part>& parts) {
    const std::string path = folder_.file(name);
    std::filesystem::create_directory(path);
    std::filesystem::copy_file(kCase + "/config.json", path + "/config.json");
    folder_.write(name + "/model.safetensors", test::safetensors_file(parts));
    return path;
  }

  static std::vector<std::vector<float>> logits(const std::string& path) {
    LoadOptions load;
    load.threads = 2;
    load.activations = Activations::kFloat;  // with codes of int8 the formats differ, as they should
    Model model = Model::load(path, load);
    KvCache kv(model.config(), 64, KvFormat::kBF16);
    const std::vector<int> tokens = {1, 5, 9, 2, 7, 3};
    const golden::Place place(kv, static_cast<int>(tokens.size()));
    return golden::prefill(model, kv, place, tokens, 4);
  }

  test::ScratchFolder folder_;
  WeightSource source_;
};

// Every matrix of a layer whose rows are whole groups of 32, in one format, beside all others as they were.
TEST_F(QuantizedModel, HasTheLogitsOfItsValuesInFloat32) {
  const std::map<std::string, Stored> ways = {{"int4", int4},   {"int4f", int4_with_zeros}, {"int8", int8},
                                              {"nvfp4", nvfp4}, {"mxfp4", mxfp4},           {"fp8", fp8_by_row}};
  for (const auto& [format, stored] : ways) {
    std::vector<Part> packed, plain;
    uint32_t seed = 1;
    int quantised = 0;
    for (const TensorInfo& t : source_.tensors()) {
      const bool wanted = t.shape.size() == 2 && t.shape[1] % 32 == 0 && t.name.find("_proj.weight") != t.name.npos;
      const std::string stem = t.name.substr(0, t.name.rfind('.'));
      if (!wanted) {
        packed.push_back(copied(t));
        continue;
      }
      for (const Part& p : stored(stem, t.shape[0], t.shape[1], seed)) packed.push_back(p);
      seed += 10;
      ++quantised;
    }
    ASSERT_GT(quantised, 10);
    const std::string path = folder(format, packed);
    const WeightSource from = WeightSource::open(path);
    for (const TensorInfo& t : from.tensors()) {
      if (is_scale(from, t)) continue;
      const WeightView view = stored_matrix(from, t).view;
      if (view.format == Format::kF32) {
        plain.push_back(copied(t));
        continue;
      }
      EXPECT_EQ(info(view.format).name, format);
      std::vector<float> values(static_cast<size_t>(view.rows * view.cols));
      for (int64_t r = 0; r < view.rows; ++r) decode_row(view, r, values.data() + r * view.cols);
      plain.push_back({matrix_name(t), "F32", shape_of({view.rows, view.cols}),
                       bytes_of(values.data(), values.size() * sizeof(float))});
    }
    const auto want = logits(folder(format + "_plain", plain));
    EXPECT_EQ(logits(path), want) << format;
    // carpool quantize reads it too, by the names that matrices have without their packing.
    QuantizeOptions to_float;
    to_float.input = path;
    to_float.output = folder_.file(format + "_float");
    to_float.format = Format::kF32;
    to_float.threads = 2;
    quantize(to_float);
    EXPECT_EQ(logits(to_float.output), want) << format;
  }
}

// All experts of a layer in two tensors, gate rows before up rows.
TEST_F(QuantizedModel, ExpertsThatShareATensorGiveTheLogitsOfExpertsThatDoNot) {
  std::map<std::string, Part> shared;
  std::vector<Part> parts;
  std::map<std::string, std::string> of_name;
  for (const TensorInfo& t : source_.tensors()) of_name[t.name] = bytes_of(t.data, t.bytes);
  for (const TensorInfo& t : source_.tensors()) {
    const size_t at = t.name.find(".experts.");
    if (at == t.name.npos) parts.push_back(copied(t));
    if (at == t.name.npos || t.name.find(".experts.0.") == t.name.npos) continue;
    const std::string before = t.name.substr(0, at + 9), matrix = t.name.substr(t.name.find(".0.", at) + 3);
    if (matrix == "up_proj.weight") continue;
    std::string data;
    int64_t e = 0;
    for (; of_name.contains(before + std::to_string(e) + "." + matrix); ++e) {
      data += of_name.at(before + std::to_string(e) + "." + matrix);
      if (matrix == "gate_proj.weight") data += of_name.at(before + std::to_string(e) + ".up_proj.weight");
    }
    const bool gate = matrix == "gate_proj.weight";
    parts.push_back({before + (gate ? "gate_up_proj" : "down_proj"), "F32",
                     shape_of({e, (gate ? 2 : 1) * t.shape[0], t.shape[1]}), data});
  }
  ASSERT_LT(parts.size(), source_.tensors().size());
  EXPECT_EQ(logits(folder("shared", parts)), logits(kCase));
}

}  // namespace
}  // namespace carpool
