// How each weight format becomes float32 vectors; one type per row of formats.def. Included inside the anonymous
// namespace of an instruction set's .cc file, after its vector vocabulary. Read next: matmul.inl.h, which uses them.

struct WeightsF32 {
  static constexpr int kBytes = 4;
  static Vec load(const unsigned char* p) { return load_unaligned(p); }
  static Vec load_partial(const unsigned char* p, int count) { return load_unaligned_partial(p, count); }
};

// bfloat16 is the upper half of a float32: widen and shift. The bf16 dot product instruction is not used: it is slower
// than float32 FMA on the processors measured, and rounds differently.
struct WeightsBF16 {
  static constexpr int kBytes = 2;
  static Vec load(const unsigned char* p) { return load_bf16(p); }
  static Vec load_partial(const unsigned char* p, int count) { return load_bf16_partial(p, count); }
};
