// The number formats: bfloat16 against its definition for every bit pattern, rows against their bytes.
//
// The oracle of rounding is naive on purpose: of the two neighbouring bfloat16 values take the nearer one (by
// exact double arithmetic), and the one with an even last bit in a tie.
#include "tensor/format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace carpool {
namespace {

uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// The bfloat16 `bits` as a real number, except that the pattern after the largest finite one stands for 2^128:
// rounding decides on infinity as if the exponent range had no end.
double magnitude(uint32_t bits) {
  return bits == 0x7f80 ? std::ldexp(1.0, 128) : static_cast<double>(float_of(bits << 16));
}

uint16_t naive_float_to_bf16(float value) {
  const uint32_t sign = bits_of(value) >> 31 << 15;
  const double wanted = std::fabs(static_cast<double>(value));
  const uint32_t below = (bits_of(value) & 0x7fffffffu) >> 16;
  if (below == 0x7f80) return static_cast<uint16_t>(sign | below);  // infinity
  const double down = wanted - magnitude(below), up = magnitude(below + 1) - wanted;
  const bool take_below = down < up || (down == up && below % 2 == 0);
  return static_cast<uint16_t>(sign | (take_below ? below : below + 1));
}

TEST(Bf16, EveryValueSurvivesTheWayToFloatAndBack) {
  for (uint32_t b = 0; b <= 0xffff; ++b) {
    const auto bits = static_cast<uint16_t>(b);
    const float value = bf16_to_float(bits);
    ASSERT_EQ(bits_of(value), b << 16);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value)))) << b;
      ASSERT_EQ(float_to_bf16(value) >> 15, b >> 15) << b;
      ASSERT_EQ(float_to_bf16(value), b | 0x40) << b;  // quiet, payload kept
    } else {
      ASSERT_EQ(float_to_bf16(value), bits) << b;
    }
  }
}

TEST(Bf16, RoundingIsToTheNearestAndTiesAreToEven) {
  // Every bfloat16 as the upper half, and lower halves at and around the tie.
  for (uint32_t upper = 0; upper <= 0xffff; ++upper) {
    if ((upper & 0x7fff) > 0x7f7f) continue;  // infinities and NaN have their own tests
    for (const uint32_t lower : {0u, 1u, 0x1234u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float value = float_of(upper << 16 | lower);
      ASSERT_EQ(float_to_bf16(value), naive_float_to_bf16(value)) << std::hex << bits_of(value);
    }
  }
}

TEST(Bf16, RoundingAgreesWithTheDefinitionOnRandomFloats) {
  uint32_t state = 12345;
  for (int i = 0; i < 300'000; ++i) {
    state = state * 1664525u + 1013904223u;
    const float value = float_of(state);
    if (std::isnan(value)) continue;
    ASSERT_EQ(float_to_bf16(value), naive_float_to_bf16(value)) << std::hex << state;
  }
}

TEST(Bf16, KnownValues) {
  EXPECT_EQ(float_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(float_to_bf16(-2.0f), 0xc000);
  EXPECT_EQ(float_to_bf16(float_of(0x3f808000)), 0x3f80);  // tie, down to even
  EXPECT_EQ(float_to_bf16(float_of(0x3f818000)), 0x3f82);  // tie, up to even
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::infinity()), 0x7f80);
  EXPECT_EQ(float_to_bf16(-0.0f), 0x8000);
}

TEST(Bf16, NoNanBecomesInfinityOrANumber) {
  // Payloads only in the lower half would be lost by cutting and could carry into the exponent by rounding.
  for (const uint32_t bits : {0x7f800001u, 0x7f80ffffu, 0x7fffffffu, 0xff800001u, 0xffffffffu, 0x7fc00000u}) {
    EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(float_of(bits))))) << std::hex << bits;
  }
}

TEST(Format, EveryFormatHasANameAndIsFoundByItsSafetensorsName) {
  std::string all;
  for (int i = 0; i < kFormatCount; ++i) {
    const auto format = static_cast<Format>(i);
    const FormatInfo& f = info(format);
    EXPECT_FALSE(f.name.empty());
    EXPECT_GT(f.block_elements, 0);
    EXPECT_GT(f.block_bytes, 0);
    all += (i == 0 ? "" : ", ") + std::string(f.name);
    if (f.safetensors_name.empty()) continue;
    ASSERT_NE(format_of_safetensors(f.safetensors_name), nullptr);
    EXPECT_EQ(*format_of_safetensors(f.safetensors_name), format);
  }
  EXPECT_EQ(format_names(), all);
}

TEST(Format, EveryFormatIsFoundByItsNameAndByItsGgufType) {
  for (int i = 0; i < kFormatCount; ++i) {
    const auto format = static_cast<Format>(i);
    ASSERT_NE(format_of_name(info(format).name), nullptr);
    EXPECT_EQ(*format_of_name(info(format).name), format);
    if (info(format).gguf_type < 0) continue;
    ASSERT_NE(format_of_gguf(info(format).gguf_type), nullptr);
    EXPECT_EQ(*format_of_gguf(info(format).gguf_type), format);
  }
  for (const int64_t type : {int64_t{-1}, int64_t{17}, int64_t{1000}, (int64_t{1} << 32) + 1}) {
    EXPECT_EQ(format_of_gguf(type), nullptr) << type;
  }
  for (const char* name : {"", "F32", "f3", "f32 ", "q4"}) EXPECT_EQ(format_of_name(name), nullptr) << name;
}

TEST(Format, UnknownSafetensorsNamesAreNotFormats) {
  for (const char* name : {"", "bf16", "BF1", "BF160", "I64", "BOOL"}) {
    EXPECT_EQ(format_of_safetensors(name), nullptr) << name;
  }
}

TEST(WeightView, RowsLieOneAfterAnother) {
  const std::vector<uint16_t> data(15);
  const WeightView view{.format = Format::kBF16, .data = data.data(), .rows = 3, .cols = 5};
  EXPECT_EQ(view.row_bytes(), 10u);
  EXPECT_EQ(view.bytes(), 30u);
  EXPECT_EQ(view.row(0), data.data());
  EXPECT_EQ(view.row(2), data.data() + 10);
}

TEST(WeightView, RowsOfNibblesWithScalesApartAreHalfAByteAColumn) {
  const std::vector<uint8_t> data(3 * 48), scales(3 * 6);
  WeightView view{.format = Format::kNVFP4, .data = data.data(), .rows = 3, .cols = 64};
  EXPECT_EQ(view.row_bytes(), 36u);
  view.cols = 96, view.scales = scales.data();
  EXPECT_EQ(view.row_bytes(), 48u);
  EXPECT_EQ(view.bytes(), data.size());
  view.format = Format::kFP8;  // scales of blocks do not change a row
  EXPECT_EQ(view.row_bytes(), 96u);
}

TEST(DecodeRow, GivesTheFloatsOfAFloat32RowBitForBit) {
  const std::vector<float> data = {1.5f, -0.0f, float_of(0x7fc01234), 3e38f, float_of(1), -7.0f};
  const WeightView view{.format = Format::kF32, .data = data.data(), .rows = 2, .cols = 3};
  for (int64_t r = 0; r < 2; ++r) {
    std::vector<float> out(4, 42.0f);
    decode_row(view, r, out.data());
    EXPECT_EQ(std::memcmp(out.data(), data.data() + 3 * r, 12), 0) << r;
    EXPECT_EQ(out[3], 42.0f) << "wrote past the row";
  }
}

TEST(DecodeRow, GivesTheValuesOfABfloat16Row) {
  const std::vector<uint16_t> data = {0x3f80, 0xc000, 0x0001, 0x7f80, 0x4049, 0x8000};
  const WeightView view{.format = Format::kBF16, .data = data.data(), .rows = 2, .cols = 3};
  for (int64_t r = 0; r < 2; ++r) {
    std::vector<float> out(4, 42.0f);
    decode_row(view, r, out.data());
    for (int64_t c = 0; c < 3; ++c) {
      EXPECT_EQ(bits_of(out[static_cast<size_t>(c)]), static_cast<uint32_t>(data[static_cast<size_t>(3 * r + c)])
                                                          << 16);
    }
    EXPECT_EQ(out[3], 42.0f) << "wrote past the row";
  }
}

TEST(DecodeRow, AcceptsBytesAtAnyAddress) {
  // A safetensors header of odd length puts every tensor at an odd address.
  for (int i = 0; i < kFormatCount; ++i) {
    const auto format = static_cast<Format>(i);
    const int64_t cols = 2 * info(format).block_elements;
    const WeightView shape{.format = format, .rows = 2, .cols = cols};
    std::vector<std::byte> bytes(shape.bytes());
    for (size_t b = 0; b < bytes.size(); ++b) bytes[b] = static_cast<std::byte>(b * 37 + 11);
    std::vector<std::byte> shifted(bytes.size() + 1);
    std::memcpy(shifted.data() + 1, bytes.data(), bytes.size());
    std::vector<float> aligned_out(static_cast<size_t>(cols)), shifted_out(static_cast<size_t>(cols));
    decode_row({.format = format, .data = bytes.data(), .rows = 2, .cols = cols}, 1, aligned_out.data());
    decode_row({.format = format, .data = shifted.data() + 1, .rows = 2, .cols = cols}, 1, shifted_out.data());
    EXPECT_EQ(std::memcmp(aligned_out.data(), shifted_out.data(), aligned_out.size() * sizeof(float)), 0);
  }
}

}  // namespace
}  // namespace carpool
