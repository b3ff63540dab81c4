// Which positions rows of sparse attention attend to: the scores of a small attention without values, and the largest
// of them.
//
// A task of the first job scores one span of 512 positions for a few rows of a sequence (kernels/attention.h); a task
// of the second finds a row's smallest chosen score by counting digits, from the highest on, and lists the positions
// from it up. As many rows go through both as their scores fit in memory set aside. The result is a function of the
// row's own scores, and those of the row and the keys alone.
#include <algorithm>
#include <array>
#include <cmath>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/scratch.h"
#include "base/error.h"

namespace carpool {
namespace {

constexpr size_t kMostScoreBytes = 64 << 20;  // of rows at a time, or of one row
constexpr int kPieceQueries = 64;             // of a task
constexpr int kDigitBits = 11;                // of three digits

// An integer that is larger where the score is, 0 for NaN; both zeros are one.
uint32_t rank_of(float score) {
  if (std::isnan(score)) return 0;
  const auto bits = __builtin_bit_cast(uint32_t, score + 0.0f);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// The ascending positions of the `top` < n largest of scores[0..n), of equal ones those that come first.
void list_largest(const float* scores, int n, int top, int* out) {
  uint32_t prefix = 0, known = 0;  // the highest bits of the smallest chosen rank
  int left = top;                  // of those that begin with the prefix
  for (int shift = 2 * kDigitBits; shift >= 0; shift -= kDigitBits) {
    std::array<int, 1 << kDigitBits> count{};
    constexpr uint32_t kDigits = (1u << kDigitBits) - 1;
    for (int i = 0; i < n; ++i) {
      const uint32_t rank = rank_of(scores[i]);
      if ((rank & known) == prefix) ++count[(rank >> shift) & kDigits];
    }
    uint32_t digit = kDigits;
    while (count[digit] < left) left -= count[digit--];
    prefix |= digit << shift;
    known |= kDigits << shift;
  }
  for (int i = 0; i < n; ++i) {
    const uint32_t rank = rank_of(scores[i]);
    if (rank < prefix || (rank == prefix && left == 0)) continue;
    left -= rank == prefix ? 1 : 0;
    *out++ = i;
  }
}

}  // namespace

struct CpuOps::IndexJob {
  const AttentionShape& shape;
  const RowPlaces& places;
  Matrix q, weights;
  KvLayer keys;
  int top = 0;        // rows at this position and later ones choose
  size_t stride = 0;  // scores of a row

  int position(int row) const { return places.position[static_cast<size_t>(row)]; }
};

// index_scores_ of the rows that choose.
void CpuOps::score_positions(const IndexJob& job, RowRange rows) {
  const int heads = job.shape.heads, hd = job.shape.head_dim, most = std::max(1, kPieceQueries / heads);
  pieces_.clear();
  double positions = 0;
  int queries = 0;
  for (int t = rows.begin; t < rows.end; ++t) {
    if (job.position(t) < job.top) continue;
    positions += job.position(t) + 1;
    if (!extend_piece(job.places, t, most)) {
      const int end = job.position(t) / kAttentionSpan + 1;
      pieces_.push_back({.row = t, .rows = 1, .chosen = 0, .unseen = 0, .begin = 0, .end = end, .unit = 0});
    }
    queries = std::max(queries, pieces_.back().rows * heads);
  }
  const size_t each = (attention_scratch(queries, hd, 0) + 15) / 16 * 16;
  grow(attention_scratch_, each * workers_.size());
  float* scratch = aligned(attention_scratch_);
  float* scores = aligned(index_scores_);
  run(number_pieces(), positions * heads * hd, [&](int task, int worker) {
    const auto after = std::upper_bound(pieces_.begin(), pieces_.end(), task,
                                        [](int value, const Piece& p) { return value < p.unit; });
    const Piece& p = *std::prev(after);
    const int span = task - p.unit;
    AttentionTile t;
    t.q = job.q.row(p.row);
    t.q_stride = job.q.stride;
    t.rows = p.rows;
    t.heads = heads;
    t.first = job.position(p.row);
    t.head_dim = hd;
    t.scale = job.shape.scale;
    t.format = job.keys.block.format;
    t.blocks = job.places.block_table[static_cast<size_t>(p.row)];
    t.base = job.keys.at(0, 0);
    t.block_stride = job.keys.stride();
    t.value_offset = job.keys.block.value_offset;
    t.scratch = scratch + static_cast<size_t>(worker) * each;
    float* out =
        scores + static_cast<size_t>(p.row - rows.begin) * job.stride + static_cast<size_t>(span) * kAttentionSpan;
    kernels_.attention.index(t, job.weights.row(p.row), job.weights.stride, span, out,
                             static_cast<int64_t>(job.stride));
  });
}

void CpuOps::choose_positions(const AttentionShape& shape, const RowPlaces& places, Matrix q, Matrix weights,
                              KvLayer keys, int top, PositionSets& chosen) {
  CARPOOL_CHECK(shape.kv_heads == 1 && keys.kv_heads == 1 && keys.block.head_dim == shape.head_dim && top > 0);
  CARPOOL_CHECK(q.cols == shape.heads * shape.head_dim && weights.cols == shape.heads && weights.rows == q.rows);
  CARPOOL_CHECK(places.position.size() == static_cast<size_t>(q.rows));
  chosen.clear();
  const int last = q.rows == 0 ? -1 : *std::max_element(places.position.begin(), places.position.end());
  if (last < top) return;
  int listed = 0;
  chosen.begin.push_back(0);
  for (const int position : places.position) chosen.begin.push_back(listed += position >= top ? top : 0);
  chosen.positions.resize(static_cast<size_t>(listed));
  const size_t stride = static_cast<size_t>(last / kAttentionSpan + 1) * kAttentionSpan;
  const IndexJob job{shape, places, q, weights, keys, top, stride};
  const int most = static_cast<int>(std::max<size_t>(1, kMostScoreBytes / (stride * sizeof(float))));
  grow(index_scores_, stride * static_cast<size_t>(std::min(most, q.rows)));
  for (int row = 0; row < q.rows; row += most) {
    const RowRange rows{row, std::min(row + most, q.rows)};
    score_positions(job, rows);
    run(rows.end - rows.begin, 4.0 * (rows.end - rows.begin) * last, [&](int task, int) {
      const int t = rows.begin + task;
      if (job.position(t) < top) return;
      list_largest(aligned(index_scores_) + static_cast<size_t>(task) * stride, job.position(t) + 1, top,
                   chosen.positions.data() + chosen.begin[static_cast<size_t>(t)]);
    });
  }
}

}  // namespace carpool
