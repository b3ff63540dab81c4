// Where each weight matrix goes in the one private copy of a model's weights, and how it gets there.
//
// Loading is two steps: families name every matrix (TensorReader), which adds it to a plan and gets a view whose data
// is an offset; then, when the sum is known and fits, fill() packs all of them into one buffer, in parallel, and
// place() turns offsets into addresses. The layout is a function of the model alone, so the filled buffer can be kept
// in a file and mapped the next time. Does not own the buffer.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "backend/ops.h"
#include "tensor/panels.h"

namespace carpool {

// A matrix whose rows are columns of what a file stores. The stored rows are `groups` matrices one after another; of
// each, `width` columns are taken, which `columns` names, and the results are stacked: [groups * width, stored.rows /
// groups]. Formats of one value per element keep their bits; others are decoded to float32.
struct TransposedView {
  WeightView stored = {};
  int64_t width = 0;
  int64_t groups = 1;
  RowMap columns = {};

  bool keeps_bits() const {
    return stored.format == Format::kF32 || stored.format == Format::kBF16 || stored.format == Format::kF16;
  }
  Format format() const { return keeps_bits() ? stored.format : Format::kF32; }
  int64_t rows() const { return groups * width; }
  int64_t cols() const { return stored.rows / groups; }
};

class PanelPlan {
 public:
  static constexpr size_t kAlignment = 64;  // of every matrix: a cache line

  // Each returns a view of what will be there; view.data is the offset until place().
  PanelView add(const WeightView& w);
  // Matrices of one shape and format whose panels alternate, rows padded to whole panels: gate and up of an expert.
  PanelView add_pair(const WeightView& even, const WeightView& odd);
  PanelView add(const TransposedView& w);
  PanelView add_pair(const TransposedView& even, const TransposedView& odd);
  // Float32, whatever the format of `w`: routers.
  PanelView add_f32(const WeightView& w);
  // Pseudo-random weights, a function of `seed`; mean 0, standard deviation near 1/sqrt(cols).
  PanelView add_random(Format format, int64_t rows, int64_t cols, uint64_t seed);

  size_t bytes() const { return bytes_; }
  // What the layout depends on, for the key of a cached copy: matrices in order, their formats and shapes.
  const std::string& layout() const { return layout_; }
  // Writes everything to base[0..bytes()). `progress`, if set, is called with the share of bytes done.
  void fill(std::byte* base, Ops& ops, const std::function<void(double)>& progress) const;

 private:
  struct Job {               // panels [begin, end) of a matrix, panel p to offset + p * stride
    const WeightView* from;  // of these two one is set, or neither: random
    const TransposedView* transposed;
    int64_t begin, end;
    size_t offset, stride;
    Format format;
    int64_t cols;
    uint64_t seed = 0;
  };
  PanelView reserve(Format format, int64_t rows, int64_t cols);
  PanelView reserve_pair(Format format, int64_t rows, int64_t cols);  // whose panels alternate
  static Job job_of(const PanelView& view, const WeightView* from, const TransposedView* transposed);
  static Job half_of(Job job, int half);  // the even or odd panels of a pair
  void add_jobs(Job job, int64_t panels);
  static void run(const Job& job, std::byte* base);

  std::vector<Job> jobs_;
  std::deque<WeightView> sources_;  // what jobs point to
  std::deque<TransposedView> transposed_;
  std::string layout_;
  size_t bytes_ = 0;
};

}  // namespace carpool
