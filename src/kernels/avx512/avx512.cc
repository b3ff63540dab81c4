// The AVX-512 table (F, BW, VL, DQ, VNNI): the vector vocabulary of 16 lanes, over which generic/ is instantiated.
//
// Everything but the table is in an anonymous namespace and nothing inline from a shared header is called: a shared
// inline function compiled here could be the copy the linker keeps, and then run on machines without AVX-512.
// A test looks at the object file for that.
#if defined(__x86_64__)
#include "kernels/avx512/intrinsics.h"
#include "kernels/tables.h"

namespace carpool {
namespace {

constexpr int kLanes = 16;
using Vec = __m512;

inline __mmask16 first(int count) { return static_cast<__mmask16>((1u << count) - 1u); }  // 0 <= count < 16

inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec set1(float value) { return _mm512_set1_ps(value); }
inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline Vec load_partial(const float* p, int count) { return _mm512_maskz_loadu_ps(first(count), p); }
inline void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
inline void store_partial(float* p, int count, Vec v) { _mm512_mask_storeu_ps(p, first(count), v); }
inline Vec load_unaligned(const unsigned char* p) { return _mm512_loadu_ps(p); }
// Both into the second-level cache: measured, more lines can be on their way there than to the first.
inline void prefetch(const unsigned char* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }
inline void prefetch_once(const unsigned char* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }

inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec sqrt_vec(Vec a) { return _mm512_sqrt_ps(a); }
inline Vec round_to_int(Vec a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// 2^n for integral n in [-126, 127].
inline Vec pow2(Vec n) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}

inline __m256 lower(Vec v) { return _mm512_castps512_ps256(v); }
inline __m256 upper(Vec v) { return _mm512_extractf32x8_ps(v, 1); }
inline float reduce_add(Vec v) {
  const __m256 s8 = _mm256_add_ps(lower(v), upper(v));
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
inline float reduce_max(Vec v) {
  const __m256 s8 = _mm256_max_ps(lower(v), upper(v));
  const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}

// Integers, in the same register: 64 bytes or 16 words.
using IVec = __m512i;

inline Vec abs_vec(Vec v) { return _mm512_abs_ps(v); }
inline Vec fnma(Vec a, Vec b, Vec c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a b
inline IVec load_bytes(const unsigned char* p) { return _mm512_loadu_si512(p); }
inline IVec set1_int(int value) { return _mm512_set1_epi32(value); }
inline IVec add32(IVec a, IVec b) { return _mm512_add_epi32(a, b); }
inline IVec sub32(IVec a, IVec b) { return _mm512_sub_epi32(a, b); }
inline Vec to_float(IVec v) { return _mm512_cvtepi32_ps(v); }
template <int N>
inline IVec shift_left32(IVec v) {
  return _mm512_slli_epi32(v, N);
}
inline Vec upper_halves(IVec v) { return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(-65536))); }
inline IVec and_bytes(IVec v, int mask) { return _mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(mask))); }
inline IVec xor_bytes(IVec v, int mask) { return _mm512_xor_si512(v, _mm512_set1_epi8(static_cast<char>(mask))); }
inline IVec xor_bits(IVec a, IVec b) { return _mm512_xor_si512(a, b); }
inline IVec or_masked(IVec a, IVec b, int mask) {  // a | (b & mask), bytes
  return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi8(static_cast<char>(mask)), 0xf8);
}
inline IVec or_bits(IVec a, IVec b) { return _mm512_or_si512(a, b); }
template <int N>
inline IVec shift_right16(IVec v) {
  return _mm512_srli_epi16(v, N);
}
template <int N>
inline IVec shift_left16(IVec v) {
  return _mm512_slli_epi16(v, N);
}
template <int I>
inline IVec byte_of(IVec words) {
  return _mm512_and_si512(_mm512_srli_epi32(words, 8 * I), _mm512_set1_epi32(255));
}
// Bytes as unsigned and as signed words.
inline IVec widen_u8(const unsigned char* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p)));
}
inline IVec widen_s8(const unsigned char* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p)));
}
inline IVec widen_u16(const unsigned char* p) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p)));
}
inline Vec as_float(IVec bits) { return _mm512_castsi512_ps(bits); }
inline Vec load_f16(const unsigned char* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p)));
}
// E4M3 as the half of the same bits one exponent field down: 2^8 too small, exactly. Its only NaN, all ones, carries
// into the half's highest exponent bit when one is added, and with that bit is a NaN there too.
inline Vec load_e4m3(const unsigned char* p) {
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p)));
  const __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(-0x4080));
  const __m256i carry = _mm256_and_si256(_mm256_add_epi16(half, _mm256_set1_epi16(0x80)), _mm256_set1_epi16(0x4000));
  return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(half, carry)), _mm512_set1_ps(256.0f));
}
// Twice the value of each E2M1 nibble, plus 12.
inline IVec e2m1_codes(IVec nibbles) {
  const IVec table = _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  return _mm512_shuffle_epi8(table, nibbles);
}
// The signed level that each nibble chooses in IQ4_NL and IQ4_XS.
inline IVec iq4_levels(IVec nibbles) {
  const IVec table =
      _mm512_broadcast_i32x4(_mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113));
  return _mm512_shuffle_epi8(table, nibbles);
}
inline IVec broadcast_word(const signed char* x) {
  int word;
  __builtin_memcpy(&word, x, 4);
  return _mm512_set1_epi32(word);
}

// What the compiler does not know the origin of.
inline IVec in_register(IVec v) {
#if !defined(CARPOOL_EMULATE_AVX512)
  asm("" : "+v"(v));
#endif
  return v;
}

// Rows of one pass over one panel and over two: their sums, and as many running parts, fit in 32 registers, or nearly.
constexpr int kPassRows = 8, kPairRows = 6;
constexpr int kFloatRows = 6;  // of float rows, which have four sums each

// Adds to sums[p][m], per lane, the sum of code * x over the 4 N columns from `at` of row m; codes unsigned. Exact: the
// instruction sums in 32 bits. Neighbouring instructions belong to different sums, so none waits for the one before.
template <int kMax, int P, int M, class Row, int N>
inline void dots_unsigned(const IVec (&w)[P][N], const Row* x, long at, IVec (&sums)[P][M]) {
#pragma GCC unroll 8
  for (int j = 0; j < N; ++j) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      IVec word = broadcast_word(x[m].codes + at + 4 * j);
      if constexpr (P > 1) word = in_register(word);  // or it is loaded again for every panel
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) sums[p][m] = _mm512_dpbusd_epi32(sums[p][m], w[p][j], word);
    }
  }
}

// Integer factors of sub-blocks, one in each word.
inline IVec blend_halves(IVec low, IVec high) { return _mm512_mask_blend_epi16(0xaaaaaaaa, low, high); }
inline IVec factors_of(IVec words) { return words; }
inline IVec multiply_pairs(IVec a, IVec b) { return _mm512_madd_epi16(a, b); }

// Adds factor times (start + the sum over the sub-block of code * x); `start` is used up.
constexpr bool kSumsStart = true;
template <int kMax, int kFactor, int P, int M, class Row, int N>
inline void dots_scaled(const IVec (&w)[P][N], const Row* x, long at, const IVec (&factors)[P], IVec (&start)[P][M],
                        IVec (&total)[P][M]) {
  dots_unsigned<kMax>(w, x, at, start);
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      total[p][m] = _mm512_add_epi32(total[p][m], _mm512_mullo_epi32(start[p][m], factors[p]));
    }
  }
}

template <int N>
inline void paired_sums(const int* sums, int* out) {  // two neighbours in the halves of a word; |sum| < 2^15
#pragma GCC unroll 4
  for (int i = 0; i < N / 2; ++i) out[i] = (sums[2 * i] & 0xffff) | sums[2 * i + 1] * 65536;
}

// Signed codes enter as unsigned ones that are 128 too large.
constexpr int kSignedOffset = 128;
template <int P, int M, class Row, int N>
inline void dots_signed(const IVec (&w)[P][N], const Row* x, long at, IVec (&sums)[P][M]) {
  dots_unsigned<255>(w, x, at, sums);
}
inline IVec signed_codes(IVec v) { return _mm512_xor_si512(v, _mm512_set1_epi8(static_cast<char>(0x80))); }

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
// Outputs of a panel that has `outputs` of its 16.
inline void store_outputs(float* out, int outputs, int, Vec v) {
  if (outputs == 16) {
    store(out, v);
  } else {
    store_partial(out, outputs, v);
  }
}
// Rounds 16 values times `inverse` to codes and returns their sum.
inline int store_codes(signed char* out, const float* values, Vec inverse) {
  const IVec codes = _mm512_cvtps_epi32(_mm512_mul_ps(load(values), inverse));
  _mm_storeu_si128(reinterpret_cast<__m128i_u*>(out), _mm512_cvtsepi32_epi8(codes));
  return _mm512_reduce_add_epi32(codes);
}

// The first `count` lanes of `a`, 0 <= count < 16, and the others of `b`.
inline Vec choose_first(int count, Vec a, Vec b) { return _mm512_mask_mov_ps(b, first(count), a); }

// Attention: of 32 registers, so many are sums, and one holds what they are multiplied with.
constexpr int kAttentionRows = 8, kAttentionSums = 24;

#include "kernels/generic/panels.inl.h"
#include "kernels/generic/read.inl.h"
#include "kernels/generic/transpose.inl.h"
#include "kernels/generic/vector_math.inl.h"
// uses the exponential and the transposition
#include "kernels/generic/attention.inl.h"

}  // namespace

constinit const Kernels CARPOOL_AVX512_TABLE = {
    .name = CARPOOL_AVX512_NAME,
#include "kernels/generic/table.inl.h"
};

}  // namespace carpool
#endif
