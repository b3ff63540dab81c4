// Q4_1 panels: 32 columns as four times 64 bytes of nibble pairs, 16 half-precision scales, 16 half-precision minima.
struct Int8Q4_1 {
  static constexpr int kColumns = 32, kSubs = 1, kBytes = 320, kOffset = 0;
  static constexpr bool kIntegerScales = false;
  static void codes(const unsigned char* block, int, int h, IVec (&w)[8]) { nibble_codes(block, h, w); }
  static Vec scale(const unsigned char* block, int, int h) { return load_f16(block + 256 + 2 * kLanes * h); }
  static Vec minimum(const unsigned char* block, int, int h) { return load_f16(block + 288 + 2 * kLanes * h); }
  template <int P, int M>
  static void dots(const IVec (&w)[P][8], const Int8Row* x, long at, IVec (&sums)[P][M]) {
    dots_unsigned<15>(w, x, at, sums);
  }
};

struct FloatQ4_1 {
  static constexpr int kColumns = 32, kBytes = 320;
  static void weights(const unsigned char* block, int k, int h, Vec* w) {
    scaled_bytes(nibbles(block, k / 4, h), 0, Int8Q4_1::scale(block, 0, h), w);
    const Vec low = Int8Q4_1::minimum(block, 0, h);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) w[i] = add(w[i], low);
  }
};
