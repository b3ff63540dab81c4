// checksum64: every change of a bit, a length or an order is seen, and the values of the file formats never change.
#include "base/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace carpool {
namespace {

// Bytes that follow from their index by a plain linear congruence.
std::vector<std::byte> pattern(size_t count) {
  std::vector<std::byte> bytes(count);
  uint32_t x = 12345;
  for (std::byte& b : bytes) {
    x = x * 1664525u + 1013904223u;
    b = static_cast<std::byte>(x >> 24);
  }
  return bytes;
}

TEST(Checksum, EverySingleBitCountsAtEveryLength) {
  for (const size_t length : {1u, 7u, 8u, 9u, 31u, 32u, 33u, 40u, 71u}) {
    std::vector<std::byte> bytes = pattern(length);
    std::set<uint64_t> sums{checksum64(bytes)};
    for (size_t bit = 0; bit < 8 * length; ++bit) {
      bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
      sums.insert(checksum64(bytes));
      bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    }
    EXPECT_EQ(sums.size(), 8 * length + 1) << length;
  }
}

TEST(Checksum, PairsOfTopBitsDoNotCancel) {
  std::vector<std::byte> bytes = pattern(128);
  const uint64_t before = checksum64(bytes);
  for (size_t i = 7; i < bytes.size(); i += 8) {
    for (size_t j = i + 8; j < bytes.size(); j += 8) {
      bytes[i] ^= std::byte{0x80};
      bytes[j] ^= std::byte{0x80};
      EXPECT_NE(checksum64(bytes), before) << i << " " << j;
      bytes[i] ^= std::byte{0x80};
      bytes[j] ^= std::byte{0x80};
    }
  }
}

TEST(Checksum, LengthsOfZerosAreToldApart) {
  std::set<uint64_t> sums;
  for (size_t n = 0; n <= 100; ++n) sums.insert(checksum64(std::vector<std::byte>(n)));
  EXPECT_EQ(sums.size(), 101u);
}

TEST(Checksum, OrderCountsAcrossLanesAndSteps) {
  std::vector<std::byte> bytes = pattern(96);
  const uint64_t before = checksum64(bytes);
  for (size_t word = 1; word < 12; ++word) {
    for (size_t i = 0; i < 8; ++i) std::swap(bytes[i], bytes[8 * word + i]);
    EXPECT_NE(checksum64(bytes), before) << word;
    for (size_t i = 0; i < 8; ++i) std::swap(bytes[i], bytes[8 * word + i]);
  }
}

// The values are those of a second implementation, word by word in exact integers.
TEST(Checksum, TheValuesOfTheFileFormatsStay) {
  EXPECT_EQ(checksum64(std::string_view("")), 7181595211150794098u);
  EXPECT_EQ(checksum64(std::string_view("carpool")), 312223987720515553u);
  EXPECT_EQ(checksum64(pattern(1000)), 6526138672464458284u);
}

TEST(Checksum, DoesNotDependOnWhereTheBytesLie) {
  const std::vector<std::byte> bytes = pattern(100);
  std::vector<std::byte> moved(bytes.size() + 8);
  for (size_t shift = 0; shift < 8; ++shift) {
    std::copy(bytes.begin(), bytes.end(), moved.begin() + static_cast<std::ptrdiff_t>(shift));
    EXPECT_EQ(checksum64(std::span(moved).subspan(shift, bytes.size())), checksum64(bytes));
  }
}

TEST(Checksum, TextIsItsBytes) {
  const std::string text = "a text";
  EXPECT_EQ(checksum64(std::string_view(text)), checksum64(std::as_bytes(std::span(text))));
}

}  // namespace
}  // namespace carpool
