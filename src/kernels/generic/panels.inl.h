// Everything that multiplies with panels: what the formats share, one file per format, and the two products.
//
// Included inside the anonymous namespace of an instruction set's .cc file, after its vector vocabulary. A new format
// is one more #include here, beside its line in formats.def. Panel layouts: tensor/panels.h.

// 0, 1, ... as template arguments; the standard's sequence is not used for the reason avx512.cc gives.
template <int...>
struct Numbers {};
template <int N, int... m>
struct FirstNumbersOf : FirstNumbersOf<N - 1, N - 1, m...> {};
template <int... m>
struct FirstNumbersOf<0, m...> {
  using Type = Numbers<m...>;
};
template <int N>
using FirstNumbers = typename FirstNumbersOf<N>::Type;

// Group g of a run of nibble pairs: columns 4 g..4 g + 3, the low nibbles of pair g / 2 for even g, else the high ones.
inline IVec nibbles(const unsigned char* block, int g, int h) {
  const IVec pair = load_bytes(block + 64 * (g / 2) + 4 * kLanes * h);
  return and_bytes(g % 2 == 0 ? pair : shift_right16<4>(pair), 15);
}

template <int N>
inline void nibble_codes(const unsigned char* block, int h, IVec (&w)[N]) {
#pragma GCC unroll 8
  for (int j = 0; j < N; j += 2) {
    const IVec pair = load_bytes(block + 32 * j + 4 * kLanes * h);
    w[j] = and_bytes(pair, 15);
    w[j + 1] = and_bytes(shift_right16<4>(pair), 15);
  }
}

// Group g of a run of five-bit codes: nibbles, then one bit for each of 32 columns (bit g of byte c: column 4 g + c).
inline IVec five_bits(const unsigned char* block, int g, int h) {
  const IVec upper = load_bytes(block + 256 + 4 * kLanes * h);
  const IVec low = nibbles(block, g, h);
  switch (g) {
    case 0:
      return or_masked(low, shift_left16<4>(upper), 16);
    case 1:
      return or_masked(low, shift_left16<3>(upper), 16);
    case 2:
      return or_masked(low, shift_left16<2>(upper), 16);
    case 3:
      return or_masked(low, shift_left16<1>(upper), 16);
    case 4:
      return or_masked(low, upper, 16);
    case 5:
      return or_masked(low, shift_right16<1>(upper), 16);
    case 6:
      return or_masked(low, shift_right16<2>(upper), 16);
    default:
      return or_masked(low, shift_right16<3>(upper), 16);
  }
}

inline void five_bit_codes(const unsigned char* block, int h, IVec (&w)[8]) {
#pragma GCC unroll 8
  for (int g = 0; g < 8; ++g) w[g] = five_bits(block, g, h);
}

// 16 columns of two bits each, four groups in every byte, lowest first.
inline void two_bit_codes(IVec stored, IVec (&w)[4]) {
  w[0] = and_bytes(stored, 3);
  w[1] = and_bytes(shift_right16<2>(stored), 3);
  w[2] = and_bytes(shift_right16<4>(stored), 3);
  w[3] = and_bytes(shift_right16<6>(stored), 3);
}

// 32 columns of nibbles that choose signed levels, as codes for dots_signed.
inline void iq4_codes(const unsigned char* block, int h, IVec (&w)[8]) {
  nibble_codes(block, h, w);
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) w[j] = signed_codes(iq4_levels(w[j]));
}

// The four bytes of each word, less `offset`, as floats times `scale`.
inline void scaled_bytes(IVec words, IVec offset, Vec scale, Vec* w) {
  w[0] = mul(to_float(sub32(byte_of<0>(words), offset)), scale);
  w[1] = mul(to_float(sub32(byte_of<1>(words), offset)), scale);
  w[2] = mul(to_float(sub32(byte_of<2>(words), offset)), scale);
  w[3] = mul(to_float(sub32(byte_of<3>(words), offset)), scale);
}
inline void scaled_bytes(IVec words, int offset, Vec scale, Vec* w) { scaled_bytes(words, set1_int(offset), scale, w); }

#include "kernels/generic/panel_int8.inl.h"
//
#include "kernels/generic/panel_float.inl.h"
//
#include "kernels/generic/bf16.inl.h"
#include "kernels/generic/f16.inl.h"
#include "kernels/generic/f32.inl.h"
#include "kernels/generic/fp8.inl.h"
#include "kernels/generic/int4.inl.h"
#include "kernels/generic/int4f.inl.h"
#include "kernels/generic/int8.inl.h"
#include "kernels/generic/iq4_nl.inl.h"
#include "kernels/generic/iq4_xs.inl.h"
#include "kernels/generic/mxfp4.inl.h"
#include "kernels/generic/nvfp4.inl.h"
#include "kernels/generic/q2_k.inl.h"
#include "kernels/generic/q3_k.inl.h"
#include "kernels/generic/q4_0.inl.h"
#include "kernels/generic/q4_1.inl.h"
#include "kernels/generic/q4_k.inl.h"
#include "kernels/generic/q5_0.inl.h"
#include "kernels/generic/q5_1.inl.h"
#include "kernels/generic/q5_k.inl.h"
#include "kernels/generic/q6_k.inl.h"
#include "kernels/generic/q8_0.inl.h"

// The formats whose codes are no integers.
struct NotInt8 {};
using Int8F32 = NotInt8;
using Int8BF16 = NotInt8;
using Int8F16 = NotInt8;
using Int8FP8 = NotInt8;

template <class F>
constexpr PanelKernel int8_of = product_int8<F>;
template <>
constexpr PanelKernel int8_of<NotInt8> = nullptr;
