// BF16 panels: 16 words, column k in the lower and k + 1 in the upper half; a bfloat16 is the upper half of a float32.
// The bf16 dot product instruction is not used: it is slower than float32 FMA on the processors measured, and rounds
// differently.
struct FloatBF16 {
  static constexpr int kColumns = 2, kBytes = 64;
  static void weights(const unsigned char* block, int, int h, Vec* w) {
    const IVec pair = load_bytes(block + 4 * kLanes * h);
    w[0] = upper_halves(shift_left32<16>(pair));
    w[1] = upper_halves(pair);
  }
};
