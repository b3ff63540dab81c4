// Q2_K panels: 256 columns as 16 sub-blocks of 16, each 64 bytes of codes of two bits (bits 2 g of byte c: column 4 g +
// c) and 16 bytes with a scale in the low nibble and a minimum in the high one; then 16 half-precision d and 16
// half-precision dmin. Value = d * scale * code - dmin * minimum.
struct Int8Q2_K {
  static constexpr int kColumns = 16, kSubs = 16, kBytes = 1344, kOffset = 0;
  static constexpr bool kIntegerScales = true;
  static void codes(const unsigned char* block, int s, int h, IVec (&w)[4]) {
    two_bit_codes(load_bytes(block + 80 * s + 4 * kLanes * h), w);
  }
  static IVec scale_words(const unsigned char* part, int h) { return and_bytes(widen_u8(part + 64 + kLanes * h), 15); }
  static IVec minimum_words(const unsigned char* part, int h) {
    return shift_right16<4>(widen_u8(part + 64 + kLanes * h));
  }
  static IVec scales(const unsigned char* block, int s, int h) { return factors_of(scale_words(block + 80 * s, h)); }
  template <int P, int M>
  static void dots(const IVec (&w)[P][4], const Int8Row* x, long at, const IVec (&factors)[P], IVec (&start)[P][M],
                   IVec (&total)[P][M]) {
    dots_scaled<3, 15>(w, x, at, factors, start, total);
  }
  static IVec pair(const unsigned char* block, int s, int h) {  // minima
    return or_bits(minimum_words(block + 80 * s, h), shift_left32<16>(minimum_words(block + 80 * s + 80, h)));
  }
  static Vec finish(const unsigned char* block, int h, IVec total, IVec taken) {
    const Vec d = load_f16(block + 1280 + 2 * kLanes * h), dmin = load_f16(block + 1312 + 2 * kLanes * h);
    return fnma(dmin, to_float(taken), mul(to_float(total), d));
  }
};

struct FloatQ2_K {
  static constexpr int kColumns = 256, kBytes = 1344;
  static void weights(const unsigned char* block, int k, int h, Vec* w) {
    const unsigned char* part = block + 80 * (k / 16);
    IVec codes[4];
    Int8Q2_K::codes(block, k / 16, h, codes);
    const Vec scale = mul(load_f16(block + 1280 + 2 * kLanes * h), to_float(Int8Q2_K::scale_words(part, h)));
    const Vec low = mul(load_f16(block + 1312 + 2 * kLanes * h), to_float(Int8Q2_K::minimum_words(part, h)));
    scaled_bytes(codes[k % 16 / 4], 0, scale, w);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) w[i] = sub(w[i], low);
  }
};
