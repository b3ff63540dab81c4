// Q6_K panels: 256 columns as 16 sub-blocks of 16, each twice 64 bytes of pairs of low nibbles, 64 bytes with the upper
// two bits of four groups, and 16 signed scales; then 16 half-precision d. Codes are 32 too large.
struct Int8Q6_K {
  static constexpr int kColumns = 16, kSubs = 16, kBytes = 3360, kOffset = kSumsStart ? 32 : 0;
  static constexpr bool kIntegerScales = true;
  static void codes(const unsigned char* block, int s, int h, IVec (&w)[4]) {
    const unsigned char* sub_block = block + 208 * s;
    nibble_codes(sub_block, h, w);
    const IVec upper = load_bytes(sub_block + 128 + 4 * kLanes * h);
    w[0] = or_masked(w[0], shift_left16<4>(upper), 0x30);
    w[1] = or_masked(w[1], shift_left16<2>(upper), 0x30);
    w[2] = or_masked(w[2], upper, 0x30);
    w[3] = or_masked(w[3], shift_right16<2>(upper), 0x30);
  }
  static IVec scales(const unsigned char* block, int s, int h) {
    return factors_of(widen_s8(block + 208 * s + 192 + kLanes * h));
  }
  template <int P, int M>
  static void dots(const IVec (&w)[P][4], const Int8Row* x, long at, const IVec (&factors)[P], IVec (&start)[P][M],
                   IVec (&total)[P][M]) {
    dots_scaled<63, 128>(w, x, at, factors, start, total);
  }
  static IVec pair(const unsigned char* block, int s, int h) {  // the scales again: the offset is 32 for all codes
    const unsigned char* at = block + 208 * s + 192 + kLanes * h;
    return blend_halves(widen_s8(at), shift_left32<16>(widen_s8(at + 208)));
  }
  static Vec finish(const unsigned char* block, int h, IVec total, IVec taken) {
    if constexpr (kOffset == 0) total = sub32(total, shift_left32<5>(taken));
    return mul(to_float(total), load_f16(block + 3328 + 2 * kLanes * h));
  }
};

struct FloatQ6_K {
  static constexpr int kColumns = 256, kBytes = 3360;
  static void weights(const unsigned char* block, int k, int h, Vec* w) {
    IVec codes[4];
    Int8Q6_K::codes(block, k / 16, h, codes);
    const Vec scale =
        mul(load_f16(block + 3328 + 2 * kLanes * h), to_float(widen_s8(block + 208 * (k / 16) + 192 + kLanes * h)));
    scaled_bytes(codes[k % 16 / 4], 32, scale, w);
  }
};
