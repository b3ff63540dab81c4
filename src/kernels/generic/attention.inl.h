// Attention over the paged cache, for any instruction set. The order of sums is in kernels/attention.h.
//
// Included inside the anonymous namespace of an instruction set's .cc file, after its vector vocabulary and
// vector_math.inl.h. Both products keep a block of sums in registers: queries x (blocks of 16 positions) for scores,
// queries x (chunks of 16 elements) for the weighted sum; keys and values of a tile are widened to float32 once for all
// queries. The instruction set gives kAttentionRows (<= 8), the most queries of a register block, and kAttentionSums,
// the vectors that may be sums.

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
  int64_t elements;  // head_dim rounded up to chunks
  float* packed;     // per group of queries [head_dim][M], scaled
  float* p;          // [queries][kTile] scores, then their exponentials
  float* states;     // [queries][kState]
  float* keys;       // [kTileBlocks][head_dim][16] widened
  float* values;     // [kTileBlocks][chunks][16][16]
};

inline Work work_of(const AttentionTile& t) {
  Work w{t, t.rows * t.heads, (t.head_dim + 15) / 16 * 16, t.scratch, nullptr, nullptr, nullptr, nullptr};
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

// Positions of the tile at `start` that a row may see.
inline int seen(const Work& w, int row, int start) {
  const int n = w.tile.first + row + 1 - start;
  return n < 0 ? 0 : n < kTile ? n : kTile;
}

inline void begin_span(const Work& w, float* records, int span) {
  const int64_t stride = w.elements + 16;
  const int64_t head_dim = w.tile.head_dim;
  for (int query = 0; query < w.queries;) {
    const int m = next_group(w, query);
    for (int i = 0; i < m; ++i) {
      const int row = (query + i) / w.tile.heads, head = (query + i) % w.tile.heads;
      const float* q = w.tile.q + row * w.tile.q_stride + head * head_dim;
      float* out = w.packed + query * head_dim + i;
      for (int64_t d = 0; d < head_dim; ++d) out[d * m] = q[d] * w.tile.scale;
      for (int j = 0; j < kState; ++j) w.states[(query + i) * kState + j] = j == 16 ? kLowest : 0.0f;
      if (seen(w, row, span * kAttentionSpan) == 0) continue;
      float* sums = records + (query + i) * stride + 16;
      for (int64_t e = 0; e < w.elements; e += kLanes) store(sums + e, zero());
    }
    query += m;
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
  int start, blocks;                         // first position, blocks that some row sees
  const unsigned char* stored[kTileBlocks];  // of this tile and of the next one
  const unsigned char* next[kTileBlocks];
  const float *keys[kTileBlocks], *values[kTileBlocks];
  int groups;  // of queries
  // With few queries reading is the slow part: they fetch the next tile. With many, fetching costs more than it brings.
  const Products* products;
  int64_t step;  // bytes of the next tile that a group fetches per register of 16 floats
};

// Float32 keys and values: where they lie, or widened.
inline void widen_tile(const Work& w, Tile& tile) {
  const AttentionTile& t = w.tile;
  for (int b = 0; b < tile.blocks; ++b) {
    const unsigned char* k = tile.stored[b];
    const unsigned char* v = k + t.value_offset;
    if (t.format == KvFormat::kF32) {
      tile.keys[b] = reinterpret_cast<const float*>(k);
      tile.values[b] = reinterpret_cast<const float*>(v);
      continue;
    }
    float* wide_keys = w.keys + b * 16 * w.elements;
    float* wide_values = w.values + b * 16 * w.elements;
    if (t.format == KvFormat::kBF16) {
      widen_bf16s(k, t.head_dim * int64_t{16}, wide_keys);
      widen_bf16s(v, w.elements * 16, wide_values);
    } else {
      widen_q8_keys(k, t.head_dim, wide_keys);
      widen_q8_values(v, t.head_dim, wide_values);
    }
    tile.keys[b] = wide_keys;
    tile.values[b] = wide_values;
  }
}

inline Tile tile_at(const Work& w, int start) {
  Tile tile{};
  tile.start = start;
  tile.blocks = (seen(w, w.tile.rows - 1, start) + 15) / 16;
  stored_blocks(w, start, nullptr, tile.stored);
  stored_blocks(w, start + kTile, tile.stored[0], tile.next);
  for (int query = 0; query < w.queries; query += next_group(w, query)) ++tile.groups;
  tile.products = tile.groups <= 2 ? &kProducts<true> : &kProducts<false>;
  const auto registers = static_cast<int64_t>(w.tile.head_dim) * tile.groups;
  tile.step = (static_cast<int64_t>(w.tile.value_offset) + registers - 1) / registers;
  widen_tile(w, tile);
  return tile;
}

// Queries [query, query + m): what all of them see together, then what the later rows see beyond the first one.
inline void weigh_group(const Work& w, const Tile& tile, int query, const Ahead& ahead, Chunks part, float* records) {
  const int64_t stride = w.elements + 16;
  const int m = next_group(w, query), heads = w.tile.heads;
  const auto run = [&](int from, int to, int begin, int end) {
    if (begin < end) {
      tile.products->weigh[to - from - 1](w.p + from * kTile, {tile.values, begin, end, ahead}, part,
                                          records + from * stride + 16, stride);
    }
  };
  const int first_row = query / heads, last_row = (query + m - 1) / heads;
  const int together = seen(w, first_row, tile.start);
  run(query, query + m, 0, together);
  if (seen(w, last_row, tile.start) == together) return;
  for (int row = first_row; row <= last_row; ++row) {
    const int from = row == first_row ? query : row * heads;
    const int to = row == last_row ? query + m : (row + 1) * heads;
    run(from, to, together, seen(w, row, tile.start));
  }
}

inline void pass_tile(const Work& w, int start, float* records) {
  const int64_t stride = w.elements + 16, head_dim = w.tile.head_dim;
  const Tile tile = tile_at(w, start);
  // Two blocks of keys stay in L1 while all queries pass over them.
  const int step = tile.groups == 1 ? kTileBlocks : 2;
  for (int b = 0; b < tile.blocks; b += step) {
    const int count = tile.blocks - b < step ? tile.blocks - b : step;
    for (int query = 0, group = 0; query < w.queries; ++group) {
      const int m = next_group(w, query);
      if (seen(w, (query + m - 1) / w.tile.heads, start) > b * 16) {
        tile.products->scores[m - 1](w.packed + query * head_dim, w.tile.head_dim, tile.keys + b, count,
                                     {tile.next + b, group * head_dim * tile.step, tile.step},
                                     w.p + query * kTile + b * 16);
      }
      query += m;
    }
  }
  for (int query = 0; query < w.queries; ++query) {
    const int n = seen(w, query / w.tile.heads, start);
    if (n > 0) {
      exponentials(w.p + query * kTile, n, w.states + query * kState, records + query * stride + 16, w.elements);
    }
  }
  const int chunks = static_cast<int>(w.elements / 16);
  for (int c = 0; c < chunks; c += kChunksAtOnce) {
    const Chunks part{c, chunks - c < kChunksAtOnce ? chunks - c : kChunksAtOnce};
    for (int query = 0, group = 0; query < w.queries; query += next_group(w, query), ++group) {
      const int64_t offset = static_cast<int64_t>(w.tile.value_offset) + group * w.elements * tile.step;
      weigh_group(w, tile, query, {tile.next, offset, tile.step}, part, records);
    }
  }
}

inline void span(const AttentionTile& tile, int span, float* records) {
  const Work w = work_of(tile);
  const int start = span * kAttentionSpan, last = tile.first + tile.rows - 1;
  begin_span(w, records, span);
  for (int at = start; at < start + kAttentionSpan && at <= last; at += kTile) pass_tile(w, at, records);
  for (int query = 0; query < w.queries; ++query) {
    if (seen(w, query / tile.heads, start) == 0) continue;
    float* record = records + query * (w.elements + 16);
    const float* state = w.states + query * kState;
    Vec lanes = load(state);
    for (int v = 1; v < kVecs; ++v) lanes = add(lanes, load(state + v * kLanes));
    record[0] = state[16];
    record[1] = reduce_add(lanes);
  }
}

inline void merge(float* total, const float* later, int head_dim) {
  const float top = total[0] > later[0] ? total[0] : later[0];
  const Vec a = exp_vec(sub(set1(total[0]), set1(top))), b = exp_vec(sub(set1(later[0]), set1(top)));
  const auto both = [&](Vec x, Vec y) { return fma(y, b, mul(x, a)); };
  float sum[kLanes];
  store(sum, both(set1(total[1]), set1(later[1])));
  total[0] = top;
  total[1] = sum[0];
  for (int i = 16; i < 16 + head_dim; i += kLanes) store(total + i, both(load(total + i), load(later + i)));
}

inline void finish(const float* total, float* out, int head_dim) {
  const Vec sum = set1(total[1]);
  int i = 0;
  for (; i + kLanes <= head_dim; i += kLanes) store(out + i, div(load(total + 16 + i), sum));
  if (i < head_dim) store_partial(out + i, head_dim - i, div(load(total + 16 + i), sum));
}

inline void rotate(float* head, const float* cos, const float* sin, int half) {
  const auto turn = [](Vec a, Vec b, Vec c, Vec s, Vec& first_out, Vec& second_out) {
    first_out = sub(mul(a, c), mul(b, s));
    second_out = add(mul(b, c), mul(a, s));
  };
  int i = 0;
  Vec x, y;
  for (; i + kLanes <= half; i += kLanes) {
    turn(load(head + i), load(head + half + i), load(cos + i), load(sin + i), x, y);
    store(head + i, x);
    store(head + half + i, y);
  }
  if (i < half) {
    const int n = half - i;
    turn(load_partial(head + i, n), load_partial(head + half + i, n), load_partial(cos + i, n),
         load_partial(sin + i, n), x, y);
    store_partial(head + i, n, x);
    store_partial(head + half + i, n, y);
  }
}

}  // namespace attention
