// NVFP4 panels: 16 columns as twice 64 bytes of pairs of E2M1 nibbles, then 16 E4M3 scales. The codes that enter
// integer sums are twice the value plus 12, so 0..24; scales are halved for it.
struct Int8NVFP4 {
  static constexpr int kColumns = 16, kSubs = 1, kBytes = 144, kOffset = 12;
  static constexpr bool kIntegerScales = false;
  static void codes(const unsigned char* block, int, int h, IVec (&w)[4]) {
    nibble_codes(block, h, w);
    for (IVec& v : w) v = e2m1_codes(v);
  }
  static Vec scale(const unsigned char* block, int, int h) {
    return mul(load_e4m3(block + 128 + kLanes * h), set1(0.5f));
  }
  template <int P, int M>
  static void dots(const IVec (&w)[P][4], const Int8Row* x, long at, IVec (&sums)[P][M]) {
    dots_unsigned<24>(w, x, at, sums);
  }
};

struct FloatNVFP4 {
  static constexpr int kColumns = 16, kBytes = 144;
  static void weights(const unsigned char* block, int k, int h, Vec* w) {
    const IVec codes = e2m1_codes(nibbles(block, k / 4, h));
    const Vec d = Int8NVFP4::scale(block, 0, h);
    scaled_bytes(codes, 12, d, w);
  }
};
