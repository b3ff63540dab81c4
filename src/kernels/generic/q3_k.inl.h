// Q3_K panels: 256 columns as eight pairs of sub-blocks of 16, each pair twice 64 bytes of lower two bits (as in Q2_K),
// 64 bytes of third bits (bit g of byte c: column 4 g + c of 32), twice 16 signed scales; then 16 half-precision d.
// Codes are 4 too large.
struct Int8Q3_K {
  static constexpr int kColumns = 16, kSubs = 16, kBytes = 1824, kOffset = kSumsStart ? 4 : 0;
  static constexpr bool kIntegerScales = true;
  static void codes(const unsigned char* block, int s, int h, IVec (&w)[4]) {
    const unsigned char* pair = block + 224 * (s / 2);
    two_bit_codes(load_bytes(pair + 64 * (s % 2) + 4 * kLanes * h), w);
    const IVec stored = load_bytes(pair + 128 + 4 * kLanes * h);
    const IVec upper = s % 2 == 0 ? stored : shift_right16<4>(stored);
    w[0] = or_masked(w[0], shift_left16<2>(upper), 4);
    w[1] = or_masked(w[1], shift_left16<1>(upper), 4);
    w[2] = or_masked(w[2], upper, 4);
    w[3] = or_masked(w[3], shift_right16<1>(upper), 4);
  }
  static IVec scale_words(const unsigned char* block, int s, int h) {
    return widen_s8(block + 224 * (s / 2) + 192 + 16 * (s % 2) + kLanes * h);
  }
  static IVec scales(const unsigned char* block, int s, int h) { return factors_of(scale_words(block, s, h)); }
  template <int P, int M>
  static void dots(const IVec (&w)[P][4], const Int8Row* x, long at, const IVec (&factors)[P], IVec (&start)[P][M],
                   IVec (&total)[P][M]) {
    dots_scaled<7, 32>(w, x, at, factors, start, total);
  }
  static IVec pair(const unsigned char* block, int s, int h) {  // the scales again: the offset is 4 for all codes
    return blend_halves(scale_words(block, s, h), shift_left32<16>(scale_words(block, s + 1, h)));
  }
  static Vec finish(const unsigned char* block, int h, IVec total, IVec taken) {
    if constexpr (kOffset == 0) total = sub32(total, shift_left32<2>(taken));
    return mul(to_float(total), load_f16(block + 1792 + 2 * kLanes * h));
  }
};

struct FloatQ3_K {
  static constexpr int kColumns = 256, kBytes = 1824;
  static void weights(const unsigned char* block, int k, int h, Vec* w) {
    IVec codes[4];
    Int8Q3_K::codes(block, k / 16, h, codes);
    const Vec d = load_f16(block + 1792 + 2 * kLanes * h);
    scaled_bytes(codes[k % 16 / 4], 4, mul(d, to_float(Int8Q3_K::scale_words(block, k / 16, h))), w);
  }
};
