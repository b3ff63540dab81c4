#include "kernels/scalar/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace carpool::scalar {
namespace {

// One query on its way through a span; memory is the tile's scratch, in this order.
struct Query {
  Query(const AttentionTile& tile, const float* q_in, float* record_in)
      : q(tile.scratch),
        key(q + tile.head_dim),
        value(key + tile.head_dim),
        p(value + tile.head_dim),
        record(record_in) {
    for (int d = 0; d < tile.head_dim; ++d) q[d] = q_in[d] * tile.scale;
    record[0] = -std::numeric_limits<float>::infinity();
    std::fill_n(record + 16, attention_record(tile.head_dim) - 16, 0.0f);
  }
  float* q;
  float *key, *value;  // of the position under work
  float* p;            // [kAttentionTile] scores, then their exponentials
  float* record;
  float lanes[16] = {};  // sums of exponentials, by position mod 16
};

void load(const AttentionTile& tile, const KvBlock& block, int position, Query& x) {
  const std::byte* at = tile.base + static_cast<size_t>(tile.blocks[position / kKvPositions]) * tile.block_stride;
  block.load(at, position % kKvPositions, x.key, x.value);
}

void pass_tile(const AttentionTile& tile, const KvBlock& block, int begin, int end, Query& x) {
  float top = x.record[0];
  for (int i = begin; i < end; ++i) {
    load(tile, block, i, x);
    float sum = 0;
    for (int d = 0; d < tile.head_dim; ++d) sum = std::fma(x.q[d], x.key[d], sum);
    x.p[i - begin] = sum;
    top = sum > top ? sum : top;
  }
  if (top > x.record[0]) {
    const float factor = std::exp(x.record[0] - top);  // 0 in the first tile, where all it scales is 0
    for (float& lane : x.lanes) lane *= factor;
    for (int d = 0; d < tile.head_dim; ++d) x.record[16 + d] *= factor;
    x.record[0] = top;
  }
  for (int i = begin; i < end; ++i) {
    load(tile, block, i, x);
    const float e = std::exp(x.p[i - begin] - top);
    x.lanes[i % 16] += e;
    for (int d = 0; d < tile.head_dim; ++d) x.record[16 + d] = std::fma(e, x.value[d], x.record[16 + d]);
  }
}

}  // namespace

void attention_span(const AttentionTile& tile, int span, float* records) {
  const KvBlock block(tile.format, tile.head_dim, tile.head_dim);
  const int begin = span * kAttentionSpan;
  for (int i = 0; i < tile.rows * tile.heads; ++i) {
    const int row = i / tile.heads, head = i % tile.heads;
    const int end = std::min(begin + kAttentionSpan, tile.first + row + 1);
    if (end <= begin) continue;
    Query x(tile, tile.q + row * tile.q_stride + static_cast<int64_t>(head) * tile.head_dim,
            records + static_cast<size_t>(i) * attention_record(tile.head_dim));
    for (int at = begin; at < end; at += kAttentionTile)
      pass_tile(tile, block, at, std::min(at + kAttentionTile, end), x);
    for (int half = 8; half > 0; half /= 2) {
      for (int l = 0; l < half; ++l) x.lanes[l] += x.lanes[l + half];
    }
    x.record[1] = x.lanes[0];
  }
}

void attention_merge(float* total, const float* later, int head_dim) {
  const float top = std::max(total[0], later[0]);
  const float a = std::exp(total[0] - top), b = std::exp(later[0] - top);
  total[0] = top;
  total[1] = std::fma(later[1], b, total[1] * a);
  for (int i = 16; i < 16 + head_dim; ++i) total[i] = std::fma(later[i], b, total[i] * a);
}

void attention_finish(const float* total, float* out, int head_dim) {
  for (int i = 0; i < head_dim; ++i) out[i] = total[16 + i] / total[1];
}

void rotate(float* head, const float* cos, const float* sin, int half) {
  for (int i = 0; i < half; ++i) {
    const float a = head[i], b = head[i + half];
    head[i] = a * cos[i] - b * sin[i];
    head[i + half] = b * cos[i] + a * sin[i];
  }
}

}  // namespace carpool::scalar
