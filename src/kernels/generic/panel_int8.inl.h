// Products of int8 activations with block-quantised panels, and the quantisation of activations.
//
// Included inside the anonymous namespace of an instruction set's .cc file, after its vector vocabulary. A register
// holds kLanes of a panel's 16 rows, four columns each, so a panel is worked on in kHalves parts. A sub-block, the
// columns that share a weight scale, is summed exactly in integers; the order of the float sums above it is fixed by
// the column alone (see kernels.h), so a row is a row and every instruction set gives the same bits. A format is a type
// Int8<id> with
//   kColumns, kSubs, kBytes   columns of a sub-block, sub-blocks and bytes of a panel block
//   kOffset                   what an unsigned code is too large
//   kIntegerScales            whether sub-blocks have integer scales; see int8_scaled_panels
//   codes(block, s, h, w), scale(block, s, h)
//   minimum(block, s, h)      if values are scale * code + minimum
//   zeros(block, s, h)        if codes have a zero point for each row, beside kOffset
//   kMaxCode                  no code is larger (absent where codes are signed)
// The vocabulary says how many rows a pass over a panel takes at most (kPassRows), and over two panels side by side
// (kPairRows, 0 = never two), and has the sums over a sub-block for all of them (dots). Two panels share what is loaded
// of the activations, which counts once arithmetic bounds a call: with more rows than one pass takes. Up to there it is
// bound by the stream from memory, which one panel after the other keeps better.

constexpr int kHalves = 16 / kLanes;
// How a pass over a panel fetches what comes after it: not at all, into the caches, or past them.
enum class Ahead { kNone, kKept, kOnce };
template <Ahead kAhead>
inline void prefetch(const unsigned char* p) {
  if constexpr (kAhead == Ahead::kOnce) {
    prefetch_once(p);
  } else {
    prefetch(p);
  }
}
constexpr int kPrefetchBytes = 9216;  // how far the stream runs ahead of the arithmetic

// The parts of a quantised row; the offsets are those of QuantizedRow, computed by the caller.
struct Int8Row {
  const signed char* codes;
  const int* sums;  // of 16 or 32 codes, whichever the format's sub-blocks are
  const float* scales;
};

// Outputs of P panels that have `outputs` of their 16 P; only the last one may have less than 16.
template <int P, int M>
inline void store_panels(const Vec (&acc)[kHalves][P][M], float* const* out, int outputs, const Vec (&scale)[P]) {
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h) {
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) {
      const int here = p + 1 < P ? 16 : outputs - 16 * p;
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) store_outputs(out[m] + 16 * p, here, h, mul(acc[h][p][m], scale[p]));
    }
  }
}

// Where P panels side by side, `panel` and those after it, are read and what comes next: of one panel what lies
// kPrefetchBytes after a byte worked on, of several the next P in the order of memory, so that it is one stream, too;
// after `end` it goes on at `next`.
template <int P>
struct Stream {
  const unsigned char* panel;
  long panel_bytes;
  const unsigned char* end;
  const unsigned char* next;

  const unsigned char* of(int p) const { return panel + p * panel_bytes; }
  template <Ahead kAhead>
  void fetch(int p, long offset, int first, int bytes) const {
    const unsigned char* at =
        P == 1 ? panel + offset + kPrefetchBytes : panel + P * panel_bytes + P * offset + p * bytes;
    if (at >= end) at = next + (at - end);
#pragma GCC unroll 8
    for (int i = first; i * 64 < bytes; i += kHalves) prefetch<kAhead>(at + i * 64);
  }
};

// out[m][16 p + r] of P panels for M rows.
template <class F, int P, int M, Ahead kAhead>
inline void int8_panels(const Stream<P>& stream, long cols, const Int8Row* x, float* const* out, int outputs,
                        const Vec (&scale)[P]) {
  constexpr int kGroupSubs = 128 / F::kColumns;
  constexpr int kSubBytes = F::kBytes / F::kSubs;
  Vec acc[kHalves][P][M] = {};
  const long subs = cols / F::kColumns;
  for (long first = 0, g = 0; first < subs; first += kGroupSubs, ++g) {
    const int count = subs - first < kGroupSubs ? static_cast<int>(subs - first) : kGroupSubs;
    alignas(64) int corrections[M][kGroupSubs];
    if constexpr (F::kOffset != 0) {
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) scaled_sums<kGroupSubs>(x[m].sums + first, -F::kOffset, corrections[m]);
    }
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) {
      Vec part[P][M] = {};
      for (int s = 0; s < count; ++s) {
        const long sub = first + s;
        const long offset = sub / F::kSubs * F::kBytes;
        const int in_block = static_cast<int>(sub % F::kSubs);
        IVec w[P][F::kColumns / 4], sums[P][M];
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) {
          if constexpr (kAhead != Ahead::kNone) {
            stream.template fetch<kAhead>(p, offset + in_block * kSubBytes, h, kSubBytes);
          }
          F::codes(stream.of(p) + offset, in_block, h, w[p]);
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m) sums[p][m] = F::kOffset != 0 ? set1_int(corrections[m][s]) : set1_int(0);
        }
        F::dots(w, x, sub * F::kColumns, sums);
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) {
          const unsigned char* block = stream.of(p) + offset;
          if constexpr (requires { F::zeros(block, 0, 0); }) {  // a word's upper half is multiplied by 0
            const IVec zeros = F::zeros(block, in_block, h);
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) {
              sums[p][m] = sub32(sums[p][m], multiply_pairs(zeros, set1_int(x[m].sums[sub] & 0xffff)));
            }
          }
          const Vec d = F::scale(block, in_block, h);
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m) part[p][m] = fma(to_float(sums[p][m]), d, part[p][m]);
          if constexpr (requires { F::minimum(block, 0, 0); }) {
            const Vec low = F::minimum(block, in_block, h);
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) {
              part[p][m] = fma(low, set1(static_cast<float>(x[m].sums[sub])), part[p][m]);
            }
          }
        }
      }
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) acc[h][p][m] = fma(part[p][m], set1(x[m].scales[g]), acc[h][p][m]);
      }
    }
  }
  store_panels(acc, out, outputs, scale);
}

// The same for formats whose sub-blocks have integer scales (Q4_K, Q6_K): the sums over 128 columns stay integers. What
// must be taken away is where a sub-block's sum starts (kOffset) or, for Q4_K's minima and where the vocabulary's sums
// cannot start anywhere, a second integer sum, two sub-blocks at a time. Besides codes() such a format has
//   scales(block, s, h), dots(w, x, at, scales, start, total)   adds scale times (start + the sum of code * x)
//   pair(block, s, h)                        16-bit factors of sub-blocks s and s + 1 in each word
//   finish(block, h, total, taken)           the two sums as a float, times the block's own scales
template <class F, int P, int M, Ahead kAhead>
inline void int8_scaled_panels(const Stream<P>& stream, long cols, const Int8Row* x, float* const* out, int outputs,
                               const Vec (&scale)[P]) {
  constexpr int kGroupSubs = 128 / F::kColumns;
  constexpr int kSubBytes = F::kBytes / F::kSubs;
  Vec acc[kHalves][P][M] = {};
  for (long g = 0; g < cols / 128; ++g) {
    const long offset = g * kGroupSubs / F::kSubs * F::kBytes;
    const int first = static_cast<int>(g * kGroupSubs % F::kSubs);
    // What is to be taken away for each sub-block: where sums begin, or a factor of pair().
    alignas(64) int sums[M][kGroupSubs];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      if constexpr (F::kOffset != 0) {
        scaled_sums<kGroupSubs>(x[m].sums + g * kGroupSubs, -F::kOffset, sums[m]);
      } else {
        paired_sums<kGroupSubs>(x[m].sums + g * kGroupSubs, sums[m]);
      }
    }
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) {
      IVec total[P][M] = {}, taken[P][M] = {};
      for (int s = 0; s < kGroupSubs; ++s) {
        IVec w[P][F::kColumns / 4], start[P][M], factors[P];
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) {
          if constexpr (kAhead != Ahead::kNone) {
            stream.template fetch<kAhead>(p, offset + (first + s) * kSubBytes, h, kSubBytes);
          }
          F::codes(stream.of(p) + offset, first + s, h, w[p]);
          factors[p] = F::scales(stream.of(p) + offset, first + s, h);
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m) start[p][m] = set1_int(F::kOffset != 0 ? sums[m][s] : 0);
        }
        F::dots(w, x, 128 * g + s * F::kColumns, factors, start, total);
        if (F::kOffset != 0 || s % 2 == 0) continue;
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) {
          const IVec pair = F::pair(stream.of(p) + offset, first + s - 1, h);
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m) {
            taken[p][m] = add32(taken[p][m], multiply_pairs(pair, set1_int(sums[m][s / 2])));
          }
        }
      }
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          acc[h][p][m] =
              fma(F::finish(stream.of(p) + offset, h, total[p][m], taken[p][m]), set1(x[m].scales[g]), acc[h][p][m]);
        }
      }
    }
  }
  store_panels(acc, out, outputs, scale);
}

template <class F, int P, int M, Ahead kAhead>
inline void int8_rows(const Stream<P>& stream, long cols, const Int8Row* x, float* const* out, int outputs,
                      const Vec (&scale)[P]) {
  if constexpr (F::kIntegerScales) {
    int8_scaled_panels<F, P, M, kAhead>(stream, cols, x, out, outputs, scale);
  } else {
    int8_panels<F, P, M, kAhead>(stream, cols, x, out, outputs, scale);
  }
}

// Panels n to n + P of rows [chunk, chunk + count) of the call.
template <class F, int P>
void int8_all_rows(const PanelProduct& p, const Stream<P>& stream, long n, const Int8Row* rows, int chunk, int count) {
  using Rows = void (*)(const Stream<P>&, long, const Int8Row*, float* const*, int, const Vec(&)[P]);
  using enum Ahead;
  constexpr int kMost = P == 1 ? kPassRows : kPairRows;
  static constexpr auto kPasses = []<int... m>(Numbers<m...>) {
    struct {
      Rows of[3][kMost];
    } passes = {
        {{int8_rows<F, P, m + 1, kNone>...}, {int8_rows<F, P, m + 1, kKept>...}, {int8_rows<F, P, m + 1, kOnce>...}}};
    return passes;
  }(FirstNumbers<kMost>{});
  const long left = p.w->rows - 16 * n;
  const int outputs = left < 16 * P ? static_cast<int>(left) : 16 * P;
  Vec scale[P];
  for (int i = 0; i < P; ++i) scale[i] = set1(p.w->scale[(n + i) & 1]);
  for (int m = 0; m < count;) {
    const int passes_left = (count - m + kMost - 1) / kMost;
    const int take = (count - m + passes_left - 1) / passes_left;  // of four at most, 5 rows = 3 + 2, not 4 + 1
    // Only the first pass over a panel fetches; what no further pass reads need not stay in the caches.
    const Ahead ahead = chunk != 0 || m != 0 ? kNone : p.rows <= kMost ? kOnce : kKept;
    float* out[kMost];
    for (int i = 0; i < take; ++i) out[i] = p.y[chunk + m + i] + 16 * (n - p.begin);
    kPasses.of[static_cast<int>(ahead)][take - 1](stream, p.w->cols, rows + m, out, outputs, scale);
    m += take;
  }
}

template <class F>
void product_int8(const PanelProduct& p) {
  constexpr int kChunk = 64;  // rows whose pointers are laid out at once
  const long cols = p.w->cols, blocks = (cols + 127) / 128;
  const long sums = F::kColumns == 16 ? 128 * blocks : 128 * blocks + 32 * blocks;
  const long scales = 128 * blocks + 32 * blocks + 16 * blocks;
  const long panel_bytes = (cols + F::kColumns * F::kSubs - 1) / (F::kColumns * F::kSubs) * F::kBytes;
  const auto* weights = reinterpret_cast<const unsigned char*>(p.w->data);
  const unsigned char* end = weights + p.end * panel_bytes;
  const auto* next = p.next ? static_cast<const unsigned char*>(p.next) : end - kPrefetchBytes;
  for (int chunk = 0; chunk < p.rows; chunk += kChunk) {
    const int count = p.rows - chunk < kChunk ? p.rows - chunk : kChunk;
    Int8Row rows[kChunk];
    for (int m = 0; m < count; ++m) {
      const auto* row = static_cast<const unsigned char*>(p.x[chunk + m]);
      rows[m] = {reinterpret_cast<const signed char*>(row), reinterpret_cast<const int*>(row + sums),
                 reinterpret_cast<const float*>(row + scales)};
    }
    long n = p.begin;
    if constexpr (kPairRows > 0) {
      for (; p.rows > kPassRows && n + 1 < p.end; n += 2) {
        int8_all_rows<F, 2>(p, {weights + n * panel_bytes, panel_bytes, end, next}, n, rows, chunk, count);
      }
    }
    for (; n < p.end; ++n) {
      int8_all_rows<F, 1>(p, {weights + n * panel_bytes, panel_bytes, end, next}, n, rows, chunk, count);
    }
  }
}

// See tensor/activations.h.
void quantize(const float* x, int64_t k, int64_t begin, int64_t end, std::byte* out) {
  const long blocks = (k + 127) / 128;
  auto* codes = reinterpret_cast<signed char*>(out);
  auto* sums16 = reinterpret_cast<int*>(codes + 128 * blocks);
  int* sums32 = sums16 + 8 * blocks;
  auto* scales = reinterpret_cast<float*>(sums32 + 4 * blocks);
  for (long b = begin; b < end; ++b) {
    alignas(64) float padded[128];
    const float* values = x + 128 * b;
    if (const long left = k - 128 * b; left < 128) {
      for (int i = 0; i < 128; ++i) padded[i] = i < left ? values[i] : 0.0f;
      values = padded;
    }
    Vec top = zero(), finite = zero();
    for (int i = 0; i < 128; i += kLanes) {
      const Vec v = load(values + i);
      top = max(abs_vec(v), top);
      finite = fma(v, zero(), finite);  // 0, or NaN once a value is not finite
    }
    const float largest = reduce_max(top);
    const float fault = reduce_add(finite);
    if (fault != fault) {  // codes of zero, so that sums stay in their range; the scale says what was here
      for (int i = 0; i < 128; ++i) padded[i] = 0.0f;
      values = padded;
    }
    const bool none = !(largest >= 1e-30f);
    const Vec inverse = set1(none ? 0.0f : 127.0f / largest);
    scales[b] = (none ? 0.0f : largest / 127.0f) + fault;
    for (int i = 0; i < 128; i += 16) sums16[8 * b + i / 16] = store_codes(codes + 128 * b + i, values + i, inverse);
    for (int i = 0; i < 4; ++i) sums32[4 * b + i] = sums16[8 * b + 2 * i] + sums16[8 * b + 2 * i + 1];
  }
}
