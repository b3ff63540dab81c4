// Taking tensors from files and making cold copies; see weights.h.
#include "model/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>

#include "base/error.h"
#include "base/memory.h"
#include "model/stored_experts.h"

namespace carpool {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += fmt::format("{}{}", i ? ", " : "", shape[i]);
  return out + "]";
}

// Applies `visit` to every panel view of the weights, cold copies apart.
template <class Visit>
void for_each_panels(const Weights& weights, Visit visit) {
  visit(weights.head);
  for (const LayerWeights& l : weights.layers) {
    for (const PanelView* w : l.matrices()) visit(*w);
    for (const auto* list : {&l.experts.gate_up, &l.experts.down}) {
      for (const PanelView& w : *list) visit(w);
    }
  }
}

// Copies the bytes of `from` to `at` and returns a view of the copy; advances `at`.
PanelView copy_to(std::byte*& at, const PanelView& from) {
  std::memcpy(at, from.data, from.bytes());
  PanelView view = from;
  view.data = at;
  at += from.bytes();
  return view;
}

size_t bytes_of(const ExpertSet& set) {
  size_t total = 0;
  for (const auto* list : {&set.gate_up, &set.down}) {
    for (const PanelView& w : *list) total += w.bytes();
  }
  return total;
}

}  // namespace

std::array<const PanelView*, 17> LayerWeights::matrices() const {
  return {&grouped.q,   &grouped.k,     &grouped.v, &latent.q_a,           &latent.kv_a, &latent.q, &latent.k_up,
          &latent.v_up, &indexer.q,     &indexer.k, &indexer.head_weights, &o,           &router,   &shared_gate_up,
          &shared_down, &dense_gate_up, &dense_down};
}

std::array<const std::vector<float>*, 14> LayerWeights::vectors() const {
  return {&input_norm,     &post_norm,           &grouped.q_bias, &grouped.k_bias,  &grouped.v_bias,
          &grouped.q_norm, &grouped.k_norm,      &grouped.sinks,  &latent.q_a_norm, &latent.kv_a_norm,
          &indexer.k_norm, &indexer.k_norm_bias, &o_bias,         &router_bias};
}

std::string TensorReader::dtype(const std::string& name) const {
  const TensorInfo* tensor = source_.find(name);
  return tensor ? tensor->dtype : "";
}

bool TensorReader::has(const std::string& name) const {
  return stored_tensor(source_, name) || has_experts(source_, name);
}

void TensorReader::report(const std::string& problem) {
  if (first_problems_.size() < kListed) first_problems_.push_back(problem);
  if (++problems_ == kGiveUp) fail();
}

WeightView TensorReader::take(const std::string& name, const std::vector<int64_t>& shape) {
  taken_.insert(name);
  const auto refuse = [&](const std::string& problem) {
    report(problem);
    return WeightView{};
  };
  const TensorInfo* tensor = stored_tensor(source_, name);
  if (!tensor) return refuse(fmt::format("\"{}\" is missing", escape(name)));
  StoredMatrix stored;
  try {
    stored = stored_matrix(source_, *tensor);
  } catch (const Error& e) {
    return refuse(e.what());
  }
  // Of values, not of packed bytes: what decoding the view writes.
  std::vector<int64_t> found{stored.view.cols};
  if (tensor->shape.size() == 2) found.insert(found.begin(), stored.view.rows);
  return accept(name, stored, found, shape);
}

WeightView TensorReader::accept(const std::string& name, const StoredMatrix& stored, const std::vector<int64_t>& found,
                                const std::vector<int64_t>& wanted) {
  for (const TensorInfo& part : stored.parts) taken_.insert(part.name);  // used or refused, they belong to the model
  taken_.insert(stored.unused.begin(), stored.unused.end());
  if (found != wanted) {
    report(
        fmt::format("\"{}\" has shape {}, the config needs {}", escape(name), shape_text(found), shape_text(wanted)));
    return {};
  }
  for (const TensorInfo& part : stored.parts) {
    bytes_taken_ += part.bytes;
    if (!check_finite_) continue;
    if (const NonFinite bad = scan_non_finite(part); bad.count) {
      report(fmt::format("\"{}\" has {} values that are NaN or infinite, the first at index {}", escape(part.name),
                         bad.count, bad.first_index));
      return {};
    }
  }
  if (progress) {
    progress(static_cast<double>(bytes_taken_) / static_cast<double>(std::max<size_t>(source_.total_bytes(), 1)));
  }
  return stored.view;
}

WeightView TensorReader::take_expert(const std::string& name, int64_t e, const std::vector<int64_t>& plain,
                                     const std::vector<int64_t>& blocks) {
  for (const char* ending : {"", "_blocks", "_scales", "_scale_inv"}) taken_.insert(name + ending);
  if (!has_experts(source_, name)) {
    if (e == 0) report(fmt::format("\"{}\" is missing", escape(name)));
    return {};
  }
  StoredExperts stored;
  try {
    stored = stored_expert(source_, name, e);
  } catch (const Error& error) {
    if (e == 0) report(error.what());
    return {};
  }
  const std::vector<int64_t>& wanted = stored.blocks ? blocks : plain;
  const std::vector<int64_t> found = {stored.experts, stored.rows, stored.cols};
  if (found != wanted && e > 0) return {};  // reported for the first one
  return accept(name, stored.matrix, found, wanted);
}

PanelView TensorReader::expert(const std::string& name, int64_t e, const ExpertShape& shape) {
  const auto [n, rows, cols, transposed] = shape;
  const std::vector<int64_t> blocks = {n, rows, cols};
  const WeightView w = take_expert(name, e, transposed ? std::vector{n, cols, rows} : blocks, blocks);
  if (!w.data) return {};
  return transposed && w.format != Format::kMXFP4 ? plan_.add(TransposedView{w, rows}) : plan_.add(w);
}

PanelView TensorReader::expert_pair(const std::string& name, int64_t e, const ExpertShape& shape, Order order) {
  const auto [n, rows, cols, transposed] = shape;
  const std::vector<int64_t> blocks = {n, 2 * rows, cols};
  const WeightView w = take_expert(name, e, transposed ? std::vector{n, cols, 2 * rows} : blocks, blocks);
  if (!w.data) return {};
  const auto map_of = [&](int64_t half) {
    return order == Order::kInterleaved ? RowMap{half, 1, 2} : RowMap{half * rows, 0, 0};
  };
  if (transposed && w.format != Format::kMXFP4) {
    return plan_.add_pair(TransposedView{w, rows, 1, map_of(0)}, TransposedView{w, rows, 1, map_of(1)});
  }
  WeightView gate = w, up = w;
  gate.rows = up.rows = rows;
  gate.map = map_of(0);
  up.map = map_of(1);
  return plan_.add_pair(gate, up);
}

PanelView TensorReader::matrix(const std::string& name, int64_t rows, int64_t cols) {
  const WeightView w = take(name, {rows, cols});
  return w.data ? plan_.add(w) : PanelView{};
}

PanelView TensorReader::pair(const std::string& even, const std::string& odd, int64_t rows, int64_t cols) {
  const WeightView a = take(even, {rows, cols}), b = take(odd, {rows, cols});
  if (!a.data || !b.data) return {};
  if (a.format != b.format) {
    report(fmt::format("\"{}\" is {} and \"{}\" is {}, they must have one format", escape(even), info(a.format).name,
                       escape(odd), info(b.format).name));
    return {};
  }
  return plan_.add_pair(a, b);
}

PanelView TensorReader::transposed(const std::string& name, int64_t rows, int64_t cols) {
  const WeightView w = take(name, {cols, rows});
  return w.data ? plan_.add(TransposedView{w, rows}) : PanelView{};
}

PanelView TensorReader::head_rows(const std::string& name, const HeadRows& part, int64_t cols) {
  WeightView w = take(name, {part.heads * part.rows_per_head, cols});
  if (!w.data) return {};
  w.rows = part.heads * part.count();
  w.map = part.map();
  return plan_.add(w);
}

PanelView TensorReader::heads_transposed(const std::string& name, const HeadRows& part, int64_t cols) {
  WeightView w = take(name, {part.heads * part.rows_per_head, cols});
  if (!w.data) return {};
  w.rows = part.heads * part.count();
  w.map = part.map();
  return plan_.add(TransposedView{w, cols, part.heads});
}

PanelView TensorReader::matrix_f32(const std::string& name, int64_t rows, int64_t cols) {
  const WeightView w = take(name, {rows, cols});
  return w.data ? plan_.add_f32(w) : PanelView{};
}

std::vector<float> TensorReader::vector(const std::string& name, int64_t n) {
  const WeightView w = take(name, {n});
  if (!w.data) return {};  // reported; sizes of a config that no file backs up are not allocated
  std::vector<float> out(static_cast<size_t>(n));
  decode_row(w, 0, out.data());
  return out;
}

std::vector<float> TensorReader::values(const std::string& name, int64_t rows, int64_t cols) {
  const WeightView w = take(name, {rows, cols});
  if (!w.data) return {};
  std::vector<float> out(static_cast<size_t>(rows * cols));
  for (int64_t r = 0; r < rows; ++r) decode_row(w, r, out.data() + r * cols);
  return out;
}

WeightView TensorReader::rows(const std::string& name, int64_t rows, int64_t cols) { return take(name, {rows, cols}); }

void TensorReader::check_one_format(const ExpertSet& experts, const std::string& where) {
  for (const auto* list : {&experts.gate_up, &experts.down}) {
    for (const PanelView& w : *list) {
      if (w.rows > 0 && list->front().rows > 0 && w.format != list->front().format) {
        return report(fmt::format("{}: experts are {} and {}, they must have one format", escape(where),
                                  info(list->front().format).name, info(w.format).name));
      }
    }
  }
}

size_t TensorReader::ignore(const std::string& prefix) {
  size_t found = 0;
  for (const TensorInfo& tensor : source_.tensors()) {
    if (!tensor.name.starts_with(prefix)) continue;
    taken_.insert(tensor.name);
    ++found;
  }
  return found;
}

void TensorReader::finish() {
  size_t cache_scales = 0;
  for (const TensorInfo& tensor : source_.tensors()) {
    if (taken_.contains(tensor.name)) continue;
    if (is_cache_scale(tensor.name)) {
      ++cache_scales;
    } else {
      report(fmt::format("\"{}\" is not part of this model", escape(tensor.name)));
    }
  }
  if (cache_scales > 0) {
    notes_.push_back(
        fmt::format("{} scales of a quantised KV cache are not used: the cache has its own", cache_scales));
  }
  if (problems_ > 0) fail();
}

void TensorReader::fail() const {
  std::string text =
      fmt::format("{}: {}{} tensor{} cannot be used: {}", source_.where(), problems_ == kGiveUp ? "at least " : "",
                  problems_, problems_ == 1 ? "" : "s", fmt::join(first_problems_, "; "));
  throw Error(ErrorKind::kMalformed, problems_ > kListed ? text + "; ..." : text);
}

void Weights::place(const std::byte* base) {
  for_each_panels(*this, [&](const PanelView& w) {
    // Offsets were stored as pointers from null on; a view without rows stays empty.
    if (w.rows > 0) const_cast<PanelView&>(w).data = base + reinterpret_cast<size_t>(w.data);
  });
}

size_t Weights::expert_bytes() const {
  size_t total = 0;
  for (const LayerWeights& layer : layers) total += bytes_of(layer.experts);
  return total;
}

size_t Weights::bytes_per_expert() const {
  for (const LayerWeights& layer : layers) {
    const ExpertSet& e = layer.experts;
    if (!e.down.empty()) return e.gate_up[0].bytes() + e.down[0].bytes();
  }
  return 0;
}

size_t Weights::dense_bytes_per_step() const {
  size_t total = final_norm.size() * sizeof(float);
  for_each_panels(*this, [&](const PanelView& w) { total += w.bytes(); });
  for (const LayerWeights& l : layers) {
    for (const std::vector<float>* v : l.vectors()) total += v->size() * sizeof(float);
    total += l.scoring.selection_bias.size() * sizeof(float);
  }
  return total - expert_bytes();
}

bool Weights::block_quantized() const {
  bool found = false;
  for_each_panels(*this, [&](const PanelView& w) { found = found || info(w.format).block_elements > 1; });
  return found;
}

void Weights::set_cold_copies(int n) {
  cold_storage.clear();
  cold.clear();
  const size_t one = expert_bytes();
  require_memory(one * static_cast<size_t>(n), fmt::format("{} cold copies of the experts", n));
  for (int c = 0; c < n; ++c) {
    cold_storage.emplace_back(one, HugePages::kAuto, "cold copies of the experts");
    std::byte* at = cold_storage.back().bytes().data();
    std::vector<ExpertSet> copy(layers.size());
    for (size_t l = 0; l < layers.size(); ++l) {
      copy[l].gate_up_bias = layers[l].experts.gate_up_bias;
      copy[l].down_bias = layers[l].experts.down_bias;
      // Expert after expert, so that what one expert reads is one stretch of memory.
      for (size_t e = 0; e < layers[l].experts.down.size(); ++e) {
        copy[l].gate_up.push_back(copy_to(at, layers[l].experts.gate_up[e]));
        copy[l].down.push_back(copy_to(at, layers[l].experts.down[e]));
      }
    }
    cold.push_back(std::move(copy));
  }
}

}  // namespace carpool
