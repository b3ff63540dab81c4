// Q5_1 panels: those of Q5_0, then 16 half-precision minima.
struct Int8Q5_1 {
  static constexpr int kColumns = 32, kSubs = 1, kBytes = 384, kOffset = 0;
  static constexpr bool kIntegerScales = false;
  static void codes(const unsigned char* block, int, int h, IVec (&w)[8]) { five_bit_codes(block, h, w); }
  static Vec scale(const unsigned char* block, int, int h) { return load_f16(block + 320 + 2 * kLanes * h); }
  static Vec minimum(const unsigned char* block, int, int h) { return load_f16(block + 352 + 2 * kLanes * h); }
  template <int P, int M>
  static void dots(const IVec (&w)[P][8], const Int8Row* x, long at, IVec (&sums)[P][M]) {
    dots_unsigned<31>(w, x, at, sums);
  }
};

struct FloatQ5_1 {
  static constexpr int kColumns = 32, kBytes = 384;
  static void weights(const unsigned char* block, int k, int h, Vec* w) {
    scaled_bytes(five_bits(block, k / 4, h), 0, Int8Q5_1::scale(block, 0, h), w);
    const Vec low = Int8Q5_1::minimum(block, 0, h);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) w[i] = add(w[i], low);
  }
};
