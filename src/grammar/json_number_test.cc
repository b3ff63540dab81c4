// Bounds of numbers against arithmetic.
#include "grammar/json_number.h"

#include <fmt/format.h>

#include "grammar/language_test_util.h"

namespace carpool {
namespace {

Language numbers(const char* type, const std::string& bounds) {
  return schema_language(fmt::format(R"({{"type":"{}"{}}})", type, bounds));
}

TEST(JsonNumber, IntegersWithinBoundsAndNoOthers) {
  for (const auto& [low, high] : std::vector<std::pair<int, int>>{{0, 0},
                                                                  {0, 9},
                                                                  {1, 12},
                                                                  {-5, 5},
                                                                  {-120, -7},
                                                                  {7, 1203},
                                                                  {99, 101},
                                                                  {-1, 0},
                                                                  {-1000, 999},
                                                                  {5, 5},
                                                                  {10, 99}}) {
    Language language = numbers("integer", fmt::format(R"(,"minimum":{},"maximum":{})", low, high));
    Language open =
        numbers("integer", fmt::format(R"(,"exclusiveMinimum":{},"exclusiveMaximum":{})", low - 1, high + 1));
    for (int i = -1500; i <= 1500; ++i) {
      const std::string text = std::to_string(i);
      ASSERT_EQ(language.has(text), low <= i && i <= high) << low << ".." << high << ": " << i;
      ASSERT_EQ(open.has(text), low <= i && i <= high) << low << ".." << high << ": " << i;
    }
    for (const char* text : {"-0", "00", "01", "1.0", "1e1", "+1", "-", ""}) EXPECT_FALSE(language.has(text)) << text;
  }
  EXPECT_TRUE(numbers("integer", R"(,"minimum":5)").has("123456789012345678"));
  EXPECT_FALSE(numbers("integer", R"(,"minimum":5)").has("4"));
  EXPECT_TRUE(numbers("integer", R"(,"maximum":5)").has("-123456789012345678"));
  EXPECT_FALSE(numbers("integer", R"(,"maximum":5)").begins("6"));
  EXPECT_TRUE(numbers("integer", R"(,"minimum":-9223372036854775808,"maximum":18446744073709551615)")
                  .has("18446744073709551615"));
  EXPECT_FALSE(numbers("integer", R"(,"maximum":18446744073709551615)").has("18446744073709551616"));
  EXPECT_TRUE(numbers("integer", R"(,"minimum":0.5,"maximum":2.5)").has("2"));
  EXPECT_FALSE(numbers("integer", R"(,"minimum":0.5,"maximum":2.5)").begins("0"));
  EXPECT_FALSE(numbers("integer", R"(,"minimum":0.5,"maximum":2.5)").begins("3"));
}

TEST(JsonNumber, DecimalsWithinBoundsAndNoOthers) {
  const std::vector<double> bounds = {-12.5, -1, -0.25, 0, 0.05, 0.25, 0.5, 1, 2.75, 10, 12.5};
  std::vector<std::string> texts;
  for (int i = -1400; i <= 1400; i += 1) {
    texts.push_back(fmt::format("{}{}.{:02}", i < 0 ? "-" : "", std::abs(i) / 100, std::abs(i) % 100));
    if (i % 10 == 0)
      texts.push_back(fmt::format("{}{}.{}", i < 0 ? "-" : "", std::abs(i) / 100, std::abs(i) / 10 % 10));
    if (i % 100 == 0) texts.push_back(std::to_string(i / 100));
  }
  for (const double low : bounds) {
    for (const double high : bounds) {
      if (high < low) continue;
      for (const bool open : {false, true}) {
        const char* prefix = open ? "exclusiveM" : "m";
        const std::string spec = fmt::format(R"(,"{0}inimum":{1},"{0}aximum":{2})", prefix, low, high);
        if (open && low == high) {
          EXPECT_NE(grammar_refusal(schema_spec(fmt::format(R"({{"type":"number"{}}})", spec))), "");
          continue;
        }
        Language language = numbers("number", spec);
        for (const std::string& text : texts) {
          const double x = std::stod(text);
          const bool inside = (open ? x > low && x < high : x >= low && x <= high) && !(text[0] == '-' && x == 0);
          ASSERT_EQ(language.has(text), inside) << spec << ": " << text;
          if (text.find('.') == std::string::npos) ASSERT_FALSE(language.has(text + ".")) << spec << ": " << text;
        }
      }
    }
  }
}

TEST(JsonNumber, WithoutBoundsEveryTextIsAFiniteNumber) {
  Language language = numbers("number", "");
  for (const char* text : {"0", "-0", "1", "-1.5", "1e5", "1E-5", "0.001", "123456789012345", "1.5e+99"}) {
    EXPECT_TRUE(language.has(text)) << text;
  }
  for (const char* text : {"01", "1.", ".5", "1e", "1e999", "+1", "--1", "NaN", "1234567890123456"}) {
    EXPECT_FALSE(language.has(text)) << text;
  }
}

TEST(JsonNumber, SpellingsOfBoundsAreRead) {
  const auto text = [](const char* t) {
    const auto d = read_decimal(t);
    return d ? fmt::format("{}{}|{}", d->negative ? "-" : "", d->whole, d->fraction) : "none";
  };
  EXPECT_EQ(text("-12.50"), "-12|5");
  EXPECT_EQ(text("1e3"), "1000|");
  EXPECT_EQ(text("1.5e-3"), "0|0015");
  EXPECT_EQ(text("-0.0"), "0|");
  EXPECT_EQ(text("1e+20"), "100000000000000000000|");
  EXPECT_EQ(text("1e300"), "none");
}

}  // namespace
}  // namespace carpool
