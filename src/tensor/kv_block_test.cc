// The layout of a cache block as documented, what each element format keeps, and that positions do not disturb each
// other.
#include "tensor/kv_block.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tensor/format.h"

namespace carpool {
namespace {

constexpr KvFormat kFormats[] = {KvFormat::kF32, KvFormat::kBF16, KvFormat::kQ8};
constexpr int kHeadDims[] = {1, 15, 16, 17, 20, 31, 32, 33, 64, 80, 96, 128, 192, 256};

std::vector<float> values(int n, uint32_t seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> out(static_cast<size_t>(n));
  for (float& x : out) x = normal(random);
  return out;
}

TEST(KvBlock, SizesAreAsDocumentedAndWholeCacheLines) {
  EXPECT_EQ(KvBlock(KvFormat::kF32, 128, 128).bytes, 16u * 128 * 4 * 2);
  EXPECT_EQ(KvBlock(KvFormat::kBF16, 128, 128).bytes, 16u * 128 * 2 * 2);
  EXPECT_EQ(KvBlock(KvFormat::kQ8, 128, 128).bytes, (16u * 128 + 16 * 4 * 2) * 2) << "8.5 bits per element";
  EXPECT_EQ(KvBlock(KvFormat::kF32, 20, 20).bytes, 16u * 20 * 4 + 16 * 32 * 4) << "values are padded to whole chunks";
  for (const KvFormat format : kFormats) {
    for (const int hd : kHeadDims) {
      EXPECT_EQ(KvBlock(format, hd, hd).bytes % 64, 0u);
      EXPECT_EQ(KvBlock(format, hd, hd).value_offset % 64, 0u);
    }
  }
}

TEST(KvBlock, ElementsStandWhereTheDocumentationSays) {
  const KvBlock block(KvFormat::kF32, 40, 40);
  std::vector<float> memory(block.bytes / 4);
  const std::vector<float> key = values(40, 1), value = values(40, 2);
  block.store(reinterpret_cast<std::byte*>(memory.data()), 5, key.data(), value.data());
  for (size_t i = 0; i < 40; ++i) {
    EXPECT_EQ(memory[i * 16 + 5], key[i]);
    EXPECT_EQ(memory[block.value_offset / 4 + (i / 16 * 16 + 5) * 16 + i % 16], value[i]);
  }
}

// Half a unit of bfloat16 (8 significant bits); half a scale, which is at most 2^-7 above a 127th of the group's
// largest magnitude, or the smallest bfloat16; and the rounding of the quotient.
double bound(KvFormat format, const std::vector<float>& x, size_t i) {
  const double own = std::fabs(static_cast<double>(x[i]));
  if (format == KvFormat::kF32) return 0;
  if (format == KvFormat::kBF16) return own * 0x1p-8 + 0x1p-134;
  double most = 0;
  for (size_t j = i / 32 * 32; j < std::min(x.size(), i / 32 * 32 + 32); ++j) {
    most = std::max(most, std::fabs(static_cast<double>(x[j])));
  }
  return 0.5 * (most / 127 * (1 + 0x1p-7) + 0x1p-133) + own * 0x1p-23;
}

TEST(KvBlock, EveryPositionComesBackWithinTheFormatsRounding) {
  for (const KvFormat format : kFormats) {
    for (const int hd : kHeadDims) {
      for (const float scale : {1.0f, 1e-3f, 1e30f, 1e-36f}) {
        const KvBlock block(format, hd, hd);
        std::vector<std::byte> memory(block.bytes, std::byte{0xff});
        std::vector<std::vector<float>> keys, rows;
        for (int i = 0; i < 16; ++i) {
          keys.push_back(values(hd, static_cast<uint32_t>(i), scale));
          rows.push_back(values(hd, static_cast<uint32_t>(100 + i), scale));
        }
        for (int i = 0; i < 16; ++i) {  // in another order than they stand
          const int slot = i * 7 % 16;
          block.store(memory.data(), slot, keys[static_cast<size_t>(slot)].data(),
                      rows[static_cast<size_t>(slot)].data());
        }
        std::vector<float> key(static_cast<size_t>(hd)), row(key.size());
        for (size_t slot = 0; slot < 16; ++slot) {
          block.load(memory.data(), static_cast<int>(slot), key.data(), row.data());
          for (size_t i = 0; i < key.size(); ++i) {
            ASSERT_NEAR(key[i], keys[slot][i], bound(format, keys[slot], i)) << name(format) << " " << hd << " " << i;
            ASSERT_NEAR(row[i], rows[slot][i], bound(format, rows[slot], i)) << name(format) << " " << hd << " " << i;
          }
        }
      }
    }
  }
}

TEST(KvBlock, ZerosStayZerosInEveryFormat) {
  for (const KvFormat format : kFormats) {
    const KvBlock block(format, 40, 40);
    std::vector<std::byte> memory(block.bytes, std::byte{0xff});
    const std::vector<float> zeros(40, 0.0f);
    std::vector<float> key(40, 1.0f), value(40, 1.0f);
    block.store(memory.data(), 3, zeros.data(), zeros.data());
    block.load(memory.data(), 3, key.data(), value.data());
    EXPECT_EQ(key, zeros);
    EXPECT_EQ(value, zeros);
  }
}

TEST(KvBlock, NaNAndInfinityStayVisible) {
  for (const KvFormat format : kFormats) {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      const KvBlock block(format, 70, 70);
      std::vector<std::byte> memory(block.bytes);
      std::vector<float> x = values(70, 1), key(70), value(70);
      x[40] = bad;
      block.store(memory.data(), 0, x.data(), x.data());
      block.load(memory.data(), 0, key.data(), value.data());
      EXPECT_FALSE(std::isfinite(key[40]));
      EXPECT_FALSE(std::isfinite(value[40]));
      for (const size_t i : {0u, 31u, 64u, 69u}) EXPECT_TRUE(std::isfinite(key[i])) << "other groups of 32";
    }
  }
}

TEST(KvBlock, FormatsHaveNames) {
  EXPECT_EQ(name(KvFormat::kF32), "f32");
  EXPECT_EQ(name(KvFormat::kBF16), "bf16");
  EXPECT_EQ(name(KvFormat::kQ8), "q8");
  for (const KvFormat format : kFormats) EXPECT_EQ(kv_format_of_name(name(format)), format);
  for (const char* other : {"auto", "", "F32", "fp8"}) EXPECT_EQ(kv_format_of_name(other), std::nullopt);
}

}  // namespace
}  // namespace carpool
