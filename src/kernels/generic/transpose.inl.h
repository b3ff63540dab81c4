// 16 x 16 floats transposed, for tables whose instruction set includes AVX: values out of keys (generic/attention).
//
// Included inside the anonymous namespace of an instruction set's .cc file, before attention.inl.h.

// Eight rows of eight floats, rows 16 floats apart in both.
inline void transpose8(const float* in, float* out) {
  __m256 r[8], t[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(in + 16 * i);
  // Pairs of rows, then fours, within each half of a register; then the halves.
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(out + 16 * i, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(out + 16 * (i + 4), _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}

// in[16 i + j] becomes out[16 j + i].
inline void transpose_chunk(const float* in, float* out) {
  transpose8(in, out);
  transpose8(in + 8, out + 8 * 16);
  transpose8(in + 8 * 16, out + 8);
  transpose8(in + 8 * 16 + 8, out + 8 * 16 + 8);
}
