// IQ4_XS panels: 256 columns as eight sub-blocks of 32, each four times 64 bytes of nibble pairs, which choose signed
// levels, and 16 signed scales of 6 bits; then 16 half-precision d. A sub-block's scale d * scale is exact.
struct Int8IQ4_XS {
  static constexpr int kColumns = 32, kSubs = 8, kBytes = 2208, kOffset = kSignedOffset;
  static constexpr bool kIntegerScales = false;
  static void codes(const unsigned char* block, int s, int h, IVec (&w)[8]) { iq4_codes(block + 272 * s, h, w); }
  static Vec scale(const unsigned char* block, int s, int h) {
    return mul(load_f16(block + 2176 + 2 * kLanes * h), to_float(widen_s8(block + 272 * s + 256 + kLanes * h)));
  }
  template <int P, int M>
  static void dots(const IVec (&w)[P][8], const Int8Row* x, long at, IVec (&sums)[P][M]) {
    dots_signed(w, x, at, sums);
  }
};

struct FloatIQ4_XS {
  static constexpr int kColumns = 256, kBytes = 2208;
  static void weights(const unsigned char* block, int k, int h, Vec* w) {
    const IVec levels = xor_bytes(iq4_levels(nibbles(block + 272 * (k / 32), k % 32 / 4, h)), 0x80);
    scaled_bytes(levels, 128, Int8IQ4_XS::scale(block, k / 32, h), w);
  }
};
