// Attention of the scalar table: one query and one position at a time, in the order that kernels/attention.h fixes.
//
// Owns the oracle of the other tables' attention, which reads the cache through KvBlock::load; nothing here is fast.
#pragma once

#include "kernels/attention.h"

namespace carpool::scalar {

void attention_span(const AttentionTile& tile, int span, float* records);
void attention_merge(float* total, const float* later, int head_dim);
void attention_finish(const float* total, float* out, int head_dim);
void rotate(float* head, const float* cos, const float* sin, int half);

}  // namespace carpool::scalar
