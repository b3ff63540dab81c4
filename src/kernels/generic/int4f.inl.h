// INT4F panels: 32 columns as four times 64 bytes of nibble pairs, then 16 float32 scales and 16 zero points.
struct Int8INT4F {
  static constexpr int kColumns = 32, kSubs = 1, kBytes = 336, kOffset = 0;
  static constexpr bool kIntegerScales = false;
  static void codes(const unsigned char* block, int, int h, IVec (&w)[8]) { nibble_codes(block, h, w); }
  static Vec scale(const unsigned char* block, int, int h) { return load_unaligned(block + 256 + 4 * kLanes * h); }
  static IVec zeros(const unsigned char* block, int, int h) { return widen_u8(block + 320 + kLanes * h); }
  template <int P, int M>
  static void dots(const IVec (&w)[P][8], const Int8Row* x, long at, IVec (&sums)[P][M]) {
    dots_unsigned<15>(w, x, at, sums);
  }
};

struct FloatINT4F {
  static constexpr int kColumns = 32, kBytes = 336;
  static void weights(const unsigned char* block, int k, int h, Vec* w) {
    scaled_bytes(nibbles(block, k / 4, h), Int8INT4F::zeros(block, 0, h), Int8INT4F::scale(block, 0, h), w);
  }
};
