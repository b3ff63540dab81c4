// Attention over a paged cache, one kv head at a time: the entries of a Kernels table and what they are given.
//
// Owns the order of every sum, which is a function of a row's position alone, so that a row's bits depend neither on
// the chunk it came in, nor on its neighbours, nor on how work is cut. Positions 0..own are cut into spans of 512,
// spans into tiles of 64, tiles into blocks of 16 (tensor/kv_block.h). For one query:
//   score     of a position: one chain of fused multiply-adds over the elements of q * scale and the key, ascending
//   tile      its largest score raises the running maximum; what was summed before is scaled by e^(old - new);
//             e^(score - maximum) is added to one of 16 sums (position mod 16), ascending; values are added one
//             position after the other, each element in a chain of its own
//   span      starts from nothing; its 16 sums are added in a fixed tree when it ends
//   row       spans are merged in ascending order, a sink joins the sum, and the result is divided by it
// Positions past a row's own, or before its window, are not multiplied by zero but left out, whatever shares the tile;
// a row starts in the first span it sees. Which queries share a register block, a tile or a task never enters. The
// scalar table does the same in its own words; only its exponential differs in the last bits.
// An indexer's score of a position needs no exponential and has the same bits in every table.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/kv_block.h"

namespace carpool {

inline constexpr int kAttentionTile = 64;   // positions
inline constexpr int kAttentionSpan = 512;  // positions; a multiple of the tile

// Queries that share keys and values: `heads` heads of a kv head's group in each of `rows` rows of one sequence at the
// consecutive positions first, first + 1, ... Query i is head i % heads of row i / heads.
struct AttentionTile {
  const float* q = nullptr;  // the group's first head of the first row; heads are head_dim apart
  int64_t q_stride = 0;      // floats from row to row
  int rows = 0;
  int heads = 0;
  int first = 0;
  int window = 0;  // positions a row sees, itself included; 0 = all before it
  int head_dim = 0;
  int value_dim = 0;
  bool values_in_keys = false;  // a value is the start of its key
  float scale = 0;              // of q.k
  KvFormat format = KvFormat::kF32;
  const int* blocks = nullptr;      // the sequence's block ids
  const std::byte* base = nullptr;  // this kv head's part of block 0
  size_t block_stride = 0;          // bytes from block id to block id
  size_t value_offset = 0;          // bytes from a block's keys to its values
  float* scratch = nullptr;         // attention_scratch() floats, at a multiple of 64 bytes
};

// What is known of a query after some spans: [0] the largest score, [1] the sum of exponentials below it, [16...) the
// weighted sum of values. Floats; a multiple of 16.
constexpr size_t attention_record(int value_dim) { return 16 + (static_cast<size_t>(value_dim) + 15) / 16 * 16; }

// Floats of scratch memory that span() and index() need for so many queries.
constexpr size_t attention_scratch(int queries, int head_dim, int value_dim) {
  const size_t elements = (static_cast<size_t>(head_dim) + 15) / 16 * 16;
  const size_t value_elements = (static_cast<size_t>(value_dim) + 15) / 16 * 16;
  return static_cast<size_t>(queries) * (elements + kAttentionTile + 32) + kAttentionTile * (elements + value_elements);
}

struct AttentionKernels {
  // Rotates 2 * half elements in place: pairs (i, i + half) turn by the angle whose cosine and sine are cos[i], sin[i].
  void (*rotate)(float* x, const float* cos, const float* sin, int half) = nullptr;
  // The same with pairs (2 i, 2 i + 1).
  void (*rotate_pairs)(float* x, const float* cos, const float* sin, int half) = nullptr;
  // Positions [span * 512, span * 512 + 512) into one record per query, records[query * attention_record]. Records of
  // rows that see none of them are left alone.
  void (*span)(const AttentionTile& tile, int span, float* records) = nullptr;
  // total = total and `later` together; both records hold at least one position.
  void (*merge)(float* total, const float* later, int value_dim) = nullptr;
  // out[0..value_dim) = the attention of a complete record. A sink, which may be null, is a further score without
  // value.
  void (*finish)(const float* total, const float* sink, float* out, int value_dim) = nullptr;
  // An indexer's scores of the positions of a span that each row sees: out[row * out_stride + i] of position
  // span * 512 + i = sum over heads h, ascending and fused, of weights[row * weight_stride + h] * max(0, score); NaN
  // stays. Windows and values are not looked at; what stands behind a row's own position up to the next multiple of 16
  // is overwritten.
  void (*index)(const AttentionTile& tile, const float* weights, int64_t weight_stride, int span, float* out,
                int64_t out_stride) = nullptr;
};

}  // namespace carpool
