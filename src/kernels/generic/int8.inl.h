// INT8 panels: 32 columns as eight times 64 bytes of signed codes, then 16 float32 scales and 16 signed zero points.
struct Int8INT8 {
  static constexpr int kColumns = 32, kSubs = 1, kBytes = 592, kOffset = kSignedOffset;
  static constexpr bool kIntegerScales = false;
  static void codes(const unsigned char* block, int, int h, IVec (&w)[8]) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) w[j] = signed_codes(load_bytes(block + 64 * j + 4 * kLanes * h));
  }
  static Vec scale(const unsigned char* block, int, int h) { return load_unaligned(block + 512 + 4 * kLanes * h); }
  static IVec zeros(const unsigned char* block, int, int h) { return widen_s8(block + 576 + kLanes * h); }
  template <int P, int M>
  static void dots(const IVec (&w)[P][8], const Int8Row* x, long at, IVec (&sums)[P][M]) {
    dots_signed(w, x, at, sums);
  }
};

struct FloatINT8 {
  static constexpr int kColumns = 32, kBytes = 592;
  static void weights(const unsigned char* block, int k, int h, Vec* w) {
    const IVec codes = xor_bytes(load_bytes(block + 16 * k + 4 * kLanes * h), 0x80);  // 128 too large
    scaled_bytes(codes, add32(Int8INT8::zeros(block, 0, h), set1_int(128)), Int8INT8::scale(block, 0, h), w);
  }
};
