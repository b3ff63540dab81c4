// Taking tensors from files and making cold copies; see weights.h.
#include "model/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>

#include "base/error.h"
#include "base/memory.h"

namespace carpool {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += fmt::format("{}{}", i ? ", " : "", shape[i]);
  return out + "]";
}

std::vector<float> decode(const TensorInfo* tensor, int64_t rows, int64_t cols) {
  if (!tensor) return {};  // reported; sizes of a config that no file backs up are not allocated
  std::vector<float> out(static_cast<size_t>(rows * cols));
  const WeightView view{*format_of_safetensors(tensor->dtype), tensor->data, rows, cols};
  for (int64_t r = 0; r < rows; ++r) decode_row(view, r, out.data() + r * cols);
  return out;
}

// Copies the bytes of `from` to `at` and returns a view of the copy; advances `at`.
WeightView copy_to(std::byte*& at, const WeightView& from) {
  std::memcpy(at, from.data, from.bytes());
  WeightView view = from;
  view.data = at;
  at += from.bytes();
  return view;
}

size_t bytes_of(const ExpertSet& set) {
  size_t total = 0;
  for (const auto* list : {&set.gate, &set.up, &set.down}) {
    for (const WeightView& w : *list) total += w.bytes();
  }
  return total;
}

}  // namespace

void TensorReader::report(const std::string& problem) {
  if (first_problems_.size() < kListed) first_problems_.push_back(problem);
  if (++problems_ == kGiveUp) fail();
}

const TensorInfo* TensorReader::take(const std::string& name, const std::vector<int64_t>& shape) {
  taken_.insert(name);
  const TensorInfo* tensor = source_.find(name);
  if (!tensor) {
    report(fmt::format("\"{}\" is missing", escape(name)));
    return nullptr;
  }
  if (tensor->shape != shape) {
    report(fmt::format("\"{}\" has shape {}, the config needs {}", escape(name), shape_text(tensor->shape),
                       shape_text(shape)));
    return nullptr;
  }
  if (!format_of_safetensors(tensor->dtype)) {
    report(fmt::format("\"{}\" has dtype {}, supported: {}", escape(name), tensor->dtype, format_names()));
    return nullptr;
  }
  if (check_finite_) {
    if (const NonFinite bad = scan_non_finite(*tensor); bad.count) {
      report(fmt::format("\"{}\" has {} values that are NaN or infinite, the first at index {}", escape(name),
                         bad.count, bad.first_index));
      return nullptr;
    }
  }
  bytes_taken_ += tensor->bytes;
  if (progress)
    progress(static_cast<double>(bytes_taken_) / static_cast<double>(std::max<size_t>(source_.total_bytes(), 1)));
  return tensor;
}

WeightView TensorReader::matrix(const std::string& name, int64_t rows, int64_t cols) {
  const TensorInfo* tensor = take(name, {rows, cols});
  if (!tensor) return {};
  return {*format_of_safetensors(tensor->dtype), tensor->data, rows, cols};
}

std::vector<float> TensorReader::vector(const std::string& name, int64_t n) { return decode(take(name, {n}), 1, n); }

std::vector<float> TensorReader::matrix_f32(const std::string& name, int64_t rows, int64_t cols) {
  return decode(take(name, {rows, cols}), rows, cols);
}

void TensorReader::finish() {
  for (const TensorInfo& tensor : source_.tensors()) {
    if (!taken_.contains(tensor.name)) report(fmt::format("\"{}\" is not part of this model", escape(tensor.name)));
  }
  if (problems_ > 0) fail();
}

void TensorReader::fail() const {
  std::string text =
      fmt::format("{}: {}{} tensor{} cannot be used: {}", source_.where(), problems_ == kGiveUp ? "at least " : "",
                  problems_, problems_ == 1 ? "" : "s", fmt::join(first_problems_, "; "));
  throw Error(ErrorKind::kMalformed, problems_ > kListed ? text + "; ..." : text);
}

size_t Weights::expert_bytes() const {
  size_t total = 0;
  for (const LayerWeights& layer : layers) total += bytes_of(layer.experts);
  return total;
}

size_t Weights::bytes_per_expert() const {
  for (const LayerWeights& layer : layers) {
    const ExpertSet& e = layer.experts;
    if (!e.gate.empty()) return e.gate[0].bytes() + e.up[0].bytes() + e.down[0].bytes();
  }
  return 0;
}

size_t Weights::dense_bytes_per_step() const {
  size_t total = head.bytes() + final_norm.size() * sizeof(float);
  for (const LayerWeights& l : layers) {
    for (const WeightView* w : {&l.q, &l.k, &l.v, &l.o, &l.dense_gate, &l.dense_up, &l.dense_down}) total += w->bytes();
    for (const auto* v :
         {&l.input_norm, &l.post_norm, &l.q_bias, &l.k_bias, &l.v_bias, &l.o_bias, &l.q_norm, &l.k_norm, &l.router}) {
      total += v->size() * sizeof(float);
    }
  }
  return total;
}

void Weights::set_cold_copies(int n) {
  for (size_t c = 0; c < cold.size(); ++c) storage.pop_back();
  cold.clear();
  const size_t one = expert_bytes();
  require_memory(one * static_cast<size_t>(n), fmt::format("{} cold copies of the experts", n));
  for (int c = 0; c < n; ++c) {
    storage.emplace_back(one);
    std::byte* at = storage.back().data();
    std::vector<ExpertSet> copy(layers.size());
    for (size_t l = 0; l < layers.size(); ++l) {
      // Expert after expert, so that what one expert reads is one stretch of memory.
      for (size_t e = 0; e < layers[l].experts.gate.size(); ++e) {
        copy[l].gate.push_back(copy_to(at, layers[l].experts.gate[e]));
        copy[l].up.push_back(copy_to(at, layers[l].experts.up[e]));
        copy[l].down.push_back(copy_to(at, layers[l].experts.down[e]));
      }
    }
    cold.push_back(std::move(copy));
  }
}

}  // namespace carpool
