// Reading memory as fast as it comes: what the bandwidth probe runs, with the loads of this instruction set.
//
// Included inside the anonymous namespace of an instruction set's .cc file, after its vector vocabulary.

uint64_t read_bytes(const std::byte* data, size_t bytes) {
  constexpr size_t kVector = sizeof(IVec), kChains = 8;
  const auto* p = reinterpret_cast<const unsigned char*>(data);
  IVec chain[kChains];
#pragma GCC unroll 8
  for (size_t j = 0; j < kChains; ++j) chain[j] = set1_int(0);
  size_t i = 0;
  for (; i + kChains * kVector <= bytes; i += kChains * kVector) {
#pragma GCC unroll 8
    for (size_t j = 0; j < kChains; ++j) chain[j] = xor_bits(chain[j], load_bytes(p + i + j * kVector));
  }
  uint64_t words[kChains * kVector / 8];
  __builtin_memcpy(words, chain, sizeof(chain));
  uint64_t all = 0;
  for (const uint64_t word : words) all ^= word;
  for (; i < bytes; ++i) all ^= static_cast<uint64_t>(p[i]) << 8 * (i % 8);
  return all;
}
