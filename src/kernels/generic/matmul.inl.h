// The matrix product, for any instruction set and any weight format.
//
// Included inside the anonymous namespace of an instruction set's .cc file, after its vector vocabulary. One vector
// accumulator per output (m, n): lane l sums k = l (mod lanes) in ascending k with fused multiply-adds, then the lanes
// are added in a fixed tree. That order depends on the number of columns alone, so a row is a row; blocking over rows
// and weight rows only decides what is in a register when. A format is a type Weights<id> with
//   kBytes               bytes of one element
//   load(p), load_partial(p, count)   widen kLanes (or the first count, rest 0) elements to a vector
// The instruction set gives kMaxRows, the largest row block, and columns(rows), the weight rows held beside it.

constexpr int kGroup = 8;      // weight rows that all rows pass over while these are in L1
constexpr int kRowChunk = 24;  // activation rows that stay in L2 while a tile of weights passes

// Row blocks above kMaxRows are never asked for, so they need no code of their own.
constexpr int fit(int rows) { return rows <= kMaxRows ? rows : 1; }

// Y[m][n] for M rows and N weight rows. `ahead` != 0: prefetch the weights that many bytes ahead.
template <class W, int M, int N, bool Ahead>
inline void block(const float* const* x, const unsigned char* w, int64_t row_bytes, int64_t cols, float* const* y,
                  int64_t n0, int64_t ahead) {
  constexpr int kBytesPerStep = kLanes * W::kBytes;
  constexpr int kSteps = kBytesPerStep >= 64 ? 1 : 64 / kBytesPerStep;  // vectors per cache line
  Vec sum[M][N];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) sum[m][n] = zero();
  }
  const auto step = [&](int64_t k) __attribute__((always_inline)) {
    Vec xs[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) xs[m] = load(x[m] + k);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      const Vec wn = W::load(w + n * row_bytes + k * W::kBytes);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) sum[m][n] = fma(xs[m], wn, sum[m][n]);
    }
  };
  int64_t k = 0;
  for (; k + kLanes * kSteps <= cols; k += kLanes * kSteps) {
    if constexpr (Ahead) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) prefetch(w + n * row_bytes + k * W::kBytes + ahead);
    }
#pragma GCC unroll 4
    for (int s = 0; s < kSteps; ++s) step(k + s * kLanes);
  }
  for (; k + kLanes <= cols; k += kLanes) step(k);
  if (k < cols) {
    const int left = static_cast<int>(cols - k);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      const Vec wn = W::load_partial(w + n * row_bytes + k * W::kBytes, left);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) sum[m][n] = fma(load_partial(x[m] + k, left), wn, sum[m][n]);
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int n = 0; n < N; ++n) y[m][n0 + n] = reduce_add(sum[m][n]);
  }
}

// M rows against `count` <= kGroup weight rows.
template <class W, int M>
void group(const float* const* x, const unsigned char* w, int64_t row_bytes, int64_t cols, float* const* y, int64_t n0,
           int count, int64_t ahead) {
  constexpr int N = columns(M);
  int n = 0;
  for (; n + N <= count; n += N) {
    if (ahead != 0) {
      block<W, M, N, true>(x, w + n * row_bytes, row_bytes, cols, y, n0 + n, ahead);
    } else {
      block<W, M, N, false>(x, w + n * row_bytes, row_bytes, cols, y, n0 + n, 0);
    }
  }
  for (; n < count; ++n) block<W, M, 1, false>(x, w + n * row_bytes, row_bytes, cols, y, n0 + n, 0);
}

template <class W>
void matmul(const float* const* x, int rows, const WeightView& view, int64_t begin, int64_t end, float* const* y) {
  using Group =
      void (*)(const float* const*, const unsigned char*, int64_t, int64_t, float* const*, int64_t, int, int64_t);
  static constexpr Group kGroups[] = {group<W, 1>,      group<W, fit(2)>, group<W, fit(3)>,
                                      group<W, fit(4)>, group<W, fit(5)>, group<W, fit(6)>};
  static_assert(kMaxRows >= 1 && kMaxRows <= 6);
  const int64_t cols = view.cols, row_bytes = cols * W::kBytes;
  const auto* weights = static_cast<const unsigned char*>(view.data);
  for (int chunk = 0; chunk < rows; chunk += kRowChunk) {
    const int chunk_end = rows - chunk < kRowChunk ? rows : chunk + kRowChunk;
    for (int64_t n = begin; n < end; n += kGroup) {
      const int count = end - n < kGroup ? static_cast<int>(end - n) : kGroup;
      // The next group's weights come from memory while this one is computed, once per group.
      int64_t ahead = chunk == 0 && n + kGroup < end ? kGroup * row_bytes : 0;
      for (int m = chunk; m < chunk_end;) {
        const int left = chunk_end - m;
        const int blocks = (left + kMaxRows - 1) / kMaxRows;
        const int take = (left + blocks - 1) / blocks;  // 7 rows = 4 + 3, not 6 + 1
        kGroups[take - 1](x + m, weights + n * row_bytes, row_bytes, cols, y + m, n, count, ahead);
        ahead = 0;
        m += take;
      }
    }
  }
}
