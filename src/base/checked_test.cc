// Checked arithmetic: exact where it fits, nothing where it does not.
#include "base/checked.h"

#include <gtest/gtest.h>

#include <initializer_list>

namespace carpool {
namespace {

constexpr uint64_t kMax = UINT64_MAX;

TEST(Checked, ProductsThatFitAreExact) {
  EXPECT_EQ(checked_mul(0, kMax), 0u);
  EXPECT_EQ(checked_mul(1, kMax), kMax);
  EXPECT_EQ(checked_mul(uint64_t{1} << 32, (uint64_t{1} << 32) - 1), (kMax >> 32) << 32);
  EXPECT_EQ(checked_mul(3, kMax / 3), kMax);  // 2^64 - 1 is a multiple of 3
}

TEST(Checked, ProductsAndSumsThatWrapGiveNothing) {
  EXPECT_FALSE(checked_mul(uint64_t{1} << 32, uint64_t{1} << 32));
  EXPECT_FALSE(checked_mul(2, (kMax / 2) + 1));
  EXPECT_FALSE(checked_mul(kMax, kMax));
  EXPECT_FALSE(checked_add(kMax, 1));
  EXPECT_FALSE(checked_add(kMax, kMax));
  EXPECT_EQ(checked_add(kMax, 0), kMax);
  EXPECT_EQ(checked_add(kMax - 5, 5), kMax);
}

TEST(Checked, AgreesWithWideArithmeticAroundEveryPowerOfTwo) {
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < 64; ++j) {
      for (const uint64_t a : {(uint64_t{1} << i) - 1, uint64_t{1} << i, (uint64_t{1} << i) + 1}) {
        for (const uint64_t b : {(uint64_t{1} << j) - 1, uint64_t{1} << j, (uint64_t{1} << j) + 1}) {
          const auto product = static_cast<unsigned __int128>(a) * b;
          const auto sum = static_cast<unsigned __int128>(a) + b;
          ASSERT_EQ(checked_mul(a, b).has_value(), product <= kMax) << a << " " << b;
          if (product <= kMax) {
            ASSERT_EQ(*checked_mul(a, b), static_cast<uint64_t>(product));
          }
          ASSERT_EQ(checked_add(a, b).has_value(), sum <= kMax) << a << " " << b;
          if (sum <= kMax) {
            ASSERT_EQ(*checked_add(a, b), static_cast<uint64_t>(sum));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace carpool
