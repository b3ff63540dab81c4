// Products of float32 activations with panels of any format.
//
// Included inside the anonymous namespace of an instruction set's .cc file, after its vector vocabulary. A register
// holds kLanes of a panel's 16 rows for one column. Each output sums in four chains, column k in chain k mod 4, with
// fused multiply-adds, then (0 + 1) + (2 + 3): that order depends on the columns alone, so a row is a row, and every
// instruction set gives the same bits. A format is a type Float<id> with
//   kColumns, kBytes      columns and bytes of a panel block
//   weights(block, k, h, w)   four columns from k on, or all of a block of fewer, as float32 without the view's scale

// One block's or step's worth of columns: n <= 4 columns starting at column k, weights w.
template <int M>
inline void float_step(const Vec* w, int n, const float* const* x, long k, Vec (*acc)[4]) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    if (i >= n) break;
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) acc[m][i] = fma(set1(x[m][k + i]), w[i], acc[m][i]);
  }
}

template <class F, int M, bool kAhead>
inline void float_panel(const unsigned char* panel, long cols, const float* const* x, const unsigned char* end,
                        const unsigned char* next, float* const* out, int outputs, Vec scale) {
  constexpr int kBlocks = F::kColumns >= 4 ? 1 : 4 / F::kColumns;  // panel blocks that make four columns
  constexpr int kStepBytes = F::kColumns >= 4 ? F::kBytes * 4 / F::kColumns : F::kBytes * kBlocks;
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h) {
    Vec acc[M][4];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) acc[m][i] = zero();
    }
    long k = 0;
    for (; k + 4 <= cols; k += 4) {
      const unsigned char* block = panel + k / F::kColumns * F::kBytes;
      if constexpr (kAhead) {
        if (h == 0) {
          const unsigned char* at = panel + k / 4 * kStepBytes + kPrefetchBytes;
          if (at >= end) at = next + (at - end);
#pragma GCC unroll 8
          for (int i = 0; i * 64 < kStepBytes; ++i) prefetch(at + i * 64);
        }
      }
      Vec w[4];
#pragma GCC unroll 4
      for (int i = 0; i < kBlocks; ++i) {
        F::weights(block + i * F::kBytes, static_cast<int>(k % F::kColumns), h, w + i * (4 / kBlocks));
      }
      float_step<M>(w, 4, x, k, acc);
    }
    if (k < cols) {  // fewer than four columns are left: blocks past the last one are not there to be read
      Vec w[4] = {zero(), zero(), zero(), zero()};
      for (int i = 0; i < kBlocks && k + i * F::kColumns < cols; ++i) {
        const unsigned char* block = panel + (k / F::kColumns + i) * F::kBytes;
        F::weights(block, static_cast<int>(k % F::kColumns), h, w + i * (4 / kBlocks));
      }
      float_step<M>(w, static_cast<int>(cols - k), x, k, acc);
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      store_outputs(out[m], outputs, h, mul(add(add(acc[m][0], acc[m][1]), add(acc[m][2], acc[m][3])), scale));
    }
  }
}

template <class F>
void product_float(const PanelProduct& p) {
  using Rows = void (*)(const unsigned char*, long, const float* const*, const unsigned char*, const unsigned char*,
                        float* const*, int, Vec);
  static constexpr auto kRows = []<int... m>(Numbers<m...>) {
    struct {
      Rows of[2][kFloatRows];
    } rows = {{{float_panel<F, m + 1, false>...}, {float_panel<F, m + 1, true>...}}};
    return rows;
  }(FirstNumbers<kFloatRows>{});
  const long cols = p.w->cols, panel_bytes = (cols + F::kColumns - 1) / F::kColumns * F::kBytes;
  const auto* weights = reinterpret_cast<const unsigned char*>(p.w->data);
  const unsigned char* end = weights + p.end * panel_bytes;
  const auto* next = p.next ? static_cast<const unsigned char*>(p.next) : end - kPrefetchBytes;
  for (long n = p.begin; n < p.end; ++n) {
    const long left = p.w->rows - 16 * n;
    const int outputs = left < 16 ? static_cast<int>(left) : 16;
    for (int m = 0; m < p.rows;) {
      const int passes_left = (p.rows - m + kFloatRows - 1) / kFloatRows;
      const int take = (p.rows - m + passes_left - 1) / passes_left;
      const float* x[kFloatRows];
      float* out[kFloatRows];
      for (int i = 0; i < take; ++i) {
        x[i] = static_cast<const float*>(p.x[m + i]);
        out[i] = p.y[m + i] + 16 * (n - p.begin);
      }
      kRows.of[m == 0][take - 1](weights + n * panel_bytes, cols, x, end, next, out, outputs, set1(p.w->scale[n & 1]));
      m += take;
    }
  }
}
