// Q4_K panels: 256 columns as eight sub-blocks of 32, each four times 64 bytes of nibble pairs, 16 scales and 16 minima
// of 6 bits; then 16 half-precision d and 16 half-precision dmin. Value = d * scale * code - dmin * minimum.
struct Int8Q4_K {
  static constexpr int kColumns = 32, kSubs = 8, kBytes = 2368, kOffset = 0;
  static constexpr bool kIntegerScales = true;
  static void codes(const unsigned char* block, int s, int h, IVec (&w)[8]) { nibble_codes(block + 288 * s, h, w); }
  static IVec scales(const unsigned char* block, int s, int h) {
    return factors_of(widen_u8(block + 288 * s + 256 + kLanes * h));
  }
  template <int P, int M>
  static void dots(const IVec (&w)[P][8], const Int8Row* x, long at, const IVec (&factors)[P], IVec (&start)[P][M],
                   IVec (&total)[P][M]) {
    dots_scaled<15, 63>(w, x, at, factors, start, total);
  }
  static IVec pair(const unsigned char* block, int s, int h) {  // minima
    const unsigned char* at = block + 288 * s + 272 + kLanes * h;
    return or_bits(widen_u8(at), shift_left32<16>(widen_u8(at + 288)));
  }
  static Vec finish(const unsigned char* block, int h, IVec total, IVec taken) {
    const Vec d = load_f16(block + 2304 + 2 * kLanes * h), dmin = load_f16(block + 2336 + 2 * kLanes * h);
    return fnma(dmin, to_float(taken), mul(to_float(total), d));
  }
};

struct FloatQ4_K {
  static constexpr int kColumns = 256, kBytes = 2368;
  static void weights(const unsigned char* block, int k, int h, Vec* w) {
    const unsigned char* part = block + 288 * (k / 32) + kLanes * h;
    const Vec scale = mul(load_f16(block + 2304 + 2 * kLanes * h), to_float(widen_u8(part + 256)));
    const Vec low = mul(load_f16(block + 2336 + 2 * kLanes * h), to_float(widen_u8(part + 272)));
    scaled_bytes(nibbles(block + 288 * (k / 32), k % 32 / 4, h), 0, scale, w);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) w[i] = sub(w[i], low);
  }
};
