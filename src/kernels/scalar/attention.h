// Attention of the scalar table: one query and one position at a time, in the order that kernels/attention.h fixes.
//
// Owns the oracle of the other tables' attention, which reads the cache through KvBlock::load; nothing here is fast.
#pragma once

#include "kernels/attention.h"

namespace carpool::scalar {

void attention_span(const AttentionTile& tile, int span, float* records);
void attention_merge(float* total, const float* later, int value_dim);
void attention_finish(const float* total, const float* sink, float* out, int value_dim);
void attention_index(const AttentionTile& tile, const float* weights, int64_t weight_stride, int span, float* out,
                     int64_t out_stride);
void rotate(float* x, const float* cos, const float* sin, int half);
void rotate_pairs(float* x, const float* cos, const float* sin, int half);

}  // namespace carpool::scalar
