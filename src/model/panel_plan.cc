// Planning and packing; see panel_plan.h.
#include "model/panel_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace carpool {
namespace {

constexpr int64_t kPanelsPerJob = 64;
constexpr size_t kJobsAtOnce = 512;  // between two reports of progress

// Panel `p` of a matrix in float32, scale included.
void pack_as_f32(const WeightView& w, int64_t p, std::byte* out) {
  const int64_t first = p * kPanelRows, rows = std::min<int64_t>(kPanelRows, w.rows - first);
  std::vector<float> values(static_cast<size_t>(rows * w.cols));
  for (int64_t r = 0; r < rows; ++r) decode_row(w, first + r, values.data() + r * w.cols);
  code(Format::kF32).pack_panel({Format::kF32, values.data(), rows, w.cols}, 0, out);
}

}  // namespace

PanelView PanelPlan::reserve(Format format, int64_t rows, int64_t cols) {
  PanelView view;
  view.format = format;
  view.rows = rows;
  view.cols = cols;
  bytes_ = (bytes_ + kAlignment - 1) / kAlignment * kAlignment;
  view.data = reinterpret_cast<const std::byte*>(bytes_);
  bytes_ += view.bytes();
  layout_ += fmt::format("{} {}x{};", info(format).name, rows, cols);
  return view;
}

void PanelPlan::add_jobs(const WeightView* from, const PanelView& shape, int64_t panels, size_t offset, size_t stride,
                         uint64_t seed) {
  for (int64_t begin = 0; begin < panels; begin += kPanelsPerJob) {
    jobs_.push_back(
        {from, begin, std::min(begin + kPanelsPerJob, panels), offset, stride, shape.format, shape.cols, seed});
  }
}

PanelView PanelPlan::add(const WeightView& w) {
  PanelView view = reserve(w.format, w.rows, w.cols);
  view.scale[0] = view.scale[1] = w.scale;
  sources_.push_back(w);
  add_jobs(&sources_.back(), view, view.panels(), reinterpret_cast<size_t>(view.data), view.panel_bytes(), 0);
  return view;
}

PanelView PanelPlan::add_pair(const WeightView& even, const WeightView& odd) {
  CARPOOL_CHECK(even.format == odd.format && even.rows == odd.rows && even.cols == odd.cols);
  const int64_t padded = (even.rows + kPanelRows - 1) / kPanelRows * kPanelRows;
  PanelView view = reserve(even.format, 2 * padded, even.cols);
  view.scale[0] = even.scale;
  view.scale[1] = odd.scale;
  const size_t panel = view.panel_bytes(), offset = reinterpret_cast<size_t>(view.data);
  sources_.push_back(even);
  add_jobs(&sources_.back(), view, view.panels() / 2, offset, 2 * panel, 0);
  sources_.push_back(odd);
  add_jobs(&sources_.back(), view, view.panels() / 2, offset + panel, 2 * panel, 0);
  return view;
}

PanelView PanelPlan::add_f32(const WeightView& w) {
  PanelView view = reserve(Format::kF32, w.rows, w.cols);
  if (w.format == Format::kF32) view.scale[0] = view.scale[1] = w.scale;  // other formats are decoded with theirs
  sources_.push_back(w);
  add_jobs(&sources_.back(), view, view.panels(), reinterpret_cast<size_t>(view.data), view.panel_bytes(), 0);
  return view;
}

PanelView PanelPlan::add_random(Format format, int64_t rows, int64_t cols, uint64_t seed) {
  const PanelView view = reserve(format, rows, cols);
  add_jobs(nullptr, view, view.panels(), reinterpret_cast<size_t>(view.data), view.panel_bytes(), seed);
  return view;
}

void PanelPlan::fill(std::byte* base, Ops& ops, const std::function<void(double)>& progress) const {
  for (size_t at = 0; at < jobs_.size(); at += kJobsAtOnce) {
    const size_t count = std::min(kJobsAtOnce, jobs_.size() - at);
    ops.parallel(static_cast<int>(count), [&](int i, int) {
      const Job& job = jobs_[at + static_cast<size_t>(i)];
      for (int64_t p = job.begin; p < job.end; ++p) {
        std::byte* out = base + job.offset + static_cast<size_t>(p) * job.stride;
        if (job.from && job.from->format != job.format) {
          pack_as_f32(*job.from, p, out);
        } else if (job.from) {
          code(job.format).pack_panel(*job.from, p, out);
        } else {
          code(job.format).random_panel(job.cols, job.seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(p), out);
        }
      }
    });
    if (progress) progress(static_cast<double>(at + count) / static_cast<double>(jobs_.size()));
  }
}

}  // namespace carpool
