// IQ4_NL panels: 32 columns as four times 64 bytes of nibble pairs, which choose signed levels, then 16 half-precision
// scales.
struct Int8IQ4_NL {
  static constexpr int kColumns = 32, kSubs = 1, kBytes = 288, kOffset = kSignedOffset;
  static constexpr bool kIntegerScales = false;
  static void codes(const unsigned char* block, int, int h, IVec (&w)[8]) { iq4_codes(block, h, w); }
  static Vec scale(const unsigned char* block, int, int h) { return load_f16(block + 256 + 2 * kLanes * h); }
  template <int P, int M>
  static void dots(const IVec (&w)[P][8], const Int8Row* x, long at, IVec (&sums)[P][M]) {
    dots_signed(w, x, at, sums);
  }
};

struct FloatIQ4_NL {
  static constexpr int kColumns = 32, kBytes = 288;
  static void weights(const unsigned char* block, int k, int h, Vec* w) {
    const IVec levels = xor_bytes(iq4_levels(nibbles(block, k / 4, h)), 0x80);  // 128 too large
    scaled_bytes(levels, 128, Int8IQ4_NL::scale(block, 0, h), w);
  }
};
