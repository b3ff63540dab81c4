// F16 panels: 16 halves of one column.
struct FloatF16 {
  static constexpr int kColumns = 1, kBytes = 32;
  static void weights(const unsigned char* block, int, int h, Vec* w) { w[0] = load_f16(block + 2 * kLanes * h); }
};
