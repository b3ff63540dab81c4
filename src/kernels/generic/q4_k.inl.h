// Q4_K panels: 256 columns as eight sub-blocks of 32, each four times 64 bytes of nibble pairs, 16 scales and 16 minima
// of 6 bits; then 16 half-precision d and 16 half-precision dmin. Value = d * scale * code - dmin * minimum.
struct Int8Q4_K {
  static constexpr int kColumns = 32, kSubs = 8, kBytes = 2368, kOffset = 0;
  static constexpr bool kMinimum = true;
  static void codes(const unsigned char* block, int s, int h, IVec (&w)[8]) { nibble_codes(block + 288 * s, h, w); }
  static Vec scale(const unsigned char* block, int s, int h) {
    return mul(load_f16(block + 2304 + 2 * kLanes * h), to_float(widen_u8(block + 288 * s + 256 + kLanes * h)));
  }
  static Vec minimum(const unsigned char* block, int s, int h) {
    return mul(load_f16(block + 2336 + 2 * kLanes * h), to_float(widen_u8(block + 288 * s + 272 + kLanes * h)));
  }
  static IVec dot(const IVec (&w)[8], const signed char* x) { return dot_unsigned<15>(w, x); }
};

struct FloatQ4_K {
  static constexpr int kColumns = 256, kBytes = 2368;
  static void weights(const unsigned char* block, int k, int h, Vec* w) {
    scaled_bytes(nibbles(block + 288 * (k / 32), k % 32 / 4, h), 0, Int8Q4_K::scale(block, k / 32, h), w);
    const Vec low = Int8Q4_K::minimum(block, k / 32, h);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) w[i] = sub(w[i], low);
  }
};
