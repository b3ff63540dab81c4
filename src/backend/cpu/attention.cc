// Keys and values into the paged cache, and causal attention out of it.
//
// One attention task is (row, kv head) and serves all query heads of that kv head, so keys and values are read once.
// Scores, softmax and the weighted sum run over positions 0..own in ascending order: the result depends on the row's
// own sequence alone, not on the chunk it came in. Does not know where blocks come from: that is model/kv_cache.
#include <algorithm>
#include <bit>
#include <cstring>

#include "backend/cpu/cpu_ops.h"
#include "base/error.h"

namespace carpool {
namespace {

constexpr int64_t kFewestScores = 1024;  // positions that the scratch memory starts with

// Half-split rotation of one head: pairs (i, i + n/2) turn by the angle of `position`.
void rotate(float* head, const RopeTable& rope, int position) {
  const int half = rope.rotary_dims / 2;
  const float* cos = rope.cos.data() + static_cast<int64_t>(position) * half;
  const float* sin = rope.sin.data() + static_cast<int64_t>(position) * half;
  for (int i = 0; i < half; ++i) {
    const float a = head[i], b = head[i + half];
    head[i] = a * cos[i] - b * sin[i];
    head[i + half] = b * cos[i] + a * sin[i];
  }
}

// Floats from the start of the cache to the entry of `position`.
int64_t cache_offset(const RowPlaces& places, int row, int position, int block_tokens, int64_t entry) {
  const int block = places.block_table[static_cast<size_t>(row)][position / block_tokens];
  return (static_cast<int64_t>(block) * block_tokens + position % block_tokens) * entry;
}

}  // namespace

void CpuOps::store_kv(const AttentionShape& shape, const RowPlaces& places, Matrix q, Matrix k, Matrix v, KvLayer kv) {
  const int hd = shape.head_dim;
  const int64_t entry = static_cast<int64_t>(shape.kv_heads) * hd;
  CARPOOL_CHECK(q.cols == shape.heads * hd && k.cols == entry && v.cols == entry);
  CARPOOL_CHECK(places.position.size() == static_cast<size_t>(q.rows) && shape.rope.rotary_dims <= hd);
  const auto finish_heads = [&](float* row, int heads, std::span<const float> norm, int position) {
    for (int h = 0; h < heads; ++h) {
      float* head = row + static_cast<int64_t>(h) * hd;
      if (!norm.empty()) kernels_.rms_norm(head, norm.data(), shape.norm_eps, head, hd);
      rotate(head, shape.rope, position);
    }
  };
  run(q.rows, 8.0 * q.rows * (shape.heads + 2 * shape.kv_heads) * hd, [&](int t, int) {
    const int position = places.position[static_cast<size_t>(t)];
    if (position < 0) return;
    CARPOOL_CHECK((static_cast<size_t>(position) + 1) * static_cast<size_t>(shape.rope.rotary_dims / 2) <=
                  shape.rope.cos.size());
    finish_heads(q.row(t), shape.heads, shape.q_norm, position);
    finish_heads(k.row(t), shape.kv_heads, shape.k_norm, position);
    const int64_t at = cache_offset(places, t, position, kv.block_tokens, entry);
    std::memcpy(kv.keys + at, k.row(t), static_cast<size_t>(entry) * sizeof(float));
    std::memcpy(kv.values + at, v.row(t), static_cast<size_t>(entry) * sizeof(float));
  });
}

void CpuOps::attention(const AttentionShape& shape, const RowPlaces& places, Matrix q, KvLayer kv, Matrix out) {
  const int hd = shape.head_dim, groups = shape.kv_heads;
  CARPOOL_CHECK(groups > 0 && shape.heads % groups == 0);
  CARPOOL_CHECK(q.cols == shape.heads * hd && out.cols == q.cols && out.rows == q.rows);
  CARPOOL_CHECK(places.position.size() == static_cast<size_t>(q.rows));
  const int per_group = shape.heads / groups;
  const int64_t entry = static_cast<int64_t>(groups) * hd;
  int64_t longest = 0, tokens = 0;
  for (const int position : places.position) {
    longest = std::max<int64_t>(longest, position + 1);
    tokens += position + 1;
  }
  // Doubles, so that a growing context allocates a handful of times in its life.
  const auto scratch =
      std::bit_ceil(static_cast<size_t>(std::max(longest, kFewestScores))) * static_cast<size_t>(per_group);
  if (scores_.size() < scratch * static_cast<size_t>(pool_.size())) {
    scores_.resize(scratch * static_cast<size_t>(pool_.size()));
  }
  run(q.rows * groups, 2.0 * static_cast<double>(tokens) * shape.heads * hd, [&](int task, int worker) {
    const int t = task / groups, g = task % groups;
    const int position = places.position[static_cast<size_t>(t)];
    const int64_t first = static_cast<int64_t>(g) * per_group * hd;
    float* result = out.row(t) + first;
    std::fill_n(result, static_cast<int64_t>(per_group) * hd, 0.0f);
    if (position < 0) return;
    const int length = position + 1;
    float* scores = scores_.data() + static_cast<size_t>(worker) * scratch;  // [per_group, length]
    const float* query = q.row(t) + first;
    for (int p = 0; p < length; ++p) {
      const float* key = kv.keys + cache_offset(places, t, p, kv.block_tokens, entry) + static_cast<int64_t>(g) * hd;
      for (int h = 0; h < per_group; ++h) {
        scores[static_cast<int64_t>(h) * length + p] =
            kernels_.dot(query + static_cast<int64_t>(h) * hd, key, hd) * shape.scale;
      }
    }
    for (int h = 0; h < per_group; ++h) kernels_.softmax(scores + static_cast<int64_t>(h) * length, length);
    for (int p = 0; p < length; ++p) {
      const float* value =
          kv.values + cache_offset(places, t, p, kv.block_tokens, entry) + static_cast<int64_t>(g) * hd;
      for (int h = 0; h < per_group; ++h) {
        kernels_.axpy(scores[static_cast<int64_t>(h) * length + p], value, result + static_cast<int64_t>(h) * hd, hd);
      }
    }
  });
}

}  // namespace carpool
