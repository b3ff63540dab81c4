// Keys and values into the paged cache, and causal attention out of it.
//
// Rows of one sequence at consecutive positions are cut into pieces of a few rows; a task is (piece, group of heads)
// and serves all query heads of a kv head, so that keys and values are read once for all of them: one row in decode,
// several in a prompt. When that gives too few tasks for the threads and contexts are long, a task is one span of 512
// positions of it and a second job merges the spans; the heads of a kv head are parted when that still gives too few.
// A row that attends to chosen positions alone is a piece of its own: what the cache holds of them is copied, span by
// span, into blocks where they are neighbours, and they are attended to as if they were all there is. The order of all
// sums is a function of the row's position alone (kernels/attention.h), so none of this can be seen in the result. Does
// not know where blocks come from: that is model/kv_cache. Which positions are chosen: indexer.cc.
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/scratch.h"
#include "base/error.h"

namespace carpool {
namespace {

constexpr int kPieceQueries = 64;              // of a task: float32 keys and values at 62 MB per GMAC, scratch in L2
constexpr int kLeastHeads = 8;                 // of a kv head that are worth a task of their own
constexpr size_t kMostRecordBytes = 64 << 20;  // of spans that are tasks of their own
constexpr int kSpanBlocks = kAttentionSpan / kKvPositions;

constexpr std::array<int, kSpanBlocks> kGatheredBlocks = [] {
  std::array<int, kSpanBlocks> ids{};
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}();

// The first position that a window leaves of those up to `position`.
int first_seen(int position, int window) { return window == 0 ? 0 : std::max(0, position - window + 1); }

}  // namespace

// One call of attention(), and the pieces of it.
struct CpuOps::AttentionJob {
  const AttentionShape& shape;
  const RowPlaces& places;
  const PositionSets& chosen;
  Matrix q;
  KvLayer kv;
  Matrix out;
  int queries = 0;       // of the largest piece
  bool gathers = false;  // some piece has chosen positions
  int parts = 1;         // of the heads of a kv head; divides them

  int groups() const { return shape.kv_heads * parts; }
  int heads() const { return shape.heads / groups(); }  // of a group
  size_t record() const { return attention_record(shape.value_dim); }
  int position(int row) const { return places.position[static_cast<size_t>(row)]; }
  // Positions that the row attends to as if there were no others; the rest of a piece's rows follow its first one.
  int last(const Piece& p) const { return p.chosen == 0 ? position(p.row) + p.rows - 1 : p.chosen - 1; }
  size_t record_floats() const { return static_cast<size_t>(queries) * record(); }
  size_t gather_floats() const { return gathers ? kSpanBlocks * kv.block.bytes / sizeof(float) : 0; }
  size_t scratch_floats() const { return attention_scratch(queries, shape.head_dim, shape.value_dim); }

  AttentionTile tile(const Piece& p, int group) const {
    AttentionTile t;
    t.q = q.row(p.row) + static_cast<int64_t>(group) * heads() * shape.head_dim;
    t.q_stride = q.stride;
    t.rows = p.rows;
    t.heads = heads();
    t.first = position(p.row);
    t.window = shape.window;
    t.head_dim = shape.head_dim;
    t.value_dim = shape.value_dim;
    t.values_in_keys = kv.block.values_in_keys;
    t.scale = shape.scale;
    t.format = kv.block.format;
    t.blocks = places.block_table[static_cast<size_t>(p.row)];
    t.base = kv.at(0, group / parts);
    t.block_stride = kv.stride();
    t.value_offset = kv.block.value_offset;
    return t;
  }
  // Copies the piece's chosen positions [begin, end) into neighbouring slots.
  void gather(const Piece& p, int group, int begin, int end, std::byte* to) const {
    const std::span<const int> list = chosen.row(p.row).subspan(static_cast<size_t>(begin));
    const int* blocks = places.block_table[static_cast<size_t>(p.row)];
    for (int i = 0; i < end - begin;) {
      const int at = list[static_cast<size_t>(i)], slot = i % kKvPositions;
      const std::byte* from = kv.at(blocks[at / kKvPositions], group / parts);
      std::byte* block = to + static_cast<size_t>(i / kKvPositions) * kv.block.bytes;
      const bool whole = at % kKvPositions == 0 && slot == 0 && i + kKvPositions <= end - begin &&
                         list[static_cast<size_t>(i + kKvPositions - 1)] == at + kKvPositions - 1;
      if (whole) {
        std::memcpy(block, from, kv.block.bytes);
        i += kKvPositions;
      } else {
        kv.block.copy(from, at % kKvPositions, block, slot);
        ++i;
      }
    }
  }
  // Span `span` of the piece into records; `scratch` is gather_floats() and scratch_floats().
  void span(const Kernels& kernels, const Piece& p, int group, int span, float* scratch, float* records) const {
    AttentionTile t = tile(p, group);
    t.scratch = scratch + gather_floats();
    if (p.chosen == 0) {
      kernels.attention.span(t, span, records);
      return;
    }
    const int start = span * kAttentionSpan, end = std::min(p.chosen - start, kAttentionSpan);
    const int begin = std::max(0, p.unseen - start);
    auto* gathered = reinterpret_cast<std::byte*>(scratch);
    const int block = begin / kKvPositions;
    gather(p, group, start + block * kKvPositions, start + end, gathered + static_cast<size_t>(block) * kv.block.bytes);
    t.first = end - 1;
    t.window = end - begin;
    t.blocks = kGatheredBlocks.data();
    t.base = gathered;
    t.block_stride = kv.block.bytes;
    kernels.attention.span(t, 0, records);
  }
  // Adds span `span` of the piece, one record per query, to the totals of the rows that see some of it.
  void merge(const Kernels& kernels, const Piece& p, int span, float* totals, const float* records) const {
    for (int i = 0; i < p.rows * heads(); ++i) {
      const size_t at = static_cast<size_t>(i) * record();
      const int own = last(p) - p.rows + 1 + i / heads();
      const int begin = p.chosen == 0 ? first_seen(own, shape.window) : p.unseen;
      if (span * kAttentionSpan > own || begin / kAttentionSpan > span) continue;
      if (begin / kAttentionSpan == span) {
        std::copy_n(records + at, record(), totals + at);
      } else {
        kernels.attention.merge(totals + at, records + at, shape.value_dim);
      }
    }
  }
  void finish(const Kernels& kernels, const Piece& p, int group, const float* totals) const {
    for (int i = 0; i < p.rows * heads(); ++i) {
      const int64_t head = static_cast<int64_t>(group) * heads() + i % heads();
      const float* sink = shape.sinks.empty() ? nullptr : &shape.sinks[static_cast<size_t>(head)];
      kernels.attention.finish(totals + static_cast<size_t>(i) * record(), sink,
                               out.row(p.row + i / heads()) + head * shape.value_dim, shape.value_dim);
    }
  }
};

void CpuOps::store_kv(const AttentionShape& shape, const RowPlaces& places, Matrix q, Matrix k, Matrix v, KvLayer kv) {
  const int hd = shape.head_dim, groups = shape.kv_heads;
  const RopeTable& rope = shape.rope;
  const bool values = kv.block.has_values();
  CARPOOL_CHECK(groups > 0 && shape.heads % groups == 0 && kv.kv_heads == groups && kv.block.head_dim == hd);
  CARPOOL_CHECK(q.cols == shape.heads * hd && k.cols == groups * hd && kv.block.value_dim == shape.value_dim);
  CARPOOL_CHECK(!values || v.cols == groups * shape.value_dim);
  CARPOOL_CHECK(places.position.size() == static_cast<size_t>(q.rows) && rope.first + rope.dims <= hd);
  const int per_group = shape.heads / groups, half = rope.dims / 2;
  const auto rotate = rope.interleaved ? kernels_.attention.rotate_pairs : kernels_.attention.rotate;
  const auto finish_head = [&](float* head, std::span<const float> norm, int position) {
    if (!norm.empty()) kernels_.rms_norm(head, norm.data(), shape.norm_eps, head, hd);
    const int64_t angles = static_cast<int64_t>(position) * half;
    rotate(head + rope.first, rope.cos.data() + angles, rope.sin.data() + angles, half);
  };
  // Kv heads of a row are cut apart when there are too few rows to go round.
  const int parts = q.rows >= 2 * pool_.size() ? 1 : std::min(groups, 2 * pool_.size());
  run(q.rows * parts, 8.0 * q.rows * (shape.heads + 2 * groups) * hd, [&](int task, int) {
    const int t = task / parts, part = task % parts;
    const int position = places.position[static_cast<size_t>(t)];
    if (position < 0) return;
    CARPOOL_CHECK((static_cast<size_t>(position) + 1) * static_cast<size_t>(half) <= rope.cos.size());
    const int id = places.block_table[static_cast<size_t>(t)][position / kKvPositions];
    for (int g = groups * part / parts; g < groups * (part + 1) / parts; ++g) {
      const int64_t column = static_cast<int64_t>(g) * hd;
      for (int h = 0; h < per_group; ++h) finish_head(q.row(t) + column * per_group + h * hd, shape.q_norm, position);
      finish_head(k.row(t) + column, shape.k_norm, position);
      const float* value = values ? v.row(t) + static_cast<int64_t>(g) * shape.value_dim : nullptr;
      kv.block.store(kv.at(id, g), position % kKvPositions, k.row(t) + column, value);
    }
  });
}

bool CpuOps::extend_piece(const RowPlaces& places, int t, int most) {
  if (pieces_.empty()) return false;
  Piece& p = pieces_.back();
  const auto row = static_cast<size_t>(p.row), next = static_cast<size_t>(t);
  const int position = places.position[next];
  if (p.chosen != 0 || p.rows == most || p.row + p.rows != t || places.block_table[row] != places.block_table[next] ||
      places.position[row] + p.rows != position) {
    return false;
  }
  ++p.rows;
  p.end = position / kAttentionSpan + 1;
  return true;
}

int CpuOps::number_pieces() {
  int units = 0;
  for (Piece& p : pieces_) {
    p.unit = units;
    units += p.end - p.begin;
  }
  return units;
}

// Zeroes the rows that see nothing, and returns the spans of the others' pieces.
int CpuOps::cut_rows(const AttentionJob& job) {
  const int most = std::max(1, kPieceQueries / job.heads());
  pieces_.clear();
  for (int t = 0; t < job.q.rows; ++t) {
    const std::span<const int> list = job.chosen.empty() ? std::span<const int>() : job.chosen.row(t);
    const int position = job.position(t);
    Piece p{.row = t, .rows = 1, .chosen = static_cast<int>(list.size()), .unseen = 0, .begin = 0, .end = 0, .unit = 0};
    p.unseen = first_seen(position, job.shape.window);
    if (p.chosen > 0) {
      CARPOOL_CHECK(list.front() >= 0 && list.back() <= position);
      p.unseen = static_cast<int>(std::lower_bound(list.begin(), list.end(), p.unseen) - list.begin());
    }
    const int last = p.chosen > 0 ? p.chosen - 1 : position;
    if (last < p.unseen) {
      std::fill_n(job.out.row(t), job.out.cols, 0.0f);
      continue;
    }
    if (p.chosen == 0 && extend_piece(job.places, t, most)) continue;
    p.begin = p.unseen / kAttentionSpan;
    p.end = last / kAttentionSpan + 1;
    pieces_.push_back(p);
  }
  return number_pieces();
}

void CpuOps::attention_by_piece(const AttentionJob& job, double work) {
  const size_t records = job.record_floats();
  const size_t each = (job.gather_floats() + job.scratch_floats() + 2 * records + 15) / 16 * 16;
  grow(attention_scratch_, each * workers_.size());
  float* scratch = aligned(attention_scratch_);
  const int pieces = static_cast<int>(pieces_.size());
  // All pieces of a kv head before the next one: those of one prompt read the same keys.
  run(pieces * job.groups(), work, [&](int task, int worker) {
    const Piece& p = pieces_[static_cast<size_t>(task % pieces)];
    const int g = task / pieces;
    float* totals = scratch + static_cast<size_t>(worker) * each;
    float* later = totals + records;
    job.span(kernels_, p, g, p.begin, later + records, totals);
    for (int s = p.begin + 1; s < p.end; ++s) {
      job.span(kernels_, p, g, s, later + records, later);
      job.merge(kernels_, p, s, totals, later);
    }
    job.finish(kernels_, p, g, totals);
  });
}

void CpuOps::attention_by_span(const AttentionJob& job, int spans, double work) {
  const size_t each = (job.gather_floats() + job.scratch_floats() + 15) / 16 * 16;
  const size_t unit = job.record_floats();
  const int groups = job.groups();
  grow(attention_scratch_, each * workers_.size());
  grow(attention_records_, unit * static_cast<size_t>(spans) * static_cast<size_t>(groups));
  float* scratch = aligned(attention_scratch_);
  float* records = aligned(attention_records_);
  const auto record_at = [&](const Piece& p, int span, int g) {
    return records + static_cast<size_t>((p.unit + span - p.begin) * groups + g) * unit;
  };
  run(spans * groups, work, [&](int task, int worker) {
    const int u = task / groups, g = task % groups;
    const auto after =
        std::upper_bound(pieces_.begin(), pieces_.end(), u, [](int value, const Piece& p) { return value < p.unit; });
    const Piece& p = *std::prev(after);
    const int span = p.begin + u - p.unit;
    job.span(kernels_, p, g, span, scratch + static_cast<size_t>(worker) * each, record_at(p, span, g));
  });
  const int pieces = static_cast<int>(pieces_.size());
  run(pieces * groups, static_cast<double>(spans) * groups * static_cast<double>(unit), [&](int task, int) {
    const Piece& p = pieces_[static_cast<size_t>(task / groups)];
    const int g = task % groups;
    float* totals = record_at(p, p.begin, g);
    for (int s = p.begin + 1; s < p.end; ++s) job.merge(kernels_, p, s, totals, record_at(p, s, g));
    job.finish(kernels_, p, g, totals);
  });
}

void CpuOps::attention(const AttentionShape& shape, const RowPlaces& places, const PositionSets& chosen, Matrix q,
                       KvLayer kv, Matrix out) {
  const int hd = shape.head_dim, groups = shape.kv_heads;
  CARPOOL_CHECK(groups > 0 && shape.heads % groups == 0 && kv.kv_heads == groups && kv.block.head_dim == hd);
  CARPOOL_CHECK(shape.value_dim > 0 && kv.block.value_dim == shape.value_dim && shape.window >= 0);
  CARPOOL_CHECK(q.cols == shape.heads * hd && out.cols == shape.heads * shape.value_dim && out.rows == q.rows);
  CARPOOL_CHECK(places.position.size() == static_cast<size_t>(q.rows));
  CARPOOL_CHECK(shape.sinks.empty() || shape.sinks.size() == static_cast<size_t>(shape.heads));
  CARPOOL_CHECK(chosen.empty() || chosen.begin.size() == static_cast<size_t>(q.rows) + 1);
  AttentionJob job{shape, places, chosen, q, kv, out};
  const int spans = cut_rows(job), pieces = static_cast<int>(pieces_.size());
  if (pieces == 0) return;
  int rows = 0;  // of the largest piece
  double positions = 0;
  for (const Piece& p : pieces_) {
    rows = std::max(rows, p.rows);
    job.gathers = job.gathers || p.chosen > 0;
    positions += static_cast<double>(p.rows) * (job.last(p) + 1 - p.unseen);
  }
  const double work = positions * shape.heads * (hd + shape.value_dim);
  const size_t record_bytes = static_cast<size_t>(spans) * static_cast<size_t>(rows * shape.heads) * job.record() * 4;
  const int64_t wanted = workers_.size() > 1 ? 2 * static_cast<int64_t>(workers_.size()) : 0;
  const bool by_span = int64_t{pieces} * job.groups() < wanted && spans > pieces && record_bytes <= kMostRecordBytes;
  const int per_group = job.heads();
  for (int d = 2; int64_t{by_span ? spans : pieces} * job.groups() < wanted && per_group / d >= kLeastHeads; ++d) {
    if (per_group % d == 0) job.parts = d;
  }
  job.queries = rows * job.heads();
  if (by_span) {
    attention_by_span(job, spans, work);
  } else {
    attention_by_piece(job, work);
  }
}

}  // namespace carpool
