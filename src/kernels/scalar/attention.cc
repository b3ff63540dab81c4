#include "kernels/scalar/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace carpool::scalar {
namespace {

// One query on its way through a span; memory is the tile's scratch, in this order.
struct Query {
  Query(const AttentionTile& tile, int row, int head)
      : q(tile.scratch), key(q + tile.head_dim), value(key + tile.head_dim), p(value + tile.value_dim) {
    const float* from = tile.q + row * tile.q_stride + static_cast<int64_t>(head) * tile.head_dim;
    for (int d = 0; d < tile.head_dim; ++d) q[d] = from[d] * tile.scale;
  }
  float* q;
  float *key, *value;  // of the position under work
  float* p;            // [kAttentionTile] scores, then their exponentials
  float* record = nullptr;
  float lanes[16] = {};  // sums of exponentials, by position mod 16
};

KvBlock block_of(const AttentionTile& tile) {
  return KvBlock(tile.format, tile.head_dim, tile.value_dim, tile.values_in_keys);
}

void load(const AttentionTile& tile, const KvBlock& block, int position, Query& x) {
  const std::byte* at = tile.base + static_cast<size_t>(tile.blocks[position / kKvPositions]) * tile.block_stride;
  block.load(at, position % kKvPositions, x.key, x.value);
}

float score(const AttentionTile& tile, const Query& x) {
  float sum = 0;
  for (int d = 0; d < tile.head_dim; ++d) sum = std::fma(x.q[d], x.key[d], sum);
  return sum;
}

void pass_tile(const AttentionTile& tile, const KvBlock& block, int begin, int end, Query& x) {
  float top = x.record[0];
  for (int i = begin; i < end; ++i) {
    load(tile, block, i, x);
    x.p[i - begin] = score(tile, x);
    top = x.p[i - begin] > top ? x.p[i - begin] : top;
  }
  if (top > x.record[0]) {
    const float factor = std::exp(x.record[0] - top);  // 0 in the first tile, where all it scales is 0
    for (float& lane : x.lanes) lane *= factor;
    for (int d = 0; d < tile.value_dim; ++d) x.record[16 + d] *= factor;
    x.record[0] = top;
  }
  for (int i = begin; i < end; ++i) {
    load(tile, block, i, x);
    const float e = std::exp(x.p[i - begin] - top);
    x.lanes[i % 16] += e;
    for (int d = 0; d < tile.value_dim; ++d) x.record[16 + d] = std::fma(e, x.value[d], x.record[16 + d]);
  }
}

}  // namespace

void attention_span(const AttentionTile& tile, int span, float* records) {
  const KvBlock block = block_of(tile);
  const int start = span * kAttentionSpan;
  for (int i = 0; i < tile.rows * tile.heads; ++i) {
    const int own = tile.first + i / tile.heads;
    const int begin = std::max(start, tile.window == 0 ? 0 : own - tile.window + 1);
    const int end = std::min(start + kAttentionSpan, own + 1);
    if (end <= begin) continue;
    Query x(tile, i / tile.heads, i % tile.heads);
    x.record = records + static_cast<size_t>(i) * attention_record(tile.value_dim);
    x.record[0] = -std::numeric_limits<float>::infinity();
    std::fill_n(x.record + 16, attention_record(tile.value_dim) - 16, 0.0f);
    for (int at = begin / kAttentionTile * kAttentionTile; at < end; at += kAttentionTile) {
      pass_tile(tile, block, std::max(at, begin), std::min(at + kAttentionTile, end), x);
    }
    for (int half = 8; half > 0; half /= 2) {
      for (int l = 0; l < half; ++l) x.lanes[l] += x.lanes[l + half];
    }
    x.record[1] = x.lanes[0];
  }
}

void attention_merge(float* total, const float* later, int value_dim) {
  const float top = std::max(total[0], later[0]);
  const float a = std::exp(total[0] - top), b = std::exp(later[0] - top);
  total[0] = top;
  total[1] = std::fma(later[1], b, total[1] * a);
  for (int i = 16; i < 16 + value_dim; ++i) total[i] = std::fma(later[i], b, total[i] * a);
}

void attention_finish(const float* total, const float* sink, float* out, int value_dim) {
  float factor = 1, sum = total[1];
  if (sink) {
    const float top = std::max(total[0], *sink);
    factor = std::exp(total[0] - top);
    sum = std::fma(sum, factor, std::exp(*sink - top));
  }
  for (int i = 0; i < value_dim; ++i) out[i] = total[16 + i] * factor / sum;
}

void attention_index(const AttentionTile& tile, const float* weights, int64_t weight_stride, int span, float* out,
                     int64_t out_stride) {
  const KvBlock block = block_of(tile);
  const int start = span * kAttentionSpan;
  for (int row = 0; row < tile.rows; ++row) {
    const int end = std::min(start + kAttentionSpan, tile.first + row + 1);
    if (end > start) std::fill_n(out + row * out_stride, end - start, 0.0f);
    for (int head = 0; head < tile.heads; ++head) {
      Query x(tile, row, head);
      for (int i = start; i < end; ++i) {
        load(tile, block, i, x);
        const float s = score(tile, x);
        float& sum = out[row * out_stride + i - start];
        sum = std::fma(weights[row * weight_stride + head], s < 0 ? 0.0f : s, sum);
      }
    }
  }
}

void rotate(float* x, const float* cos, const float* sin, int half) {
  for (int i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

void rotate_pairs(float* x, const float* cos, const float* sin, int half) {
  for (int i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

}  // namespace carpool::scalar
