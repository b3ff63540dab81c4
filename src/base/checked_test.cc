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

TEST(Checked, ProductsThatWrapGiveNothing) {
  EXPECT_FALSE(checked_mul(uint64_t{1} << 32, uint64_t{1} << 32));
  EXPECT_FALSE(checked_mul(2, (kMax / 2) + 1));
  EXPECT_FALSE(checked_mul(kMax, kMax));
}

TEST(Checked, AgreesWithWideArithmeticAroundEveryPowerOfTwo) {
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < 64; ++j) {
      for (const uint64_t a : {(uint64_t{1} << i) - 1, uint64_t{1} << i, (uint64_t{1} << i) + 1}) {
        for (const uint64_t b : {(uint64_t{1} << j) - 1, uint64_t{1} << j, (uint64_t{1} << j) + 1}) {
          const auto product = static_cast<unsigned __int128>(a) * b;
          ASSERT_EQ(checked_mul(a, b).has_value(), product <= kMax) << a << " " << b;
          if (product <= kMax) {
            ASSERT_EQ(*checked_mul(a, b), static_cast<uint64_t>(product));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace carpool
