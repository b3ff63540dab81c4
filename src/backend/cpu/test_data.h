// Random matrices, weights and back ends for the tests of this folder; only tests include it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <ostream>
#include <random>
#include <vector>

#include "backend/ops.h"

namespace carpool::test {

// Made by the test program so far; counted in experts_test.cc.
extern std::atomic<int64_t> allocations;

inline constexpr double kUnit = 0x1p-24;  // half an ulp of float32 at 1

// Bound of the rounding error of a sum of n products whose absolute values add up to `absolute`, for kernels that sum
// in four chains; see kernels/panels_test.cc.
inline double sum_bound(int64_t n, double absolute) {
  return (static_cast<double>(n / 4) + 8) * kUnit * 1.01 * absolute;
}

inline std::vector<Format> all_formats() {
  std::vector<Format> all;
  for (int f = 0; f < kFormatCount; ++f) all.push_back(static_cast<Format>(f));
  return all;
}

// Columns of a test's matrix: `ragged` where the format has no blocks, else the smaller of the two that its blocks fit.
inline int fitting_columns(Format format, int ragged, int small_blocks, int large_blocks) {
  const int block = info(format).block_elements;
  if (block == 1) return ragged;
  return small_blocks % block == 0 ? small_blocks : large_blocks;
}

inline std::vector<float> random_values(size_t n, uint32_t seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

// A matrix that owns its rows, with `gap` floats between them.
struct Rows {
  Rows(int rows_in, int cols_in, uint32_t seed, int gap = 0)
      : rows(rows_in),
        cols(cols_in),
        stride(cols_in + gap),
        data(random_values(static_cast<size_t>(rows_in) * static_cast<size_t>(cols_in + gap), seed)) {}
  Matrix matrix() { return {data.data(), rows, cols, stride}; }
  Matrix slice(int first, int count) {
    return {data.data() + static_cast<int64_t>(first) * stride, count, cols, stride};
  }
  const float* row(int r) const { return data.data() + static_cast<int64_t>(r) * stride; }
  float at(int r, int64_t c) const { return row(r)[c]; }

  int rows, cols;
  int64_t stride;
  std::vector<float> data;
};

// A weight matrix of any format at an odd byte address, the same values as float32, and as panels.
struct Weight {
  Weight(Format format, int rows, int cols, uint32_t seed)
      : decoded(random_values(static_cast<size_t>(rows) * static_cast<size_t>(cols), seed,
                              1.0f / std::sqrt(static_cast<float>(cols)))) {
    view = {format, nullptr, rows, cols};
    bytes.resize(1 + view.bytes());
    view.data = bytes.data() + 1;
    for (int r = 0; r < rows; ++r) {
      float* values = decoded.data() + static_cast<size_t>(r) * static_cast<size_t>(cols);
      encode_row(format, values, cols, const_cast<void*>(view.row(r)));
      decode_row(view, r, values);
    }
    panels = {format, nullptr, rows, cols};
    panel_bytes.resize(panels.bytes());
    panels.data = panel_bytes.data();
    for (int64_t p = 0; p < panels.panels(); ++p) code(format).pack_panel(view, p, panel(p));
  }
  Weight(const Weight&) = delete;
  Weight(Weight&&) = default;
  float at(int64_t r, int64_t c) const { return decoded[static_cast<size_t>(r * view.cols + c)]; }
  std::byte* panel(int64_t p) { return panel_bytes.data() + static_cast<size_t>(p) * panels.panel_bytes(); }

  std::vector<float> decoded;
  std::vector<unsigned char> bytes;
  std::vector<std::byte> panel_bytes;
  WeightView view;
  PanelView panels;
};

// Gate and up of one expert as the back end takes them: one matrix of alternating panels.
struct GateUp {
  GateUp(Weight& gate, Weight& up) : panels(gate.panels) {
    panels.rows = 2 * kPanelRows * gate.panels.panels();
    for (int64_t p = 0; p < gate.panels.panels(); ++p) {
      for (Weight* w : {&gate, &up}) bytes.insert(bytes.end(), w->panel(p), w->panel(p) + w->panels.panel_bytes());
    }
    panels.data = bytes.data();
  }
  GateUp(const GateUp&) = delete;
  GateUp(GateUp&&) = default;

  std::vector<std::byte> bytes;
  PanelView panels;
};

inline void multiply(Ops& ops, Matrix x, const Weight& w, Matrix out) {
  const Product product{&w.panels, out};
  ops.matmul(x, {&product, 1});
}

inline bool same_bits(const float* a, const float* b, int64_t n) {
  return std::memcmp(a, b, static_cast<size_t>(n) * sizeof(float)) == 0;
}

// Every table of this machine with 1, 2 and 3 threads; the first one is the reference within a table.
struct Backend {
  std::string isa;
  int threads;
};

inline std::vector<Backend> all_backends() {
  std::vector<Backend> all;
  for (const std::string& isa : cpu_isa_names()) {
    for (const int threads : {1, 2, 3}) all.push_back({isa, threads});
  }
  return all;
}

inline void PrintTo(const Backend& b, std::ostream* out) { *out << b.isa << " with " << b.threads << " threads"; }

inline std::string backend_name(const Backend& b) { return b.isa + "_" + std::to_string(b.threads); }

}  // namespace carpool::test
