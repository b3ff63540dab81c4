// Q5_0 panels: 32 columns as four times 64 bytes of nibble pairs, 64 bytes of fifth bits (bit g of byte c: column 4 g +
// c), 16 half-precision scales; codes are 16 too large.
struct Int8Q5_0 {
  static constexpr int kColumns = 32, kSubs = 1, kBytes = 352, kOffset = 16;
  static constexpr bool kIntegerScales = false;
  static void codes(const unsigned char* block, int, int h, IVec (&w)[8]) { five_bit_codes(block, h, w); }
  static Vec scale(const unsigned char* block, int, int h) { return load_f16(block + 320 + 2 * kLanes * h); }
  template <int P, int M>
  static void dots(const IVec (&w)[P][8], const Int8Row* x, long at, IVec (&sums)[P][M]) {
    dots_unsigned<31>(w, x, at, sums);
  }
};

struct FloatQ5_0 {
  static constexpr int kColumns = 32, kBytes = 352;
  static void weights(const unsigned char* block, int k, int h, Vec* w) {
    scaled_bytes(five_bits(block, k / 4, h), 16, Int8Q5_0::scale(block, 0, h), w);
  }
};
