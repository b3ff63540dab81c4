// SwiGLU blocks: the routed experts of a layer, and the dense block as the case of one expert for all rows.
//
// Slots (row, expert) are sorted by expert, so one read of an expert's weights serves all its rows. Three phases with a
// barrier between: hidden = silu(gate x) * (up x) by (expert, tile of F); slot_out = down hidden by (expert, tile of
// D); out = sum over a row's slots in ascending expert id. The order of every sum is fixed by the row itself.
#include <algorithm>

#include "backend/cpu/cpu_ops.h"
#include "base/error.h"

namespace carpool {
namespace {

double macs(const WeightView& w, int64_t slots) {
  return static_cast<double>(slots) * static_cast<double>(w.rows) * static_cast<double>(w.cols);
}

// [count] pointers to consecutive rows of `width` floats in `buffer`, which grows as needed.
template <class Pointer>
void lay_rows(std::vector<float>& buffer, std::vector<Pointer>& rows, int64_t count, int64_t width) {
  if (buffer.size() < static_cast<size_t>(count * width)) buffer.resize(static_cast<size_t>(count * width));
  rows.resize(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) rows[static_cast<size_t>(i)] = buffer.data() + i * width;
}

}  // namespace

// Counting sort of the slots by expert; a row's slots on one expert keep their order.
void CpuOps::group_by_expert(const Selection& chosen, int experts, Matrix x) {
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
  slot_at_.resize(slots);
  in_rows_.resize(slots);
  row_places_.resize(slots);
  for (int t = 0; t < chosen.rows(); ++t) {
    for (int slot = chosen.begin(t); slot < chosen.end(t); ++slot) {
      const int expert = chosen.experts()[static_cast<size_t>(slot)];
      const int at = cursor_[static_cast<size_t>(expert)]++;
      slot_at_[static_cast<size_t>(at)] = slot;
      in_rows_[static_cast<size_t>(at)] = x.row(t);
      row_places_[static_cast<size_t>(slot)] = at;
    }
    std::sort(row_places_.begin() + chosen.begin(t), row_places_.begin() + chosen.end(t));
  }
}

void CpuOps::gate_up(std::span<const WeightView> gate, std::span<const WeightView> up, int64_t slots) {
  const WeightView& shape = gate[static_cast<size_t>(active_.front())];
  lay_rows(hidden_, hidden_rows_, slots, shape.rows);
  lay_rows(up_, up_rows_, slots, shape.rows);
  const int parts = static_cast<int>(active_.size());
  const Tiles tiles = tiles_for(shape, parts);
  run(parts * tiles.count, 2 * macs(shape, slots), [&](int task, int) {
    const auto part = static_cast<size_t>(task / tiles.count);
    const auto expert = static_cast<size_t>(active_[part]);
    const int64_t begin = task % tiles.count * tiles.size, end = std::min(begin + tiles.size, shape.rows);
    const auto at = static_cast<size_t>(first_[part]);
    const int rows = first_[part + 1] - first_[part];
    const WeightView &g = gate[expert], &u = up[expert];
    kernels_.matmul[static_cast<size_t>(g.format)](&in_rows_[at], rows, g, begin, end, &hidden_rows_[at]);
    kernels_.matmul[static_cast<size_t>(u.format)](&in_rows_[at], rows, u, begin, end, &up_rows_[at]);
    for (size_t i = at; i < at + static_cast<size_t>(rows); ++i) {
      float* hidden = hidden_rows_[i] + begin;
      kernels_.silu_mul(hidden, up_rows_[i] + begin, hidden, static_cast<int>(end - begin));
    }
  });
}

// Reads hidden_rows_, writes slot_rows_, both by sorted place.
void CpuOps::down(std::span<const WeightView> down, int64_t slots) {
  const WeightView& shape = down[static_cast<size_t>(active_.front())];
  hidden_in_.assign(hidden_rows_.begin(), hidden_rows_.end());
  const int parts = static_cast<int>(active_.size());
  const Tiles tiles = tiles_for(shape, parts);
  run(parts * tiles.count, macs(shape, slots), [&](int task, int) {
    const auto part = static_cast<size_t>(task / tiles.count);
    const WeightView& w = down[static_cast<size_t>(active_[part])];
    const int64_t begin = task % tiles.count * tiles.size, end = std::min(begin + tiles.size, shape.rows);
    const auto at = static_cast<size_t>(first_[part]);
    kernels_.matmul[static_cast<size_t>(w.format)](&hidden_in_[at], first_[part + 1] - first_[part], w, begin, end,
                                                   &slot_rows_[at]);
  });
}

void CpuOps::experts(Matrix x, const ExpertWeights& e, const Selection& chosen, std::span<const float> weights,
                     Matrix out) {
  CARPOOL_CHECK(chosen.rows() == x.rows && out.rows == x.rows);
  CARPOOL_CHECK(weights.size() == static_cast<size_t>(chosen.size()));
  CARPOOL_CHECK(e.gate.size() == e.up.size() && e.gate.size() == e.down.size());
  const int64_t slots = chosen.size();
  if (slots > 0) {
    group_by_expert(chosen, static_cast<int>(e.gate.size()), x);
    gate_up(e.gate, e.up, slots);
    lay_rows(slot_out_, slot_rows_, slots, out.cols);
    down(e.down, slots);
  }
  run(out.rows, 2.0 * static_cast<double>(slots) * out.cols, [&](int t, int) {
    std::fill_n(out.row(t), out.cols, 0.0f);
    for (int i = chosen.begin(t); i < chosen.end(t); ++i) {
      const auto place = static_cast<size_t>(row_places_[static_cast<size_t>(i)]);
      kernels_.axpy(weights[static_cast<size_t>(slot_at_[place])], slot_rows_[place], out.row(t), out.cols);
    }
  });
}

void CpuOps::dense_mlp(Matrix x, const WeightView& gate, const WeightView& up, const WeightView& down_weight,
                       Matrix out) {
  CARPOOL_CHECK(x.cols == gate.cols && x.cols == up.cols && gate.rows == up.rows && gate.rows == down_weight.cols);
  CARPOOL_CHECK(out.cols == down_weight.rows && out.rows == x.rows);
  if (x.rows == 0) return;
  active_.assign(1, 0);
  first_.assign({0, x.rows});
  in_rows_.resize(static_cast<size_t>(x.rows));
  slot_rows_.resize(static_cast<size_t>(x.rows));
  for (int t = 0; t < x.rows; ++t) {
    in_rows_[static_cast<size_t>(t)] = x.row(t);
    slot_rows_[static_cast<size_t>(t)] = out.row(t);
  }
  gate_up({&gate, 1}, {&up, 1}, x.rows);
  down({&down_weight, 1}, x.rows);
}

}  // namespace carpool
