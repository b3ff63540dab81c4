// Planning and packing; see panel_plan.h.
#include "model/panel_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

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

// Rows [begin, end) of a transposed matrix, elements as in its format(): each stored row is read once, and the columns
// that are wanted become a column of the result.
std::vector<std::byte> transposed_rows(const TransposedView& w, int64_t begin, int64_t end) {
  const auto element = static_cast<size_t>(info(w.format()).block_bytes);
  const auto cols = static_cast<size_t>(w.cols());
  std::vector<std::byte> out(static_cast<size_t>(end - begin) * cols * element);
  std::vector<float> decoded(w.keeps_bits() ? 0 : static_cast<size_t>(w.stored.cols));
  for (int64_t group = begin / w.width; group * w.width < end; ++group) {
    const int64_t from = std::max(begin, group * w.width), to = std::min(end, (group + 1) * w.width);
    for (size_t c = 0; c < cols; ++c) {
      const int64_t stored = group * w.cols() + static_cast<int64_t>(c);
      const void* row = w.keeps_bits() ? w.stored.row(stored) : decoded.data();
      if (!w.keeps_bits()) decode_row(w.stored, stored, decoded.data());
      for (int64_t r = from; r < to; ++r) {
        const auto column = static_cast<size_t>(w.columns(r - group * w.width));
        std::memcpy(out.data() + (static_cast<size_t>(r - begin) * cols + c) * element,
                    static_cast<const std::byte*>(row) + column * element, element);
      }
    }
  }
  return out;
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

PanelView PanelPlan::reserve_pair(Format format, int64_t rows, int64_t cols) {
  return reserve(format, 2 * ((rows + kPanelRows - 1) / kPanelRows * kPanelRows), cols);
}

void PanelPlan::add_jobs(Job job, int64_t panels) {
  for (int64_t begin = 0; begin < panels; begin += kPanelsPerJob) {
    job.begin = begin;
    job.end = std::min(begin + kPanelsPerJob, panels);
    jobs_.push_back(job);
  }
}

PanelView PanelPlan::add(const WeightView& w) {
  PanelView view = reserve(w.format, w.rows, w.cols);
  view.scale[0] = view.scale[1] = w.scale;
  sources_.push_back(w);
  add_jobs(job_of(view, &sources_.back(), nullptr), view.panels());
  return view;
}

PanelView PanelPlan::add(const TransposedView& w) {
  PanelView view = reserve(w.format(), w.rows(), w.cols());
  if (w.keeps_bits()) view.scale[0] = view.scale[1] = w.stored.scale;  // others are decoded with theirs
  transposed_.push_back(w);
  add_jobs(job_of(view, nullptr, &transposed_.back()), view.panels());
  return view;
}

PanelView PanelPlan::add_pair(const WeightView& even, const WeightView& odd) {
  CARPOOL_CHECK(even.format == odd.format && even.rows == odd.rows && even.cols == odd.cols);
  PanelView view = reserve_pair(even.format, even.rows, even.cols);
  for (int half = 0; half < 2; ++half) {
    const WeightView& w = half ? odd : even;
    view.scale[half] = w.scale;
    sources_.push_back(w);
    add_jobs(half_of(job_of(view, &sources_.back(), nullptr), half), view.panels() / 2);
  }
  return view;
}

PanelView PanelPlan::add_pair(const TransposedView& even, const TransposedView& odd) {
  CARPOOL_CHECK(even.format() == odd.format() && even.rows() == odd.rows() && even.cols() == odd.cols());
  PanelView view = reserve_pair(even.format(), even.rows(), even.cols());
  for (int half = 0; half < 2; ++half) {
    const TransposedView& w = half ? odd : even;
    if (w.keeps_bits()) view.scale[half] = w.stored.scale;
    transposed_.push_back(w);
    add_jobs(half_of(job_of(view, nullptr, &transposed_.back()), half), view.panels() / 2);
  }
  return view;
}

PanelView PanelPlan::add_f32(const WeightView& w) {
  PanelView view = reserve(Format::kF32, w.rows, w.cols);
  if (w.format == Format::kF32) view.scale[0] = view.scale[1] = w.scale;  // other formats are decoded with theirs
  sources_.push_back(w);
  add_jobs(job_of(view, &sources_.back(), nullptr), view.panels());
  return view;
}

PanelView PanelPlan::add_random(Format format, int64_t rows, int64_t cols, uint64_t seed) {
  const PanelView view = reserve(format, rows, cols);
  Job job = job_of(view, nullptr, nullptr);
  job.seed = seed;
  add_jobs(job, view.panels());
  return view;
}

PanelPlan::Job PanelPlan::job_of(const PanelView& view, const WeightView* from, const TransposedView* transposed) {
  return {from, transposed, 0, 0, reinterpret_cast<size_t>(view.data), view.panel_bytes(), view.format, view.cols};
}

PanelPlan::Job PanelPlan::half_of(Job job, int half) {
  job.offset += static_cast<size_t>(half) * job.stride;
  job.stride *= 2;
  return job;
}

void PanelPlan::run(const Job& job, std::byte* base) {
  std::vector<std::byte> rows;
  WeightView held;  // of a transposed matrix, the rows of this job
  if (const TransposedView* t = job.transposed) {
    const int64_t first = job.begin * kPanelRows, end = std::min(job.end * kPanelRows, t->rows());
    rows = transposed_rows(*t, first, end);
    held = {job.format, rows.data(), end - first, job.cols};
  }
  for (int64_t p = job.begin; p < job.end; ++p) {
    std::byte* out = base + job.offset + static_cast<size_t>(p) * job.stride;
    if (job.transposed) {
      code(job.format).pack_panel(held, p - job.begin, out);
    } else if (job.from && job.from->format != job.format) {
      pack_as_f32(*job.from, p, out);
    } else if (job.from) {
      code(job.format).pack_panel(*job.from, p, out);
    } else {
      code(job.format).random_panel(job.cols, job.seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(p), out);
    }
  }
}

void PanelPlan::fill(std::byte* base, Ops& ops, const std::function<void(double)>& progress) const {
  for (size_t at = 0; at < jobs_.size(); at += kJobsAtOnce) {
    const size_t count = std::min(kJobsAtOnce, jobs_.size() - at);
    ops.parallel(static_cast<int>(count), [&](int i, int) { run(jobs_[at + static_cast<size_t>(i)], base); });
    if (progress) progress(static_cast<double>(at + count) / static_cast<double>(jobs_.size()));
  }
}

}  // namespace carpool
