// The small float types that formats are made of, exhaustively: every pattern against the definition in double, and
// rounding against a search for the nearest value among all patterns.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tensor/format.h"
#include "tensor/formats/e2m1.h"

namespace carpool {
namespace {

// Sign, exponent and fraction of `fraction_bits` with bias `bias` as a real number; no infinities or NaN.
double real_value(unsigned bits, int fraction_bits, int exponent_bits, int bias) {
  const int exponent = static_cast<int>(bits >> fraction_bits & ((1u << exponent_bits) - 1));
  const double fraction = std::ldexp(bits & ((1u << fraction_bits) - 1), -fraction_bits);
  const double magnitude = exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  return bits >> (fraction_bits + exponent_bits) & 1 ? -magnitude : magnitude;
}

double half_value(unsigned bits) { return real_value(bits, 10, 5, 15); }
double e4m3_value(unsigned bits) { return real_value(bits, 3, 4, 7); }

bool same_bits(float a, double b) {
  return a == static_cast<float>(b) && std::signbit(a) == std::signbit(b) && static_cast<double>(a) == b;
}

// Of the patterns 0..last (magnitudes, increasing in value) the one nearest to |value|, even in a tie.
template <class ValueOf>
unsigned nearest(double value, unsigned last, ValueOf value_of) {
  const double wanted = std::fabs(value);
  unsigned low = 0, high = last;  // value_of(low) <= wanted, as far as there is one
  while (low + 1 < high) {
    const unsigned middle = (low + high) / 2;
    (value_of(middle) <= wanted ? low : high) = middle;
  }
  const double down = std::fabs(wanted - value_of(low)), up = std::fabs(value_of(high) - wanted);
  if (down == up) return low % 2 == 0 ? low : high;
  return down < up ? low : high;
}

// At and around every value, and at and around every midpoint of neighbours, of either sign.
template <class ValueOf>
std::vector<float> delicate_values(unsigned last, ValueOf value_of) {
  std::vector<float> out;
  for (unsigned b = 0; b < last; ++b) {
    for (const double v : {value_of(b), (value_of(b) + value_of(b + 1)) / 2}) {
      const auto f = static_cast<float>(v);
      for (const float g : {f, std::nextafter(f, 0.0f), std::nextafter(f, 1e30f)}) {
        out.push_back(g);
        out.push_back(-g);
      }
    }
  }
  return out;
}

std::vector<float> random_floats(int count) {
  std::vector<float> out;
  uint32_t state = 99;
  while (static_cast<int>(out.size()) < count) {
    state = state * 1664525u + 1013904223u;
    const auto value = __builtin_bit_cast(float, state);
    if (!std::isnan(value)) out.push_back(value);
  }
  return out;
}

TEST(F16, EveryPatternHasTheValueOfItsDefinition) {
  for (unsigned b = 0; b <= 0xffff; ++b) {
    const float value = f16_to_float(static_cast<uint16_t>(b));
    if ((b & 0x7c00) != 0x7c00) {
      ASSERT_TRUE(same_bits(value, half_value(b))) << b;
    } else if ((b & 0x3ff) == 0) {
      ASSERT_EQ(value, b >> 15 ? -INFINITY : INFINITY) << b;
    } else {
      ASSERT_TRUE(std::isnan(value)) << b;
      ASSERT_EQ(std::signbit(value), b >> 15 == 1) << b;
    }
  }
}

TEST(F16, EveryPatternSurvivesTheWayToFloatAndBack) {
  for (unsigned b = 0; b <= 0xffff; ++b) {
    const float value = f16_to_float(static_cast<uint16_t>(b));
    ASSERT_EQ(float_to_f16(value), std::isnan(value) ? b | 0x200 : b) << b;  // a NaN becomes quiet
  }
}

TEST(F16, RoundingIsToTheNearestAndTiesAreToEven) {
  // The pattern after the largest finite one stands for 2^16: rounding decides on infinity as if there were no end.
  constexpr unsigned kInfinity = 0x7c00;
  std::vector<float> values = delicate_values(kInfinity, half_value);
  for (const float v : random_floats(200'000)) values.push_back(v);
  for (const float v : {INFINITY, -INFINITY, 3e38f, 1e-45f, 0.0f, -0.0f}) values.push_back(v);
  for (const float value : values) {
    const unsigned expected = nearest(value, kInfinity, half_value) | (std::signbit(value) ? 0x8000u : 0u);
    ASSERT_EQ(float_to_f16(value), expected) << value;
  }
}

TEST(E4M3, EveryPatternHasTheValueOfItsDefinition) {
  for (unsigned b = 0; b <= 0xff; ++b) {
    const float value = e4m3_to_float(static_cast<uint8_t>(b));
    if ((b & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << b;
    } else {
      EXPECT_TRUE(same_bits(value, e4m3_value(b))) << b;
      EXPECT_EQ(float_to_e4m3(value), b);
    }
  }
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0f);
  EXPECT_EQ(e4m3_to_float(1), 0x1p-9f);
}

TEST(E4M3, RoundingIsToTheNearestTiesAreToEvenAndTheEndSaturates) {
  std::vector<float> values = delicate_values(0x7e, e4m3_value);
  for (const float v : random_floats(200'000)) values.push_back(v);
  for (const float v : {INFINITY, -INFINITY, 448.0f, 464.0f, 465.0f, 480.0f, -1e30f, 0.0f, -0.0f}) values.push_back(v);
  for (const float value : values) {
    const unsigned expected = nearest(value, 0x7e, e4m3_value) | (std::signbit(value) ? 0x80u : 0u);
    ASSERT_EQ(float_to_e4m3(value), expected) << value;
  }
}

TEST(E4M3, NanStaysNan) {
  EXPECT_EQ(float_to_e4m3(std::numeric_limits<float>::quiet_NaN()) & 0x7f, 0x7f);
  EXPECT_EQ(float_to_e4m3(-std::numeric_limits<float>::quiet_NaN()) & 0x7f, 0x7f);
}

TEST(E8M0, EveryPatternIsAPowerOfTwoButTheLastIsNan) {
  for (int b = 0; b < 255; ++b) EXPECT_EQ(e8m0_to_float(static_cast<uint8_t>(b)), std::ldexp(1.0, b - 127)) << b;
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
}

TEST(E2M1, EveryPatternHasTheValueOfItsDefinition) {
  for (unsigned b = 0; b < 16; ++b) {
    EXPECT_TRUE(same_bits(e2m1_to_float(static_cast<uint8_t>(b)), real_value(b, 1, 2, 1))) << b;
  }
}

TEST(E2M1, RoundingIsToTheNearestTiesAreToTheSmallerAndZeroHasNoSign) {
  for (const float scale : {1.0f, 0x1p-127f, 0x1p-20f, 0x1.cp5f, 448.0f, 0x1p-9f, 0x1p124f}) {
    for (int step = -800; step <= 800; ++step) {
      const double units = step / 100.0;  // in units of the scale, ties at multiples of 0.25 among them
      const auto value = static_cast<float>(units * static_cast<double>(scale));
      unsigned expected = 0;
      for (unsigned b = 1; b < 16; ++b) {
        const auto error = [&](unsigned code) {
          return std::fabs(real_value(code, 1, 2, 1) * static_cast<double>(scale) - static_cast<double>(value));
        };
        if (b != 8 && error(b) < error(expected)) expected = b;
      }
      ASSERT_EQ(formats::e2m1_of(value, scale), expected) << value << " of " << scale;
    }
  }
}

}  // namespace
}  // namespace carpool
