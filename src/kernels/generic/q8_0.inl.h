// Q8_0 panels: 32 columns as eight times 64 bytes of signed codes, then 16 half-precision scales.
struct Int8Q8_0 {
  static constexpr int kColumns = 32, kSubs = 1, kBytes = 544, kOffset = kSignedOffset;
  static constexpr bool kIntegerScales = false;
  static void codes(const unsigned char* block, int, int h, IVec (&w)[8]) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) w[j] = signed_codes(load_bytes(block + 64 * j + 4 * kLanes * h));
  }
  static Vec scale(const unsigned char* block, int, int h) { return load_f16(block + 512 + 2 * kLanes * h); }
  template <int P, int M>
  static void dots(const IVec (&w)[P][8], const Int8Row* x, long at, IVec (&sums)[P][M]) {
    dots_signed(w, x, at, sums);
  }
};

struct FloatQ8_0 {
  static constexpr int kColumns = 32, kBytes = 544;
  static void weights(const unsigned char* block, int k, int h, Vec* w) {
    const IVec codes = xor_bytes(load_bytes(block + 16 * k + 4 * kLanes * h), 0x80);  // 128 too large
    scaled_bytes(codes, 128, Int8Q8_0::scale(block, 0, h), w);
  }
};
