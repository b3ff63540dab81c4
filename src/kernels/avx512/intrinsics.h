// The AVX-512 intrinsics that avx512.cc is written in, and the name its table has.
//
// Normally the compiler's. With CARPOOL_EMULATE_AVX512 they are functions of the same meaning for processors with AVX2
// only: those of SIMDe and, where that has none, the ones below. Emulated code exists for the test program of
// avx512/CMakeLists.txt alone; its table has a symbol of its own, so both tables can be in one program. Included by
// avx512.cc only, outside all namespaces.
#pragma once

#include "kernels/tables.h"  // first: it is not to see the macros below

#if !defined(CARPOOL_EMULATE_AVX512)
#include <immintrin.h>

#define CARPOOL_AVX512_TABLE kAvx512Kernels
#define CARPOOL_AVX512_NAME "avx512"
#else
#if defined(__AVX512F__)
#error "an emulation that the compiler may build out of AVX-512 instructions tests nothing"
#endif
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#define CARPOOL_AVX512_TABLE kEmulatedAvx512Kernels
#define CARPOOL_AVX512_NAME "avx512_emulated"

namespace carpool {
extern const Kernels CARPOOL_AVX512_TABLE;
namespace emulation {
namespace {

// A register of 512 bits as two of 256.
template <class Half>
struct Halves {
  Half low, high;
};
template <class Half, class Whole>
inline Halves<Half> split(const Whole& v) {
  Halves<Half> h;
  static_assert(sizeof(h) == sizeof(v));
  __builtin_memcpy(&h, &v, sizeof(v));
  return h;
}
template <class Whole, class Half>
inline Whole join(Half low, Half high) {
  Whole v;
  const Halves<Half> h = {low, high};
  static_assert(sizeof(h) == sizeof(v));
  __builtin_memcpy(&v, &h, sizeof(v));
  return v;
}
inline __m128i upper_bytes(__m128i v) { return _mm_srli_si128(v, 8); }

inline __m512i cvtepi8_epi32(__m128i v) {
  return join<__m512i>(_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(upper_bytes(v)));
}
inline __m512i cvtepu8_epi32(__m128i v) {
  return join<__m512i>(_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(upper_bytes(v)));
}
inline __m512i cvtepu16_epi32(__m256i v) {
  return join<__m512i>(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(v)),
                       _mm256_cvtepu16_epi32(_mm256_extracti128_si256(v, 1)));
}
inline __m512 cvtepi32_ps(__m512i v) {
  const auto h = split<__m256i>(v);
  return join<__m512>(_mm256_cvtepi32_ps(h.low), _mm256_cvtepi32_ps(h.high));
}
// SIMDe 0.7.4 gives the name to a function of four arguments.
inline __m512i madd_epi16(__m512i a, __m512i b) {
  const auto x = split<__m256i>(a), y = split<__m256i>(b);
  return join<__m512i>(_mm256_madd_epi16(x.low, y.low), _mm256_madd_epi16(x.high, y.high));
}
// To the nearest, ties to even; 0x80000000 for what does not fit.
inline __m512i cvtps_epi32(__m512 v) {
  const auto h = split<__m256>(v);
  return join<__m512i>(_mm256_cvtps_epi32(h.low), _mm256_cvtps_epi32(h.high));
}
inline __m512 cvtph_ps(__m256i v) {
  return join<__m512>(_mm256_cvtph_ps(_mm256_castsi256_si128(v)), _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1)));
}
inline __m256 extractf32x8_ps(__m512 v, int which) {
  const auto h = split<__m256>(v);
  return (which & 1) != 0 ? h.high : h.low;
}
// Lanes outside the mask are not touched in memory, as the instructions promise: a tail may end with its allocation.
inline __m512 maskz_loadu_ps(unsigned mask, const void* from) {
  alignas(64) float lanes[16];
  for (unsigned i = 0; i < 16; ++i) {
    lanes[i] = 0.0f;
    if ((mask >> i & 1) != 0) __builtin_memcpy(&lanes[i], static_cast<const char*>(from) + 4 * i, 4);
  }
  return _mm512_loadu_ps(lanes);
}
inline void mask_storeu_ps(void* to, unsigned mask, __m512 v) {
  alignas(64) float lanes[16];
  _mm512_storeu_ps(lanes, v);
  for (unsigned i = 0; i < 16; ++i) {
    if ((mask >> i & 1) != 0) __builtin_memcpy(static_cast<char*>(to) + 4 * i, &lanes[i], 4);
  }
}
inline int reduce_add_epi32(__m512i v) {
  unsigned lanes[16], sum = 0;
  __builtin_memcpy(lanes, &v, 64);
  for (const unsigned lane : lanes) sum += lane;
  return static_cast<int>(sum);
}

}  // namespace
}  // namespace emulation
}  // namespace carpool

// The compiler's own header declares these too, as functions that only AVX-512 code may call, or as macros.
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtepu8_epi32
#undef _mm512_cvtepu16_epi32
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtps_epi32
#undef _mm512_cvtph_ps
#undef _mm512_extractf32x8_ps
#undef _mm512_madd_epi16
#undef _mm512_maskz_loadu_ps
#undef _mm512_mask_storeu_ps
#undef _mm512_reduce_add_epi32
#define _mm512_cvtepi8_epi32 emulation::cvtepi8_epi32
#define _mm512_cvtepu8_epi32 emulation::cvtepu8_epi32
#define _mm512_cvtepu16_epi32 emulation::cvtepu16_epi32
#define _mm512_cvtepi32_ps emulation::cvtepi32_ps
#define _mm512_cvtps_epi32 emulation::cvtps_epi32
#define _mm512_cvtph_ps emulation::cvtph_ps
#define _mm512_extractf32x8_ps emulation::extractf32x8_ps
#define _mm512_madd_epi16 emulation::madd_epi16
#define _mm512_maskz_loadu_ps emulation::maskz_loadu_ps
#define _mm512_mask_storeu_ps emulation::mask_storeu_ps
#define _mm512_reduce_add_epi32 emulation::reduce_add_epi32
#endif
