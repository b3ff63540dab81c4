// F32 panels: 16 floats of one column.
struct FloatF32 {
  static constexpr int kColumns = 1, kBytes = 64;
  static void weights(const unsigned char* block, int, int h, Vec* w) { w[0] = load_unaligned(block + 4 * kLanes * h); }
};
