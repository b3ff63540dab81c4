// The AVX-512 table (F, BW, VL, DQ): the vector vocabulary of 16 lanes, over which generic/ is instantiated.
//
// Everything but the table is in an anonymous namespace and nothing inline from a shared header is called: a shared
// inline function compiled here could be the copy the linker keeps, and then run on machines without AVX-512.
// A test looks at the object file for that.
#if defined(__x86_64__)
#include <immintrin.h>

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
inline Vec load_unaligned_partial(const unsigned char* p, int count) { return _mm512_maskz_loadu_ps(first(count), p); }
inline Vec widen_bf16(__m256i bits) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)); }
inline Vec load_bf16(const unsigned char* p) {
  return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p)));
}
inline Vec load_bf16_partial(const unsigned char* p, int count) {
  return widen_bf16(_mm256_maskz_loadu_epi16(first(count), p));
}
inline void prefetch(const unsigned char* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }

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

// 32 registers: rows * columns accumulators, the rows' vectors and one of weights.
constexpr int kMaxRows = 6;
constexpr int columns(int rows) { return rows <= 3 ? 8 : 4; }

#include "kernels/generic/formats.inl.h"
#include "kernels/generic/matmul.inl.h"
#include "kernels/generic/vector_math.inl.h"

}  // namespace

constinit const Kernels kAvx512Kernels = {
    .name = "avx512",
#include "kernels/generic/table.inl.h"
};

}  // namespace carpool
#endif
