// MXFP4 panels: 32 columns as four times 64 bytes of pairs of E2M1 nibbles, then 16 E8M0 scales, which are the exponent
// field of a float32 (0, that is 2^-127, becomes zero; 255 would be infinity and becomes NaN). Codes as in NVFP4: twice
// the value plus 12, scales halved.
struct Int8MXFP4 {
  static constexpr int kColumns = 32, kSubs = 1, kBytes = 272, kOffset = 12;
  static constexpr bool kIntegerScales = false;
  static void codes(const unsigned char* block, int, int h, IVec (&w)[8]) {
    nibble_codes(block, h, w);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) w[j] = e2m1_codes(w[j]);
  }
  static Vec scale(const unsigned char* block, int, int h) {
    const Vec d = as_float(shift_left32<23>(widen_u8(block + 256 + kLanes * h)));
    return mul(fma(d, zero(), d), set1(0.5f));
  }
  template <int P, int M>
  static void dots(const IVec (&w)[P][8], const Int8Row* x, long at, IVec (&sums)[P][M]) {
    dots_unsigned<24>(w, x, at, sums);
  }
};

struct FloatMXFP4 {
  static constexpr int kColumns = 32, kBytes = 272;
  static void weights(const unsigned char* block, int k, int h, Vec* w) {
    scaled_bytes(e2m1_codes(nibbles(block, k / 4, h)), 12, Int8MXFP4::scale(block, 0, h), w);
  }
};
