// Q6_K panels: 256 columns as 16 sub-blocks of 16, each twice 64 bytes of pairs of low nibbles, 64 bytes with the upper two
// bits of four groups, and 16 signed scales; then 16 half-precision d. Codes are 32 too large.
struct Int8Q6_K {
  static constexpr int kColumns = 16, kSubs = 16, kBytes = 3360, kOffset = 32;
  static constexpr bool kMinimum = false;
  static void codes(const unsigned char* block, int s, int h, IVec (&w)[4]) {
    const unsigned char* sub_block = block + 208 * s;
    nibble_codes(sub_block, h, w);
    const IVec upper = load_bytes(sub_block + 128 + 4 * kLanes * h);
    w[0] = or_bits(w[0], and_bytes(shift_left16<4>(upper), 0x30));
    w[1] = or_bits(w[1], and_bytes(shift_left16<2>(upper), 0x30));
    w[2] = or_bits(w[2], and_bytes(upper, 0x30));
    w[3] = or_bits(w[3], and_bytes(shift_right16<2>(upper), 0x30));
  }
  static Vec scale(const unsigned char* block, int s, int h) {
    return mul(load_f16(block + 3328 + 2 * kLanes * h), to_float(widen_s8(block + 208 * s + 192 + kLanes * h)));
  }
  static IVec dot(const IVec (&w)[4], const signed char* x) { return dot_unsigned<63>(w, x); }
};

struct FloatQ6_K {
  static constexpr int kColumns = 256, kBytes = 3360;
  static void weights(const unsigned char* block, int k, int h, Vec* w) {
    IVec codes[4];
    Int8Q6_K::codes(block, k / 16, h, codes);
    scaled_bytes(codes[k % 16 / 4], 32, Int8Q6_K::scale(block, k / 16, h), w);
  }
};
