// Q5_K panels: 256 columns as eight sub-blocks of 32, each four times 64 bytes of nibble pairs, 64 bytes of fifth bits,
// 16 scales and 16 minima of 6 bits; then 16 half-precision d and 16 half-precision dmin. Value = d * scale * code -
// dmin * minimum.
struct Int8Q5_K {
  static constexpr int kColumns = 32, kSubs = 8, kBytes = 2880, kOffset = 0;
  static constexpr bool kIntegerScales = true;
  static void codes(const unsigned char* block, int s, int h, IVec (&w)[8]) { five_bit_codes(block + 352 * s, h, w); }
  static IVec scales(const unsigned char* block, int s, int h) {
    return factors_of(widen_u8(block + 352 * s + 320 + kLanes * h));
  }
  template <int P, int M>
  static void dots(const IVec (&w)[P][8], const Int8Row* x, long at, const IVec (&factors)[P], IVec (&start)[P][M],
                   IVec (&total)[P][M]) {
    dots_scaled<31, 63>(w, x, at, factors, start, total);
  }
  static IVec pair(const unsigned char* block, int s, int h) {  // minima
    const unsigned char* at = block + 352 * s + 336 + kLanes * h;
    return or_bits(widen_u8(at), shift_left32<16>(widen_u8(at + 352)));
  }
  static Vec finish(const unsigned char* block, int h, IVec total, IVec taken) {
    const Vec d = load_f16(block + 2816 + 2 * kLanes * h), dmin = load_f16(block + 2848 + 2 * kLanes * h);
    return fnma(dmin, to_float(taken), mul(to_float(total), d));
  }
};

struct FloatQ5_K {
  static constexpr int kColumns = 256, kBytes = 2880;
  static void weights(const unsigned char* block, int k, int h, Vec* w) {
    const unsigned char* part = block + 352 * (k / 32);
    const Vec scale = mul(load_f16(block + 2816 + 2 * kLanes * h), to_float(widen_u8(part + 320 + kLanes * h)));
    const Vec low = mul(load_f16(block + 2848 + 2 * kLanes * h), to_float(widen_u8(part + 336 + kLanes * h)));
    scaled_bytes(five_bits(part, k % 32 / 4, h), 0, scale, w);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) w[i] = sub(w[i], low);
  }
};
