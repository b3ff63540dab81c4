// Attention over the paged cache, for any instruction set. The order of sums is in kernels/attention.h.
//
// Included inside the anonymous namespace of an instruction set's .cc file, after its vector vocabulary,
// vector_math.inl.h and transpose_chunk(). Both products keep a block of sums in registers: queries x (blocks of 16
// positions) for scores, queries x (chunks of 16 elements) for the weighted sum; keys and values of a tile are widened
// to float32 once for all queries. The instruction set gives kAttentionRows (<= 8), the most queries of a register
// block, and kAttentionSums, the vectors that may be sums.

namespace attention {

constexpr int kTile = kAttentionTile;
constexpr int kTileBlocks = kTile / 16;
constexpr int kVecs = 16 / kLanes;  // vectors of 16 floats
constexpr int kChunkFloats = 256;   // of a block's values: 16 positions x 16 elements
constexpr int kState = 32;          // floats of a query's state: 16 lanes of its sum, its maximum
constexpr int kChunksAtOnce = 4;    // of values that all queries pass over while these are in L1
constexpr float kLowest = -__builtin_inff();

// Blocks or chunks that stand beside `rows` queries in registers.
constexpr int strips(int rows) {
  return rows * 4 * kVecs <= kAttentionSums ? 4 : rows * 2 * kVecs <= kAttentionSums ? 2 : 1;
}
constexpr int fits(int rows) { return rows <= kAttentionRows ? rows : 1; }

// What the next tile reads, fetched into the cache while this one is computed: from each block's address on, `step`
// bytes per 16 floats that this tile multiplies.
struct Ahead {
  const unsigned char* const* blocks;
  int64_t offset, step;
};

// out[m][b * 16 + i] = the scores of M queries, packed [head_dim][M], and B blocks of keys.
template <int M, int B, bool kAhead>
void scores(const float* q, int head_dim, const float* const* keys, const Ahead& ahead, float* out) {
  constexpr int N = B * kVecs;
  Vec sum[M][N];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) sum[m][n] = zero();
  }
  const float* k[B];
  const unsigned char* next[B];
  for (int b = 0; b < B; ++b) {
    k[b] = keys[b];
    next[b] = ahead.blocks[b] + ahead.offset;
  }
  for (int64_t d = 0; d < head_dim; ++d, q += M) {
    const int64_t at = d * 16;
    if constexpr (kAhead) {
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) {
        prefetch(next[b]);
        next[b] += ahead.step;
      }
    }
    if constexpr (M < N) {
      Vec qs[M];
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) qs[m] = set1(q[m]);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        const Vec kn = load(k[n / kVecs] + at + n % kVecs * kLanes);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) sum[m][n] = fma(qs[m], kn, sum[m][n]);
      }
    } else {
      Vec ks[N];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) ks[n] = load(k[n / kVecs] + at + n % kVecs * kLanes);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        const Vec qm = set1(q[m]);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) sum[m][n] = fma(qm, ks[n], sum[m][n]);
      }
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) store(out + m * kTile + n * kLanes, sum[m][n]);
  }
}

template <int M, bool kAhead>
void group_scores(const float* q, int head_dim, const float* const* keys, int blocks, const Ahead& ahead, float* out) {
  int b = 0;
  const auto next = [&] { return Ahead{ahead.blocks + b, ahead.offset, ahead.step}; };
  if constexpr (strips(M) >= 4) {
    for (; b + 4 <= blocks; b += 4) scores<M, 4, kAhead>(q, head_dim, keys + b, next(), out + b * 16);
  }
  if constexpr (strips(M) >= 2) {
    for (; b + 2 <= blocks; b += 2) scores<M, 2, kAhead>(q, head_dim, keys + b, next(), out + b * 16);
  }
  for (; b < blocks; ++b) scores<M, 1, kAhead>(q, head_dim, keys + b, next(), out + b * 16);
}

// The positions [begin, end) of a tile, and what they are multiplied with.
struct Range {
  const float* const* values;  // of each block
  int begin, end;
  Ahead ahead;
};

// sum[m][0, C * 16) += p[m][i] * the values' chunks [chunk, chunk + C) over the range; sums are `stride` floats apart.
template <int M, int C, bool kAhead>
void weigh(const float* p, const Range& range, int chunk, float* sums, int64_t stride) {
  constexpr int N = C * kVecs;
  Vec sum[M][N];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) sum[m][n] = load(sums + m * stride + n * kLanes);
  }
  for (int i = range.begin; i < range.end;) {
    const int block = i / 16, stop = range.end < (block + 1) * 16 ? range.end : (block + 1) * 16;
    const float* v = range.values[block] + static_cast<int64_t>(chunk) * kChunkFloats + (i - block * 16) * 16;
    const unsigned char* next =
        range.ahead.blocks[block] + range.ahead.offset + (chunk * 16 + i - block * 16) * range.ahead.step;
    for (; i < stop; ++i, v += 16) {
      if constexpr (kAhead) {
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) prefetch(next + c * 16 * range.ahead.step);
        next += range.ahead.step;
      }
      if constexpr (M < N) {
        Vec ps[M];
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) ps[m] = set1(p[m * kTile + i]);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          const Vec vn = load(v + n / kVecs * kChunkFloats + n % kVecs * kLanes);
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m) sum[m][n] = fma(ps[m], vn, sum[m][n]);
        }
      } else {
        Vec vs[N];
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) vs[n] = load(v + n / kVecs * kChunkFloats + n % kVecs * kLanes);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          const Vec pm = set1(p[m * kTile + i]);
#pragma GCC unroll 8
          for (int n = 0; n < N; ++n) sum[m][n] = fma(pm, vs[n], sum[m][n]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) store(sums + m * stride + n * kLanes, sum[m][n]);
  }
}

// Chunks [chunk, chunk + chunks).
struct Chunks {
  int chunk, chunks;
};

template <int M, bool kAhead>
void group_weigh(const float* p, const Range& range, Chunks part, float* sums, int64_t stride) {
  const int end = part.chunk + part.chunks;
  int c = part.chunk;
  if constexpr (strips(M) >= 4) {
    for (; c + 4 <= end; c += 4) weigh<M, 4, kAhead>(p, range, c, sums + c * 16, stride);
  }
  if constexpr (strips(M) >= 2) {
    for (; c + 2 <= end; c += 2) weigh<M, 2, kAhead>(p, range, c, sums + c * 16, stride);
  }
  for (; c < end; ++c) weigh<M, 1, kAhead>(p, range, c, sums + c * 16, stride);
}

// By the number of queries - 1.
struct Products {
  void (*scores[8])(const float* q, int head_dim, const float* const* keys, int blocks, const Ahead& ahead, float* out);
  void (*weigh[8])(const float* p, const Range& range, Chunks part, float* sums, int64_t stride);
};
template <bool kAhead>
constexpr Products kProducts = {
    {group_scores<1, kAhead>, group_scores<fits(2), kAhead>, group_scores<fits(3), kAhead>,
     group_scores<fits(4), kAhead>, group_scores<fits(5), kAhead>, group_scores<fits(6), kAhead>,
     group_scores<fits(7), kAhead>, group_scores<fits(8), kAhead>},
    {group_weigh<1, kAhead>, group_weigh<fits(2), kAhead>, group_weigh<fits(3), kAhead>, group_weigh<fits(4), kAhead>,
     group_weigh<fits(5), kAhead>, group_weigh<fits(6), kAhead>, group_weigh<fits(7), kAhead>,
     group_weigh<fits(8), kAhead>}};
static_assert(kAttentionRows >= 1 && kAttentionRows <= 8);

// Scores of one query's first n >= 1 positions of a tile to e^(score - maximum), in place; updates its state and scales
// what was summed so far when the maximum rises.
inline void exponentials(float* s, int n, float* state, float* sums, int64_t elements) {
  const int whole = n / kLanes, rest = n % kLanes;
  Vec tops = set1(kLowest);
  for (int v = 0; v < whole; ++v) tops = max(tops, load(s + v * kLanes));
  if (rest != 0) tops = max(tops, choose_first(rest, load(s + whole * kLanes), set1(kLowest)));
  const float top = reduce_max(tops), before = state[16];
  if (top > before) {
    if (before > kLowest) {
      const Vec factor = exp_vec(sub(set1(before), set1(top)));
      for (int v = 0; v < kVecs; ++v) store(state + v * kLanes, mul(load(state + v * kLanes), factor));
      for (int64_t i = 0; i < elements; i += kLanes) store(sums + i, mul(load(sums + i), factor));
    }
    state[16] = top;
  }
  const Vec shift = set1(state[16]);
  for (int v = 0; v * kLanes < n; ++v) {
    Vec e = exp_vec(sub(load(s + v * kLanes), shift));
    if (v == whole) e = choose_first(rest, e, zero());
    store(s + v * kLanes, e);
    float* lanes = state + v % kVecs * kLanes;
    store(lanes, add(load(lanes), e));
  }
}

inline Vec load_bf16(const unsigned char* p) { return as_float(shift_left32<16>(widen_u16(p))); }

inline void widen_bf16s(const unsigned char* in, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) store(out + i, load_bf16(in + 2 * i));
}

// Keys: 16 positions' scales, then 32 times 16 bytes, per group; see tensor/kv_block.h.
inline void widen_q8_keys(const unsigned char* in, int64_t head_dim, float* out) {
  const unsigned char* bytes = in + (head_dim + 31) / 32 * 32;
  for (int64_t d = 0; d < head_dim; ++d) {
    for (int v = 0; v < kVecs; ++v) {
      const Vec scale = load_bf16(in + d / 32 * 32 + v * kLanes * 2);
      store(out + d * 16 + v * kLanes, mul(to_float(widen_s8(bytes + d * 16 + v * kLanes)), scale));
    }
  }
}

inline void widen_q8_values(const unsigned char* in, int64_t head_dim, float* out) {
  const unsigned char* bytes = in + (head_dim + 31) / 32 * 32;
  alignas(64) float scales[16];
  for (int64_t c = 0; c * 16 < head_dim; ++c) {
    for (int v = 0; v < kVecs; ++v) store(scales + v * kLanes, load_bf16(in + c / 2 * 32 + v * kLanes * 2));
    for (int i = 0; i < 16; ++i) {
      const Vec scale = set1(scales[i]);
      for (int v = 0; v < kVecs; ++v) {
        const int64_t at = c * kChunkFloats + i * 16 + v * kLanes;
        store(out + at, mul(to_float(widen_s8(bytes + at)), scale));
      }
    }
  }
}

// A run of attention over one tile of positions: the pieces of the scratch memory.
struct Work {
  const AttentionTile& tile;
  int queries;
  int64_t elements;        // head_dim rounded up to chunks
  int64_t value_elements;  // value_dim rounded up to chunks
  float* packed;           // per group of queries [head_dim][M], scaled
  float* p;                // [queries][kTile] scores, then their exponentials
  float* states;           // [queries][kState]
  float* keys;             // [kTileBlocks][head_dim][16] widened
  float* values;           // [kTileBlocks][chunks][16][16]
};

inline Work work_of(const AttentionTile& t) {
  const int64_t elements = (t.head_dim + 15) / 16 * 16, value_elements = (t.value_dim + 15) / 16 * 16;
  Work w{t, t.rows * t.heads, elements, value_elements, t.scratch, nullptr, nullptr, nullptr, nullptr};
  w.p = w.packed + w.queries * w.elements;
  w.states = w.p + w.queries * kTile;
  w.keys = w.states + w.queries * kState;
  w.values = w.keys + kTile * w.elements;
  return w;
}

// As many queries as registers hold, and a rest: a small rest has more strips beside it and is as fast.
inline int next_group(const Work& w, int query) {
  const int left = w.queries - query;
  return left < kAttentionRows ? left : kAttentionRows;
}

// The first of `n` positions from `start` on that the row's window leaves, or n; and the end of those up to its own.
// Both rise with the row.
inline int from(const Work& w, int row, int start, int n) {
  if (w.tile.window == 0) return 0;
  const int before = w.tile.first + row + 1 - w.tile.window - start;
  return before < 0 ? 0 : before < n ? before : n;
}
inline int until(const Work& w, int row, int start, int n) {
  const int end = w.tile.first + row + 1 - start;
  return end < 0 ? 0 : end < n ? end : n;
}
// Of a tile.
inline int from(const Work& w, int row, int start) { return from(w, row, start, kTile); }
inline int until(const Work& w, int row, int start) { return until(w, row, start, kTile); }
inline bool sees_span(const Work& w, int row, int start) {
  return from(w, row, start, kAttentionSpan) < until(w, row, start, kAttentionSpan);
}

inline void pack_queries(const Work& w) {
  const int64_t head_dim = w.tile.head_dim;
  for (int query = 0; query < w.queries;) {
    const int m = next_group(w, query);
    for (int i = 0; i < m; ++i) {
      const int row = (query + i) / w.tile.heads, head = (query + i) % w.tile.heads;
      const float* q = w.tile.q + row * w.tile.q_stride + head * head_dim;
      float* out = w.packed + query * head_dim + i;
      for (int64_t d = 0; d < head_dim; ++d) out[d * m] = q[d] * w.tile.scale;
    }
    query += m;
  }
}

inline void begin_records(const Work& w, float* records, int start) {
  for (int query = 0; query < w.queries; ++query) {
    for (int j = 0; j < kState; ++j) w.states[query * kState + j] = j == 16 ? kLowest : 0.0f;
    if (!sees_span(w, query / w.tile.heads, start)) continue;
    float* sums = records + query * (w.value_elements + 16) + 16;
    for (int64_t e = 0; e < w.value_elements; e += kLanes) store(sums + e, zero());
  }
}

// The blocks of the tile at `start` as they are stored; `otherwise` past the rows' positions, which does no harm to
// fetch.
inline void stored_blocks(const Work& w, int start, const unsigned char* otherwise, const unsigned char** blocks) {
  const AttentionTile& t = w.tile;
  for (int b = 0; b < kTileBlocks; ++b) {
    const int position = start + b * 16;
    blocks[b] = otherwise;
    if (position < t.first + t.rows) {
      blocks[b] = reinterpret_cast<const unsigned char*>(t.base) +
                  static_cast<size_t>(t.blocks[position / 16]) * t.block_stride;
    }
  }
}

// The tile under work.
struct Tile {
  int start, begin, end;                     // first position; the blocks [begin, end) are those that some row sees
  const unsigned char* stored[kTileBlocks];  // of this tile and of the next one
  const unsigned char* next[kTileBlocks];
  const float *keys[kTileBlocks], *values[kTileBlocks];
  int groups;  // of queries
  // With few queries reading is the slow part: they fetch the next tile. With many, fetching costs more than it brings.
  const Products *products, *value_products;
  int64_t step;  // bytes of the next tile that a group fetches per register of 16 floats
};

// The first value_dim elements of a block of keys in the order of values; elements past the keys are zeros.
inline void values_of_keys(const AttentionTile& t, const float* keys, float* values) {
  for (int c = 0; c * 16 < t.value_dim; ++c, values += kChunkFloats) {
    const int there = t.head_dim - c * 16;
    if (there >= 16) {
      transpose_chunk(keys + c * kChunkFloats, values);
      continue;
    }
    for (int i = 0; i < 16; ++i) {
      for (int e = 0; e < 16; ++e) values[i * 16 + e] = e < there ? keys[c * kChunkFloats + e * 16 + i] : 0.0f;
    }
  }
}

// Float32 keys and values: where they lie, or widened.
inline void widen_tile(const Work& w, Tile& tile) {
  const AttentionTile& t = w.tile;
  const bool own_values = t.value_dim > 0 && !t.values_in_keys;
  for (int b = tile.begin; b < tile.end; ++b) {
    const unsigned char* k = tile.stored[b];
    const unsigned char* v = k + t.value_offset;
    float* wide_keys = w.keys + b * 16 * w.elements;
    float* wide_values = w.values + b * 16 * w.value_elements;
    tile.keys[b] = wide_keys;
    tile.values[b] = wide_values;
    if (t.format == KvFormat::kF32) {
      tile.keys[b] = reinterpret_cast<const float*>(k);
      if (own_values) tile.values[b] = reinterpret_cast<const float*>(v);
    } else if (t.format == KvFormat::kBF16) {
      widen_bf16s(k, t.head_dim * int64_t{16}, wide_keys);
      if (own_values) widen_bf16s(v, w.value_elements * 16, wide_values);
    } else {
      widen_q8_keys(k, t.head_dim, wide_keys);
      if (own_values) widen_q8_values(v, t.value_dim, wide_values);
    }
    if (t.values_in_keys) values_of_keys(t, tile.keys[b], wide_values);
  }
}

inline Tile tile_at(const Work& w, int start) {
  Tile tile{};
  tile.start = start;
  tile.begin = from(w, 0, start) / 16;
  tile.end = (until(w, w.tile.rows - 1, start) + 15) / 16;
  stored_blocks(w, start, nullptr, tile.stored);
  stored_blocks(w, start + kTile, tile.stored[0], tile.next);
  for (int query = 0; query < w.queries; query += next_group(w, query)) ++tile.groups;
  tile.products = tile.groups <= 2 ? &kProducts<true> : &kProducts<false>;
  tile.value_products = w.tile.values_in_keys ? &kProducts<false> : tile.products;  // keys are fetched already
  const auto registers = static_cast<int64_t>(w.tile.head_dim) * tile.groups;
  tile.step = (static_cast<int64_t>(w.tile.value_offset) + registers - 1) / registers;
  widen_tile(w, tile);
  return tile;
}

inline void score_tile(const Work& w, const Tile& tile) {
  const int64_t head_dim = w.tile.head_dim;
  // Two blocks of keys stay in L1 while all queries pass over them.
  const int step = tile.groups == 1 ? kTileBlocks : 2;
  for (int b = tile.begin; b < tile.end; b += step) {
    const int count = tile.end - b < step ? tile.end - b : step;
    for (int query = 0, group = 0; query < w.queries; ++group) {
      const int m = next_group(w, query), first_row = query / w.tile.heads, last_row = (query + m - 1) / w.tile.heads;
      if (until(w, last_row, tile.start) > b * 16 && from(w, first_row, tile.start) < (b + count) * 16) {
        tile.products->scores[m - 1](w.packed + query * head_dim, w.tile.head_dim, tile.keys + b, count,
                                     {tile.next + b, group * head_dim * tile.step, tile.step},
                                     w.p + query * kTile + b * 16);
      }
      query += m;
    }
  }
}

// Queries [query, query + m) in ascending positions: what some rows' windows alone reach, what all of them see
// together, what the later rows see beyond the first one.
inline void weigh_group(const Work& w, const Tile& tile, int query, const Ahead& ahead, Chunks part, float* records) {
  const int64_t stride = w.value_elements + 16;
  const int m = next_group(w, query), heads = w.tile.heads;
  const auto run = [&](int first, int last, int begin, int end) {
    if (begin < end) {
      tile.value_products->weigh[last - first - 1](w.p + first * kTile, {tile.values, begin, end, ahead}, part,
                                                   records + first * stride + 16, stride);
    }
  };
  const int first_row = query / heads, last_row = (query + m - 1) / heads;
  const auto rows = [&](int begin, int end) {
    for (int row = first_row; row <= last_row; ++row) {
      const int own = from(w, row, tile.start), past = until(w, row, tile.start);
      run(row == first_row ? query : row * heads, row == last_row ? query + m : (row + 1) * heads,
          begin > own ? begin : own, end < past ? end : past);
    }
  };
  const int end = until(w, first_row, tile.start), latest = from(w, last_row, tile.start);
  const int begin = latest < end ? latest : end;
  if (from(w, first_row, tile.start) < begin) rows(0, begin);
  run(query, query + m, begin, end);
  if (until(w, last_row, tile.start) > end) rows(end, kTile);
}

inline void pass_tile(const Work& w, int start, float* records) {
  const int64_t stride = w.value_elements + 16;
  const Tile tile = tile_at(w, start);
  score_tile(w, tile);
  for (int query = 0; query < w.queries; ++query) {
    const int row = query / w.tile.heads, begin = from(w, row, start), end = until(w, row, start);
    if (begin >= end) continue;
    float* scores = w.p + query * kTile;
    for (int i = 0; i < begin; ++i) scores[i] = kLowest;  // of which the exponential is 0
    exponentials(scores, end, w.states + query * kState, records + query * stride + 16, w.value_elements);
  }
  const int chunks = static_cast<int>(w.value_elements / 16);
  for (int c = 0; c < chunks; c += kChunksAtOnce) {
    const Chunks part{c, chunks - c < kChunksAtOnce ? chunks - c : kChunksAtOnce};
    for (int query = 0, group = 0; query < w.queries; query += next_group(w, query), ++group) {
      const int64_t offset = static_cast<int64_t>(w.tile.value_offset) + group * w.value_elements * tile.step;
      weigh_group(w, tile, query, {tile.next, offset, tile.step}, part, records);
    }
  }
}

inline void span(const AttentionTile& tile, int span, float* records) {
  const Work w = work_of(tile);
  const int start = span * kAttentionSpan, last = tile.first + tile.rows - 1;
  pack_queries(w);
  begin_records(w, records, start);
  const int begin = start + from(w, 0, start, kAttentionSpan) / kTile * kTile;
  for (int at = begin; at < start + kAttentionSpan && at <= last; at += kTile) pass_tile(w, at, records);
  for (int query = 0; query < w.queries; ++query) {
    if (!sees_span(w, query / tile.heads, start)) continue;
    float* record = records + query * (w.value_elements + 16);
    const float* state = w.states + query * kState;
    Vec lanes = load(state);
    for (int v = 1; v < kVecs; ++v) lanes = add(lanes, load(state + v * kLanes));
    record[0] = state[16];
    record[1] = reduce_add(lanes);
  }
}

inline void index(const AttentionTile& tile, const float* weights, int64_t weight_stride, int span, float* out,
                  int64_t out_stride) {
  const Work w = work_of(tile);
  const int start = span * kAttentionSpan, last = tile.first + tile.rows - 1;
  pack_queries(w);
  for (int at = start; at < start + kAttentionSpan && at <= last; at += kTile) {
    score_tile(w, tile_at(w, at));
    for (int row = 0; row < tile.rows; ++row) {
      const float *scores = w.p + row * tile.heads * kTile, *weight = weights + row * weight_stride;
      for (int i = 0; i < until(w, row, at); i += kLanes) {
        Vec sum = zero();
        for (int h = 0; h < tile.heads; ++h) {
          const Vec score = max(zero(), load(scores + h * kTile + i));  // argument order keeps a NaN
          sum = fma(set1(weight[h]), score, sum);
        }
        store(out + row * out_stride + (at - start) + i, sum);
      }
    }
  }
}

inline void merge(float* total, const float* later, int value_dim) {
  const float top = total[0] > later[0] ? total[0] : later[0];
  const Vec a = exp_vec(sub(set1(total[0]), set1(top))), b = exp_vec(sub(set1(later[0]), set1(top)));
  const auto both = [&](Vec x, Vec y) { return fma(y, b, mul(x, a)); };
  float sum[kLanes];
  store(sum, both(set1(total[1]), set1(later[1])));
  total[0] = top;
  total[1] = sum[0];
  for (int i = 16; i < 16 + value_dim; i += kLanes) store(total + i, both(load(total + i), load(later + i)));
}

inline void finish(const float* total, const float* sink, float* out, int value_dim) {
  Vec factor = set1(1.0f), sum = set1(total[1]);
  if (sink) {
    const float top = total[0] > *sink ? total[0] : *sink;
    factor = exp_vec(sub(set1(total[0]), set1(top)));
    sum = fma(sum, factor, exp_vec(sub(set1(*sink), set1(top))));
  }
  const auto value = [&](int i) { return div(mul(load(total + 16 + i), factor), sum); };
  int i = 0;
  for (; i + kLanes <= value_dim; i += kLanes) store(out + i, value(i));
  if (i < value_dim) store_partial(out + i, value_dim - i, value(i));
}

// (a, b) turned by the angle of cosine c and sine s.
inline void turn(Vec& a, Vec& b, Vec c, Vec s) {
  const Vec before = a;
  a = sub(mul(a, c), mul(b, s));
  b = add(mul(b, c), mul(before, s));
}

inline void rotate(float* x, const float* cos, const float* sin, int half) {
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    Vec a = load(x + i), b = load(x + half + i);
    turn(a, b, load(cos + i), load(sin + i));
    store(x + i, a);
    store(x + half + i, b);
  }
  if (i < half) {
    const int n = half - i;
    Vec a = load_partial(x + i, n), b = load_partial(x + half + i, n);
    turn(a, b, load_partial(cos + i, n), load_partial(sin + i, n));
    store_partial(x + i, n, a);
    store_partial(x + half + i, n, b);
  }
}

// Takes kLanes pairs apart, turns them and puts them back.
inline void rotate_pairs(float* x, const float* cos, const float* sin, int half) {
  for (int at = 0; at < half; at += kLanes) {
    const int n = half - at < kLanes ? half - at : kLanes;
    float first_of[kLanes] = {}, second_of[kLanes] = {}, c[kLanes] = {}, s[kLanes] = {};
    for (int i = 0; i < n; ++i) {
      first_of[i] = x[2 * (at + i)];
      second_of[i] = x[2 * (at + i) + 1];
      c[i] = cos[at + i];
      s[i] = sin[at + i];
    }
    Vec a = load(first_of), b = load(second_of);
    turn(a, b, load(c), load(s));
    store(first_of, a);
    store(second_of, b);
    for (int i = 0; i < n; ++i) {
      x[2 * (at + i)] = first_of[i];
      x[2 * (at + i) + 1] = second_of[i];
    }
  }
}

}  // namespace attention
