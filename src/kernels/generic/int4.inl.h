// INT4 panels: 32 columns as four times 64 bytes of nibble pairs, then 16 bfloat16 scales; codes are 8 too large.
struct Int8INT4 {
  static constexpr int kColumns = 32, kSubs = 1, kBytes = 288, kOffset = 8;
  static constexpr bool kIntegerScales = false;
  static void codes(const unsigned char* block, int, int h, IVec (&w)[8]) { nibble_codes(block, h, w); }
  static Vec scale(const unsigned char* block, int, int h) {
    return as_float(shift_left32<16>(widen_u16(block + 256 + 2 * kLanes * h)));
  }
  template <int P, int M>
  static void dots(const IVec (&w)[P][8], const Int8Row* x, long at, IVec (&sums)[P][M]) {
    dots_unsigned<15>(w, x, at, sums);
  }
};

struct FloatINT4 {
  static constexpr int kColumns = 32, kBytes = 288;
  static void weights(const unsigned char* block, int k, int h, Vec* w) {
    scaled_bytes(nibbles(block, k / 4, h), 8, Int8INT4::scale(block, 0, h), w);
  }
};
