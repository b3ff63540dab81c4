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
inline Vec load_unaligned_partial(const unsigned char* p, int count) {
  return _mm256_maskload_ps(reinterpret_cast<const float*>(p), first(count));
}
inline Vec widen_bf16(__m128i bits) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16)); }
inline Vec load_bf16(const unsigned char* p) {
  return widen_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p)));
}
// AVX2 has no masked load of 16-bit elements, and the bytes behind the last row may not be ours.
inline Vec load_bf16_partial(const unsigned char* p, int count) {
  alignas(16) unsigned char bytes[16] = {};
  __builtin_memcpy(bytes, p, static_cast<unsigned long>(count) * 2);
  return load_bf16(bytes);
}
inline void prefetch(const unsigned char* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }

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

// 16 registers: rows * columns accumulators, the rows' vectors and one of weights.
constexpr int kMaxRows = 3;
constexpr int columns(int rows) { return rows == 1 ? 8 : 4; }

#include "kernels/generic/formats.inl.h"
#include "kernels/generic/matmul.inl.h"
#include "kernels/generic/vector_math.inl.h"

}  // namespace

constinit const Kernels kAvx2Kernels = {
    .name = "avx2",
#include "kernels/generic/table.inl.h"
};

}  // namespace carpool
#endif
