// Gated blocks: the routed experts of a layer, and the dense block as the case of one expert for all rows.
//
// Slots (row, expert) are sorted by expert, so one read of an expert's weights serves all its rows. Two phases with a
// barrier between. First by (expert, 128 values of F): gate and up, hidden = silu(gate x) * (up x), and its
// quantisation, which is complete for that block. Then by tile of D: down of every expert in ascending order, each
// row's share added to its output with the row's weight, so the order of the sum is the order of expert ids whatever
// the batch. In both phases threads work far apart, in long pieces, and each kernel call is told what is read after
// it: the stream from memory does not stop between experts, and cores do not fetch what their neighbours read.
#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_ops.h"
#include "base/error.h"

namespace carpool {
namespace {

constexpr int64_t kHiddenTile = kActivationBlock;  // values of F per task: a block of the quantised hidden row
constexpr int64_t kPairsPerTile = kHiddenTile / kPanelRows;
constexpr int kRowsAtOnce = 64;  // rows of an expert whose tile of outputs is held at once
// Tasks of the second phase: at the end of a share so many bytes of one expert, long enough to stream, or an eighth of
// the share where that is less; at its beginning as many panels as leave the outputs of an expert's rows in the
// first-level cache and, where they are read again for more rows, themselves in the second.
constexpr int64_t kDownTileBytes = 24 << 10, kDownTilesPerShare = 8;
constexpr int64_t kDownPanelRows = 512, kDownTileBytesRead = 256 << 10;

constexpr float kSwigluAlpha = 1.702f;

// 16 values of gpt-oss' activation. A NaN stays one.
void clamped_swiglu(const float* gate, const float* up, float limit, float* y) {
  for (int i = 0; i < kPanelRows; ++i) {
    const float g = gate[i] > limit ? limit : gate[i];
    const float u = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
    y[i] = g / (1.0f + std::exp(-kSwigluAlpha * g)) * (u + 1.0f);
  }
}

int64_t padded(int64_t n) { return (n + kPanelRows - 1) / kPanelRows * kPanelRows; }

int64_t even(int64_t n) { return n > 1 ? n / 2 * 2 : 1; }  // of panels: kernels work on two at a time

}  // namespace

// Counting sort of the slots by expert; a row's slots on one expert keep their order.
void CpuOps::group_by_expert(Matrix x, const Selection& chosen, std::span<const float> weights, int experts) {
  const auto slots = static_cast<size_t>(chosen.size());
  cursor_.assign(static_cast<size_t>(experts), 0);
  for (const int expert : chosen.experts()) {
    CARPOOL_CHECK(expert >= 0 && expert < experts);
    ++cursor_[static_cast<size_t>(expert)];
  }
  active_.clear();
  first_.clear();
  int place = 0;
  for (int expert = 0; expert < experts; ++expert) {
    const int count = cursor_[static_cast<size_t>(expert)];
    cursor_[static_cast<size_t>(expert)] = place;
    if (count == 0) continue;
    active_.push_back(expert);
    first_.push_back(place);
    place += count;
  }
  first_.push_back(place);
  row_at_.resize(slots);
  weight_at_.resize(slots);
  for (int t = 0; t < x.rows; ++t) {
    for (int slot = chosen.begin(t); slot < chosen.end(t); ++slot) {
      const int expert = chosen.experts()[static_cast<size_t>(slot)];
      const auto at = static_cast<size_t>(cursor_[static_cast<size_t>(expert)]++);
      row_at_[at] = t;
      weight_at_[at] = weights[static_cast<size_t>(slot)];
    }
  }
}

// Room for the outputs of one kernel call, on every worker whether or not it gets a task.
void CpuOps::reserve_tiles(int64_t floats) {
  for (Worker& worker : workers_) {
    if (worker.tile.size() < static_cast<size_t>(floats)) worker.tile.resize(static_cast<size_t>(floats));
    if (worker.outputs.size() < kRowsAtOnce) worker.outputs.resize(kRowsAtOnce);
  }
}

int CpuOps::most_rows() const {
  int most = 0;
  for (size_t i = 0; i < active_.size(); ++i) most = std::max(most, first_[i + 1] - first_[i]);
  return most;
}

// Reads slot inputs, writes hidden_ and hidden_codes_, all by place.
void CpuOps::gate_up(const ExpertWeights& e) {
  const std::span<const PanelView> gate_up = e.gate_up, down = e.down;
  const PanelView& shape = gate_up[static_cast<size_t>(active_.front())];
  const PanelView& out_shape = down[static_cast<size_t>(active_.front())];
  const auto slots = row_at_.size();
  const int64_t width = padded(out_shape.cols);
  CARPOOL_CHECK(shape.rows == 2 * width);
  const size_t codes = QuantizedRow(out_shape.cols).bytes;
  if (hidden_.size() < slots * static_cast<size_t>(width)) hidden_.resize(slots * static_cast<size_t>(width));
  if (hidden_codes_.size() < (slots + 1) * codes) hidden_codes_.resize((slots + 1) * codes);
  const auto address = reinterpret_cast<uintptr_t>(hidden_codes_.data());
  std::byte* aligned = hidden_codes_.data() + ((address + 63) / 64 * 64 - address);
  slot_floats_.resize(slots);
  slot_quantized_.resize(slots);
  hidden_floats_.resize(slots);
  hidden_quantized_.resize(slots);
  for (size_t i = 0; i < slots; ++i) {
    const auto row = static_cast<size_t>(row_at_[i]);
    slot_floats_[i] = inputs_.floats[row];
    slot_quantized_[i] = inputs_.quantized.empty() ? nullptr : inputs_.quantized[row];
    hidden_floats_[i] = hidden_.data() + i * static_cast<size_t>(width);
    hidden_quantized_[i] = aligned + i * codes;
  }
  reserve_tiles(kRowsAtOnce * 2 * kHiddenTile);
  const auto tiles = static_cast<int>((width + kHiddenTile - 1) / kHiddenTile);
  const int tasks = tiles * static_cast<int>(active_.size()), threads = pool_.size();
  const PanelView& first_of_down = down[static_cast<size_t>(active_.front())];
  const double work = static_cast<double>(slots) * static_cast<double>(shape.rows) * static_cast<double>(shape.cols);
  run(tasks, work, [&](int task, int worker) {
    const auto first_panel = [&](int tile) {
      return gate_up[static_cast<size_t>(active_[static_cast<size_t>(tile / tiles)])].panel(tile % tiles * 2 *
                                                                                            kPairsPerTile);
    };
    const int tile = tile_of(task, tasks);
    const void* next = task + threads < tasks
                           ? first_panel(tile + 1)
                           : first_of_down.panel(share_begin(task % threads, first_of_down.panels()));
    gate_up_tile(e, static_cast<size_t>(tile / tiles), tile % tiles, next, worker);
  });
}

// From products of values [begin, end) of F, pairs of 16 gates and 16 ups, to hidden values; `pairs` is overwritten.
void CpuOps::activate(const ExpertWeights& e, int expert, int64_t begin, int64_t end, float* pairs,
                      float* hidden) const {
  if (!e.gate_up_bias.empty()) {
    const auto width = static_cast<int64_t>(e.gate_up_bias.size() / e.gate_up.size());
    kernels_.axpy(1.0f, e.gate_up_bias.data() + expert * width + 2 * begin, pairs, static_cast<int>(2 * (end - begin)));
  }
  for (int64_t n = begin; n < end; n += kPanelRows) {
    float* pair = pairs + 2 * (n - begin);
    if (e.activation == Activation::kSilu) {
      kernels_.silu_mul(pair, pair + kPanelRows, hidden + n, kPanelRows);
    } else {
      clamped_swiglu(pair, pair + kPanelRows, e.limit, hidden + n);
    }
  }
}

void CpuOps::gate_up_tile(const ExpertWeights& e, size_t part, int64_t tile, const void* next, int worker) {
  const int expert = active_[part];
  const PanelView &w = e.gate_up[static_cast<size_t>(expert)], &down = e.down[static_cast<size_t>(expert)];
  Worker& mine = workers_[static_cast<size_t>(worker)];
  const int64_t width = w.rows / 2;
  const int64_t begin = tile * kHiddenTile, end = std::min(begin + kHiddenTile, width);
  const Tile panels{&w, 2 * begin / kPanelRows, 2 * end / kPanelRows};
  const auto row_floats = static_cast<size_t>(2 * (end - begin));
  for (size_t i = 0; i < kRowsAtOnce; ++i) mine.outputs[i] = mine.tile.data() + i * row_floats;
  const auto last = static_cast<size_t>(first_[part + 1]);
  for (auto at = static_cast<size_t>(first_[part]); at < last; at += kRowsAtOnce) {
    const int rows = static_cast<int>(std::min<size_t>(kRowsAtOnce, last - at));
    const auto& x = quantizes(w) ? slot_quantized_ : slot_floats_;
    product(panels, &x[at], rows, mine.outputs.data(), next);
    for (size_t i = 0; i < static_cast<size_t>(rows); ++i) {
      float* hidden = hidden_.data() + (at + i) * static_cast<size_t>(width);
      activate(e, expert, begin, end, mine.outputs[i], hidden);
      if (quantizes(down)) {
        auto* codes = static_cast<std::byte*>(const_cast<void*>(hidden_quantized_[at + i]));
        kernels_.quantize(hidden, down.cols, tile, tile + 1, codes);
      }
    }
  }
}

// Where a share of so many panels is cut: into pieces that get shorter, so that they are long and yet nobody waits long
// for the last. cuts_ are 0 and then the end of each piece.
void CpuOps::cut_share(int64_t share, int64_t smallest, int64_t largest) {
  cuts_.reserve(static_cast<size_t>(share / smallest + 2));
  cuts_.assign(1, 0);
  while (cuts_.back() < share) {
    const int64_t left = share - cuts_.back();
    const int64_t size = std::max(smallest, std::min((left + 3) / 4 * 2, largest));  // half of it, even
    cuts_.push_back(cuts_.back() + std::min(left, size));
  }
}

void CpuOps::down(const ExpertWeights& e, Matrix out) {
  const std::span<const PanelView> down = e.down;
  const PanelView& shape = down[static_cast<size_t>(active_.front())];
  CARPOOL_CHECK(shape.rows == out.cols);
  const int64_t panels = shape.panels(), threads = pool_.size();
  const int64_t share = (panels + threads - 1) / threads;  // of a thread, at most
  const int64_t smallest = std::min(even(share / kDownTilesPerShare), panels_in(kDownTileBytes, shape));
  const int rows = most_rows();
  const int64_t largest = even(kDownPanelRows / std::min(rows, kRowsAtOnce));
  cut_share(share, smallest, rows <= kRowsAtOnce ? largest : std::min(largest, panels_in(kDownTileBytesRead, shape)));
  reserve_tiles(kPanelRows * std::max(kDownPanelRows, kRowsAtOnce * smallest));
  const auto tasks = static_cast<int>(threads * static_cast<int64_t>(cuts_.size() - 1));
  const double work =
      static_cast<double>(row_at_.size()) * static_cast<double>(shape.rows) * static_cast<double>(shape.cols);
  run(tasks, work, [&](int task, int worker) {
    const int64_t begin = share_begin(task % threads, panels), end = share_begin(task % threads + 1, panels);
    const auto piece = static_cast<size_t>(task / threads);
    const PanelRange tile{begin + cuts_[piece], std::min(begin + cuts_[piece + 1], end)};
    if (tile.begin >= tile.end) return;
    const void* next = tile.end < end ? down[static_cast<size_t>(active_.front())].panel(tile.end) : nullptr;
    down_tile(e, tile, out, next, worker);
  });
}

// A tile of every active expert; `next` follows the last of them.
void CpuOps::down_tile(const ExpertWeights& e, PanelRange tile, Matrix out, const void* next, int worker) {
  const std::span<const PanelView> down = e.down;
  Worker& mine = workers_[static_cast<size_t>(worker)];
  const auto row_floats = static_cast<size_t>(kPanelRows * (tile.end - tile.begin));
  const int64_t first = kPanelRows * tile.begin;
  const int count = static_cast<int>(std::min<int64_t>(kPanelRows * tile.end, out.cols) - first);
  for (int t = 0; t < out.rows; ++t) std::fill_n(out.row(t) + first, count, 0.0f);
  for (size_t part = 0; part < active_.size(); ++part) {
    const PanelView& w = down[static_cast<size_t>(active_[part])];
    const void* following =
        part + 1 < active_.size() ? down[static_cast<size_t>(active_[part + 1])].panel(tile.begin) : next;
    const auto& x = quantizes(w) ? hidden_quantized_ : hidden_floats_;
    const auto last = static_cast<size_t>(first_[part + 1]);
    for (auto at = static_cast<size_t>(first_[part]); at < last; at += kRowsAtOnce) {
      const int rows = static_cast<int>(std::min<size_t>(kRowsAtOnce, last - at));
      for (size_t i = 0; i < static_cast<size_t>(rows); ++i) mine.outputs[i] = mine.tile.data() + i * row_floats;
      product({&w, tile.begin, tile.end}, &x[at], rows, mine.outputs.data(), following);
      for (size_t i = 0; i < static_cast<size_t>(rows); ++i) {
        if (!e.down_bias.empty()) {
          kernels_.axpy(1.0f, e.down_bias.data() + int64_t{active_[part]} * out.cols + first, mine.outputs[i], count);
        }
        kernels_.axpy(weight_at_[at + i], mine.outputs[i], out.row(row_at_[at + i]) + first, count);
      }
    }
  }
}

void CpuOps::experts(Matrix x, const ExpertWeights& e, const Selection& chosen, std::span<const float> weights,
                     Matrix out) {
  CARPOOL_CHECK(chosen.rows() == x.rows && out.rows == x.rows);
  CARPOOL_CHECK(weights.size() == static_cast<size_t>(chosen.size()));
  CARPOOL_CHECK(e.gate_up.size() == e.down.size());
  if (chosen.size() == 0) {
    for (int t = 0; t < out.rows; ++t) std::fill_n(out.row(t), out.cols, 0.0f);
    return;
  }
  group_by_expert(x, chosen, weights, static_cast<int>(e.gate_up.size()));
  take_inputs(x, quantizes(e.gate_up[static_cast<size_t>(active_.front())]), inputs_);
  gate_up(e);
  down(e, out);
}

void CpuOps::dense_mlp(Matrix x, const PanelView& gate_up_weights, const PanelView& down_weights, Matrix out) {
  CARPOOL_CHECK(x.cols == gate_up_weights.cols && out.cols == down_weights.rows && out.rows == x.rows);
  if (x.rows == 0) return;
  active_.assign(1, 0);
  first_.assign({0, x.rows});
  row_at_.resize(static_cast<size_t>(x.rows));
  weight_at_.assign(static_cast<size_t>(x.rows), 1.0f);
  for (int t = 0; t < x.rows; ++t) row_at_[static_cast<size_t>(t)] = t;
  take_inputs(x, quantizes(gate_up_weights), inputs_);
  const ExpertWeights e{{&gate_up_weights, 1}, {&down_weights, 1}};
  gate_up(e);
  down(e, out);
}

}  // namespace carpool
