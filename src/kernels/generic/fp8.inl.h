// FP8 E4M3 panels: 128 columns of 16 bytes, then 16 float32 scales.
struct FloatFP8 {
  static constexpr int kColumns = 128, kBytes = 2112;
  static void weights(const unsigned char* block, int k, int h, Vec* w) {
    const Vec scale = load_unaligned(block + 2048 + 4 * kLanes * h);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) w[i] = mul(load_e4m3(block + 16 * (k + i) + kLanes * h), scale);
  }
};
