// The AVX2 + FMA table: the vector vocabulary of 8 lanes, over which generic/ is instantiated.
//
// Everything but the table is in an anonymous namespace and nothing inline from a shared header is called: a shared
// inline function compiled here could be the copy the linker keeps, and then run on machines without AVX2.
// A test looks at the object file for that.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/tables.h"

namespace carpool {
namespace {

constexpr int kLanes = 8;
using Vec = __m256;

// All ones in the first `count` lanes, 0 <= count <= 8: a window into ones followed by zeros.
inline __m256i first(int count) {
  static constexpr int kWindow[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
  return _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(kWindow + 8 - count));
}

inline Vec zero() { return _mm256_setzero_ps(); }
inline Vec set1(float value) { return _mm256_set1_ps(value); }
inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
inline Vec load_partial(const float* p, int count) { return _mm256_maskload_ps(p, first(count)); }
inline void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
inline void store_partial(float* p, int count, Vec v) { _mm256_maskstore_ps(p, first(count), v); }
inline Vec load_unaligned(const unsigned char* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
inline void prefetch(const unsigned char* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }
inline void prefetch_once(const unsigned char* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_NTA); }

inline Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec sqrt_vec(Vec a) { return _mm256_sqrt_ps(a); }
inline Vec round_to_int(Vec a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// 2^n for integral n in [-126, 127].
inline Vec pow2(Vec n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}

inline float reduce_add(Vec v) {
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
inline float reduce_max(Vec v) {
  const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}

// Integers, in the same register: 32 bytes or 8 words.
using IVec = __m256i;

inline Vec abs_vec(Vec v) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v); }
inline Vec fnma(Vec a, Vec b, Vec c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a b
inline IVec load_bytes(const unsigned char* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p)); }
inline IVec set1_int(int value) { return _mm256_set1_epi32(value); }
inline IVec add32(IVec a, IVec b) { return _mm256_add_epi32(a, b); }
inline IVec sub32(IVec a, IVec b) { return _mm256_sub_epi32(a, b); }
inline Vec to_float(IVec v) { return _mm256_cvtepi32_ps(v); }
template <int N>
inline IVec shift_left32(IVec v) {
  return _mm256_slli_epi32(v, N);
}
inline Vec upper_halves(IVec v) { return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(-65536))); }
inline IVec and_bytes(IVec v, int mask) { return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(mask))); }
inline IVec xor_bytes(IVec v, int mask) { return _mm256_xor_si256(v, _mm256_set1_epi8(static_cast<char>(mask))); }
inline IVec xor_bits(IVec a, IVec b) { return _mm256_xor_si256(a, b); }
inline IVec or_bits(IVec a, IVec b) { return _mm256_or_si256(a, b); }
inline IVec or_masked(IVec a, IVec b, int mask) { return or_bits(a, and_bytes(b, mask)); }  // a | (b & mask)
template <int N>
inline IVec shift_right16(IVec v) {
  return _mm256_srli_epi16(v, N);
}
template <int N>
inline IVec shift_left16(IVec v) {
  return _mm256_slli_epi16(v, N);
}
template <int I>
inline IVec byte_of(IVec words) {
  return _mm256_and_si256(_mm256_srli_epi32(words, 8 * I), _mm256_set1_epi32(255));
}
// Bytes as unsigned and as signed words.
inline IVec widen_u8(const unsigned char* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(p)));
}
inline IVec widen_s8(const unsigned char* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(p)));
}
inline IVec widen_u16(const unsigned char* p) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p)));
}
inline Vec as_float(IVec bits) { return _mm256_castsi256_ps(bits); }
inline Vec load_f16(const unsigned char* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p)));
}
// E4M3 as the half of the same bits one exponent field down: 2^8 too small, exactly. Its only NaN, all ones, carries
// into the half's highest exponent bit when one is added, and with that bit is a NaN there too.
inline Vec load_e4m3(const unsigned char* p) {
  const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(p)));
  const __m128i half = _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(-0x4080));
  const __m128i carry = _mm_and_si128(_mm_add_epi16(half, _mm_set1_epi16(0x80)), _mm_set1_epi16(0x4000));
  return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(half, carry)), _mm256_set1_ps(256.0f));
}
// Twice the value of each E2M1 nibble, plus 12.
inline IVec e2m1_codes(IVec nibbles) {
  const IVec table =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  return _mm256_shuffle_epi8(table, nibbles);
}
// The signed level that each nibble chooses in IQ4_NL and IQ4_XS.
inline IVec iq4_levels(IVec nibbles) {
  const IVec table = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113));
  return _mm256_shuffle_epi8(table, nibbles);
}
inline IVec broadcast_word(const signed char* x) {
  int word;
  __builtin_memcpy(&word, x, 4);
  return _mm256_set1_epi32(word);
}
inline IVec sum_pairs16(IVec v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }

// Per lane, the sum of code * x over 4 N columns; codes unsigned, at most kMax. Sums of two products stay in 16 bits
// for as many groups as cannot overflow, |x| <= 127.
template <int kMax, int N>
inline IVec dot_unsigned(const IVec (&w)[N], const signed char* x) {
  constexpr int kFit = 32767 / (2 * 127 * kMax);
  constexpr int kRun = kFit >= 8 ? 8 : kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
  static_assert(kFit >= 1);
  if constexpr (kRun >= N) {
    IVec even = _mm256_maddubs_epi16(w[0], broadcast_word(x)), odd = _mm256_maddubs_epi16(w[1], broadcast_word(x + 4));
#pragma GCC unroll 8
    for (int j = 2; j < N; j += 2) {
      even = _mm256_add_epi16(even, _mm256_maddubs_epi16(w[j], broadcast_word(x + 4 * j)));
      odd = _mm256_add_epi16(odd, _mm256_maddubs_epi16(w[j + 1], broadcast_word(x + 4 * j + 4)));
    }
    return sum_pairs16(_mm256_add_epi16(even, odd));
  } else {
    IVec total = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int j = 0; j < N; j += kRun) {
      IVec run = _mm256_maddubs_epi16(w[j], broadcast_word(x + 4 * j));
#pragma GCC unroll 8
      for (int i = 1; i < kRun; ++i) {
        run = _mm256_add_epi16(run, _mm256_maddubs_epi16(w[j + i], broadcast_word(x + 4 * (j + i))));
      }
      total = _mm256_add_epi32(total, sum_pairs16(run));
    }
    return total;
  }
}

// Rows of one pass over a panel; two panels do not fit in 16 registers.
constexpr int kPassRows = 4, kPairRows = 0;
constexpr int kFloatRows = 3;  // of float rows, which have four sums each

// Adds to sums[0][m], per lane, the sum of code * x over the 4 N columns from `at` of row m.
template <int kMax, int M, class Row, int N>
inline void dots_unsigned(const IVec (&w)[1][N], const Row* x, long at, IVec (&sums)[1][M]) {
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) sums[0][m] = _mm256_add_epi32(sums[0][m], dot_unsigned<kMax>(w[0], x[m].codes + at));
}

// Integer factors of sub-blocks, one in each word, as dots_scaled wants them: here in both halves of the word.
inline IVec blend_halves(IVec low, IVec high) { return _mm256_blend_epi16(low, high, 0xaa); }
inline IVec factors_of(IVec words) { return blend_halves(words, _mm256_slli_epi32(words, 16)); }
inline IVec multiply_pairs(IVec a, IVec b) { return _mm256_madd_epi16(a, b); }

// Factor times the sum over the sub-block of code * x; |factor| <= kFactor. The factor takes the place of the ones that
// sums of two products are multiplied by to widen them.
template <int kMax, int kFactor, int N>
inline IVec dot_scaled(const IVec (&w)[N], const signed char* x, IVec factors) {
  constexpr int kFit = 32767 / (2 * 127 * kMax);
  constexpr int kPower = kFit >= 8 ? 8 : kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1, kRun = kPower < N ? kPower : N;
  static_assert(kFit >= 1 && 8.0 * 32 * 127 * kMax * kFactor < 2147483648.0);
  IVec total = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int j = 0; j < N; j += kRun) {
    IVec run = _mm256_maddubs_epi16(w[j], broadcast_word(x + 4 * j));
#pragma GCC unroll 8
    for (int i = 1; i < kRun; ++i) {
      run = _mm256_add_epi16(run, _mm256_maddubs_epi16(w[j + i], broadcast_word(x + 4 * (j + i))));
    }
    total = _mm256_add_epi32(total, _mm256_madd_epi16(run, factors));
  }
  return total;
}

constexpr bool kSumsStart = false;  // the factors are applied to sums of 16 bits, so sums start at zero
template <int kMax, int kFactor, int M, class Row, int N>
inline void dots_scaled(const IVec (&w)[1][N], const Row* x, long at, const IVec (&factors)[1], IVec (&)[1][M],
                        IVec (&total)[1][M]) {
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) {
    total[0][m] = _mm256_add_epi32(total[0][m], dot_scaled<kMax, kFactor>(w[0], x[m].codes + at, factors[0]));
  }
}

template <int N>
inline void paired_sums(const int* sums, int* out) {  // two neighbours in the halves of a word; |sum| < 2^15
#pragma GCC unroll 4
  for (int i = 0; i < N / 2; ++i) out[i] = (sums[2 * i] & 0xffff) | sums[2 * i + 1] * 65536;
}

// The same for signed codes -128..127: the sign moves to x, two products of 128 * 127 just fit.
constexpr int kSignedOffset = 0;
template <int N>
inline IVec dot_signed(const IVec (&w)[N], const signed char* x) {
  IVec total = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int j = 0; j < N; ++j) {
    const IVec product = _mm256_maddubs_epi16(_mm256_abs_epi8(w[j]), _mm256_sign_epi8(broadcast_word(x + 4 * j), w[j]));
    total = _mm256_add_epi32(total, sum_pairs16(product));
  }
  return total;
}
template <int M, class Row, int N>
inline void dots_signed(const IVec (&w)[1][N], const Row* x, long at, IVec (&sums)[1][M]) {
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) sums[0][m] = _mm256_add_epi32(sums[0][m], dot_signed(w[0], x[m].codes + at));
}
inline IVec signed_codes(IVec v) { return v; }

template <int N>
inline void scaled_sums(const int* sums, int factor, int* out) {
  static_assert(N == 4 || N == 8);
  if constexpr (N == 8) {
    _mm256_store_si256(
        reinterpret_cast<__m256i*>(out),
        _mm256_mullo_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(sums)), _mm256_set1_epi32(factor)));
  } else {
    _mm_store_si128(reinterpret_cast<__m128i*>(out),
                    _mm_mullo_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(sums)), _mm_set1_epi32(factor)));
  }
}
// Outputs 8 h.. of a panel that has `outputs` of its 16.
inline void store_outputs(float* out, int outputs, int h, Vec v) {
  const int left = outputs - 8 * h;
  if (left >= 8) {
    store(out + 8 * h, v);
  } else if (left > 0) {
    store_partial(out + 8 * h, left, v);
  }
}
// Rounds 16 values times `inverse` to codes and returns their sum.
inline int store_codes(signed char* out, const float* values, Vec inverse) {
  const IVec a = _mm256_cvtps_epi32(_mm256_mul_ps(load(values), inverse));
  const IVec b = _mm256_cvtps_epi32(_mm256_mul_ps(load(values + 8), inverse));
  const IVec words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i_u*>(out),
                   _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  const IVec both = _mm256_add_epi32(a, b);
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
  return _mm_cvtsi128_si32(s);
}

// The first `count` lanes of `a`, 0 <= count <= 8, and the others of `b`.
inline Vec choose_first(int count, Vec a, Vec b) { return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(first(count))); }

// Attention: of 16 registers, so many are sums, and one holds what they are multiplied with.
constexpr int kAttentionRows = 6, kAttentionSums = 12;

#include "kernels/generic/panels.inl.h"
#include "kernels/generic/read.inl.h"
#include "kernels/generic/transpose.inl.h"
#include "kernels/generic/vector_math.inl.h"
// uses the exponential and the transposition
#include "kernels/generic/attention.inl.h"

}  // namespace

constinit const Kernels kAvx2Kernels = {
    .name = "avx2",
#include "kernels/generic/table.inl.h"
};

}  // namespace carpool
#endif
