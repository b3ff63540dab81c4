// FP8 E4M3 panels: 128 columns of 16 bytes, then the float32 scale of the block.
struct FloatFP8 {
  static constexpr int kColumns = 128, kBytes = 2064;
  static void weights(const unsigned char* block, int k, int h, Vec* w) {
    float scale;
    __builtin_memcpy(&scale, block + 2048, 4);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) w[i] = mul(load_e4m3(block + 16 * (k + i) + kLanes * h), set1(scale));
  }
};
