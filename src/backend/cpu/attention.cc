// Keys and values into the paged cache, and causal attention out of it.
//
// Rows of one sequence at consecutive positions are cut into pieces of a few rows; a task is (piece, kv head) and
// serves all query heads of that kv head, so that keys and values are read once for all of them: one row in decode,
// several in a prompt. When that gives too few tasks for the threads and contexts are long, a task is one span of 512
// positions of it and a second job merges the spans. The order of all sums is a function of the row's position alone
// (kernels/attention.h), so none of this can be seen in the result. Does not know where blocks come from: that is
// model/kv_cache.
#include <algorithm>
#include <bit>
#include <cstring>

#include "backend/cpu/cpu_ops.h"
#include "base/error.h"

namespace carpool {
namespace {

constexpr int kPieceQueries = 64;              // of a task: float32 keys and values at 62 MB per GMAC, scratch in L2
constexpr size_t kMostRecordBytes = 64 << 20;  // of spans that are tasks of their own

// The first of `floats` at a multiple of 64 bytes; the vector has 16 more than needed.
float* aligned(std::vector<float>& floats) {
  const auto address = reinterpret_cast<uintptr_t>(floats.data());
  return floats.data() + ((address + 63) / 64 * 64 - address) / sizeof(float);
}

// Doubles, so that a growing context allocates a handful of times in its life.
void grow(std::vector<float>& floats, size_t n) {
  if (floats.size() < n + 16) floats.resize(std::bit_ceil(n + 16));
}

int spans_of(int last_position) { return last_position / kAttentionSpan + 1; }

}  // namespace

// One call of attention(), and the pieces of it.
struct CpuOps::AttentionJob {
  const AttentionShape& shape;
  const RowPlaces& places;
  Matrix q;
  KvLayer kv;
  Matrix out;
  int queries = 0;  // of the largest piece

  int heads() const { return shape.heads / shape.kv_heads; }
  size_t record() const { return attention_record(shape.head_dim); }
  int64_t column(int g) const { return static_cast<int64_t>(g) * heads() * shape.head_dim; }
  int first(const Piece& p) const { return places.position[static_cast<size_t>(p.row)]; }

  AttentionTile tile(const Piece& p, int g, float* scratch) const {
    AttentionTile t;
    t.q = q.row(p.row) + column(g);
    t.q_stride = q.stride;
    t.rows = p.rows;
    t.heads = heads();
    t.first = first(p);
    t.head_dim = shape.head_dim;
    t.scale = shape.scale;
    t.format = kv.block.format;
    t.blocks = places.block_table[static_cast<size_t>(p.row)];
    t.base = kv.at(0, g);
    t.block_stride = kv.stride();
    t.value_offset = kv.block.value_offset;
    t.scratch = scratch;
    return t;
  }
  // Adds span `span` of the piece, one record per query, to the totals of the rows that reach into it.
  void merge(const Kernels& kernels, const Piece& p, int span, float* totals, const float* records) const {
    for (int i = 0; i < p.rows * heads(); ++i) {
      if (first(p) + i / heads() < span * kAttentionSpan) continue;
      const size_t at = static_cast<size_t>(i) * record();
      kernels.attention.merge(totals + at, records + at, shape.head_dim);
    }
  }
  void finish(const Kernels& kernels, const Piece& p, int g, const float* totals) const {
    for (int i = 0; i < p.rows * heads(); ++i) {
      float* result = out.row(p.row + i / heads()) + column(g) + static_cast<int64_t>(i % heads()) * shape.head_dim;
      kernels.attention.finish(totals + static_cast<size_t>(i) * record(), result, shape.head_dim);
    }
  }
};

void CpuOps::store_kv(const AttentionShape& shape, const RowPlaces& places, Matrix q, Matrix k, Matrix v, KvLayer kv) {
  const int hd = shape.head_dim, groups = shape.kv_heads;
  CARPOOL_CHECK(groups > 0 && shape.heads % groups == 0 && kv.kv_heads == groups && kv.block.head_dim == hd);
  CARPOOL_CHECK(q.cols == shape.heads * hd && k.cols == groups * hd && v.cols == k.cols);
  CARPOOL_CHECK(places.position.size() == static_cast<size_t>(q.rows) && shape.rope.first + shape.rope.dims <= hd);
  const int per_group = shape.heads / groups, half = shape.rope.dims / 2;
  const auto finish_head = [&](float* head, std::span<const float> norm, int position) {
    if (!norm.empty()) kernels_.rms_norm(head, norm.data(), shape.norm_eps, head, hd);
    const int64_t angles = static_cast<int64_t>(position) * half;
    kernels_.attention.rotate(head, shape.rope.cos.data() + angles, shape.rope.sin.data() + angles, half);
  };
  // Kv heads of a row are cut apart when there are too few rows to go round.
  const int parts = q.rows >= 2 * pool_.size() ? 1 : std::min(groups, 2 * pool_.size());
  run(q.rows * parts, 8.0 * q.rows * (shape.heads + 2 * groups) * hd, [&](int task, int) {
    const int t = task / parts, part = task % parts;
    const int position = places.position[static_cast<size_t>(t)];
    if (position < 0) return;
    CARPOOL_CHECK((static_cast<size_t>(position) + 1) * static_cast<size_t>(half) <= shape.rope.cos.size());
    const int id = places.block_table[static_cast<size_t>(t)][position / kKvPositions];
    for (int g = groups * part / parts; g < groups * (part + 1) / parts; ++g) {
      const int64_t column = static_cast<int64_t>(g) * hd;
      for (int h = 0; h < per_group; ++h) finish_head(q.row(t) + column * per_group + h * hd, shape.q_norm, position);
      finish_head(k.row(t) + column, shape.k_norm, position);
      kv.block.store(kv.at(id, g), position % kKvPositions, k.row(t) + column, v.row(t) + column);
    }
  });
}

void CpuOps::cut_rows(const RowPlaces& places, int heads) {
  const int most = std::max(1, kPieceQueries / heads);
  pieces_.clear();
  for (size_t t = 0; t < places.position.size(); ++t) {
    const int position = places.position[t];
    if (position < 0) continue;
    if (!pieces_.empty()) {
      Piece& p = pieces_.back();
      const auto row = static_cast<size_t>(p.row);
      if (p.rows < most && row + static_cast<size_t>(p.rows) == t && places.block_table[row] == places.block_table[t] &&
          places.position[row] + p.rows == position) {
        ++p.rows;
        p.spans = spans_of(position);
        continue;
      }
    }
    pieces_.push_back({static_cast<int>(t), 1, spans_of(position), 0});
  }
  int units = 0;
  for (Piece& p : pieces_) {
    p.unit = units;
    units += p.spans;
  }
}

void CpuOps::attention_by_piece(const AttentionJob& job, double work) {
  const size_t records = static_cast<size_t>(job.queries) * job.record();
  const size_t each = (attention_scratch(job.queries, job.shape.head_dim) + 2 * records + 15) / 16 * 16;
  grow(attention_scratch_, each * workers_.size());
  float* scratch = aligned(attention_scratch_);
  const int pieces = static_cast<int>(pieces_.size());
  // All pieces of a kv head before the next one: those of one prompt read the same keys.
  run(pieces * job.shape.kv_heads, work, [&](int task, int worker) {
    const Piece& p = pieces_[static_cast<size_t>(task % pieces)];
    const int g = task / pieces;
    float* totals = scratch + static_cast<size_t>(worker) * each;
    float* later = totals + records;
    const AttentionTile tile = job.tile(p, g, later + records);
    kernels_.attention.span(tile, 0, totals);
    for (int s = 1; s < p.spans; ++s) {
      kernels_.attention.span(tile, s, later);
      job.merge(kernels_, p, s, totals, later);
    }
    job.finish(kernels_, p, g, totals);
  });
}

void CpuOps::attention_by_span(const AttentionJob& job, int spans, double work) {
  const size_t each = (attention_scratch(job.queries, job.shape.head_dim) + 15) / 16 * 16;
  const size_t unit = static_cast<size_t>(job.queries) * job.record();
  const int groups = job.shape.kv_heads;
  grow(attention_scratch_, each * workers_.size());
  grow(attention_records_, unit * static_cast<size_t>(spans) * static_cast<size_t>(groups));
  float* scratch = aligned(attention_scratch_);
  float* records = aligned(attention_records_);
  const auto record_at = [&](const Piece& p, int span, int g) {
    return records + static_cast<size_t>((p.unit + span) * groups + g) * unit;
  };
  run(spans * groups, work, [&](int task, int worker) {
    const int u = task / groups, g = task % groups;
    const auto after =
        std::upper_bound(pieces_.begin(), pieces_.end(), u, [](int value, const Piece& p) { return value < p.unit; });
    const Piece& p = *std::prev(after);
    const AttentionTile tile = job.tile(p, g, scratch + static_cast<size_t>(worker) * each);
    kernels_.attention.span(tile, u - p.unit, record_at(p, u - p.unit, g));
  });
  const int pieces = static_cast<int>(pieces_.size());
  run(pieces * groups, static_cast<double>(spans) * groups * static_cast<double>(unit), [&](int task, int) {
    const Piece& p = pieces_[static_cast<size_t>(task / groups)];
    const int g = task % groups;
    float* totals = record_at(p, 0, g);
    for (int s = 1; s < p.spans; ++s) job.merge(kernels_, p, s, totals, record_at(p, s, g));
    job.finish(kernels_, p, g, totals);
  });
}

void CpuOps::attention(const AttentionShape& shape, const RowPlaces& places, const PositionSets& chosen, Matrix q,
                       KvLayer kv, Matrix out) {
  CARPOOL_CHECK(chosen.empty() && shape.window == 0 && shape.sinks.empty() && !shape.rope.interleaved);
  CARPOOL_CHECK(shape.value_dim == shape.head_dim);
  const int hd = shape.head_dim, groups = shape.kv_heads;
  CARPOOL_CHECK(groups > 0 && shape.heads % groups == 0 && kv.kv_heads == groups && kv.block.head_dim == hd);
  CARPOOL_CHECK(q.cols == shape.heads * hd && out.cols == q.cols && out.rows == q.rows);
  CARPOOL_CHECK(places.position.size() == static_cast<size_t>(q.rows));
  double tokens = 0;
  for (int t = 0; t < q.rows; ++t) {
    const int position = places.position[static_cast<size_t>(t)];
    if (position < 0) std::fill_n(out.row(t), out.cols, 0.0f);
    tokens += position + 1;
  }
  AttentionJob job{shape, places, q, kv, out, 0};
  cut_rows(places, job.heads());
  if (pieces_.empty()) return;
  const double work = 2 * tokens * shape.heads * hd;
  const int spans = pieces_.back().unit + pieces_.back().spans;
  for (const Piece& p : pieces_) job.queries = std::max(job.queries, p.rows * job.heads());
  const size_t record_bytes = static_cast<size_t>(spans) * static_cast<size_t>(groups * job.queries) * job.record() * 4;
  const bool few = pieces_.size() * static_cast<size_t>(groups) < 2 * workers_.size();
  if (few && workers_.size() > 1 && spans > static_cast<int>(pieces_.size()) && record_bytes <= kMostRecordBytes) {
    attention_by_span(job, spans, work);
  } else {
    attention_by_piece(job, work);
  }
}

void CpuOps::choose_positions(const AttentionShape&, const RowPlaces&, Matrix, Matrix, KvLayer, int, PositionSets&) {
  CARPOOL_CHECK(false);
}

}  // namespace carpool
