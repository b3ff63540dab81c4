// dot, axpy, rms_norm, silu_mul and softmax of every table against double precision; lengths 1 to 70 and beyond, at
// addresses that no vector is aligned to; the bounds follow from the number of roundings.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels/kernels.h"
#include "kernels/tables_under_test.h"

namespace carpool {
namespace {

constexpr double kUnit = 0x1p-24;
constexpr double kDenormal = 0x1p-149;

std::vector<int> lengths() {
  std::vector<int> all;
  for (int n = 1; n <= 70; ++n) all.push_back(n);
  all.insert(all.end(), {127, 128, 129, 1000, 4097});
  return all;
}

// `n` normal numbers that start one float behind an allocation's start and end with it.
struct Values {
  Values(int n, uint32_t seed, float scale = 1.0f) : data(static_cast<size_t>(n) + 1) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, scale);
    for (float& value : data) value = normal(random);
  }
  float* get() { return data.data() + 1; }
  float operator[](int i) const { return data[static_cast<size_t>(i) + 1]; }
  std::vector<float> data;
};

// One ulp of a float32 result near `value`.
double ulp(double value) { return std::max(std::fabs(value) * 2 * kUnit, kDenormal); }

class EveryTable : public testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& table() const { return *GetParam(); }
};

TEST_P(EveryTable, DotAgreesWithDoublePrecision) {
  for (const int n : lengths()) {
    Values a(n, 1), b(n, 2);
    double sum = 0, absolute = 0;
    for (int i = 0; i < n; ++i) {
      sum += static_cast<double>(a[i]) * b[i];
      absolute += std::fabs(static_cast<double>(a[i]) * b[i]);
    }
    EXPECT_NEAR(table().dot(a.get(), b.get(), n), sum, (n / 4 + 8) * kUnit * absolute) << n;
  }
}

TEST_P(EveryTable, AxpyAddsAMultipleAndTouchesNothingElse) {
  for (const int n : lengths()) {
    Values x(n, 3), y(n + 1, 4);
    const Values before = y;
    table().axpy(0.7f, x.get(), y.get(), n);
    for (int i = 0; i < n; ++i) {
      const double product = static_cast<double>(0.7f) * x[i];
      EXPECT_NEAR(y[i], product + before[i], 2 * kUnit * (std::fabs(product) + std::fabs(before[i])));
    }
    EXPECT_EQ(y[n], before[n]);
    EXPECT_EQ(y.data[0], before.data[0]);
  }
}

TEST_P(EveryTable, RmsNormAgreesWithDoublePrecisionAndWorksInPlace) {
  for (const int n : lengths()) {
    Values x(n, 5), weight(n, 6), y(n, 7);
    const float eps = 1e-6f;
    double squares = 0;
    for (int i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * x[i];
    const double scale = 1.0 / std::sqrt(squares / n + eps);
    table().rms_norm(x.get(), weight.get(), eps, y.get(), n);
    for (int i = 0; i < n; ++i) {
      // The sum's error halves under the root; division, addition, root, reciprocal and two products follow.
      const double expected = x[i] * scale * weight[i];
      EXPECT_NEAR(y[i], expected, (n / 8 + 12) * kUnit * std::fabs(expected)) << n << " " << i;
    }
    table().rms_norm(x.get(), weight.get(), eps, x.get(), n);
    EXPECT_EQ(x.data.size(), y.data.size());
    EXPECT_EQ(std::memcmp(x.get(), y.get(), static_cast<size_t>(n) * 4), 0) << n;
  }
}

TEST_P(EveryTable, RmsNormOfZerosIsZero) {
  std::vector<float> x(20, 0.0f), weight(20, 2.0f), y(20, 1.0f);
  table().rms_norm(x.data(), weight.data(), 1e-6f, y.data(), 20);
  EXPECT_EQ(y, std::vector<float>(20, 0.0f));
}

TEST_P(EveryTable, SiluMulIsWithinFourUlp) {
  // exp 2 ulp, and a sum, a quotient and a product of half an ulp each. Where e^-gate overflows the result is 0
  // although the true one is not: that is below 90 * e^-88.7 * |up| < 3e-37 * |up|.
  std::vector<float> gates;
  for (float g = -120.0f; g < 120.0f; g += 0.0371f) gates.push_back(g);
  for (const float g : {0.0f, -0.0f, 1e-30f, -1e-30f, 1e30f, -1e30f, 0x1p-140f}) gates.push_back(g);
  const int n = static_cast<int>(gates.size());
  Values up(n, 8);
  std::vector<float> y(gates.size());
  table().silu_mul(gates.data(), up.get(), y.data(), n);
  for (int i = 0; i < n; ++i) {
    const double g = gates[static_cast<size_t>(i)];
    const double expected = g / (1.0 + std::exp(-g)) * up[i];
    const double allowed = 4 * ulp(expected) + 3e-37 * std::fabs(static_cast<double>(up[i])) * (g < -88.0 ? 1 : 0);
    EXPECT_NEAR(y[static_cast<size_t>(i)], expected, allowed) << g;
  }
}

TEST_P(EveryTable, SiluMulOfAnElementDoesNotDependOnItsNeighbours) {
  Values gate(70, 9, 5.0f), up(70, 10);
  std::vector<float> whole(70);
  table().silu_mul(gate.get(), up.get(), whole.data(), 70);
  for (int begin = 0; begin < 70; begin += 3) {
    for (int end = begin + 1; end <= 70; end += 5) {
      std::vector<float> part(static_cast<size_t>(end - begin));
      table().silu_mul(gate.get() + begin, up.get() + begin, part.data(), end - begin);
      ASSERT_EQ(std::memcmp(part.data(), whole.data() + begin, part.size() * 4), 0) << begin << " " << end;
    }
  }
}

// Beside a score of 0 the sum is exactly 1 once the other is below e^-17.4, so the result is the exponential itself.
TEST_P(EveryTable, TheExponentialIsWithinTwoUlpDownToZero) {
  for (float score = -17.5f; score > -200.0f; score -= 0.0173f) {
    float x[2] = {0.0f, score};
    table().softmax(x, 2);
    const double expected = std::exp(static_cast<double>(score));
    ASSERT_EQ(x[0], 1.0f) << score;
    ASSERT_NEAR(x[1], expected, 2 * ulp(expected)) << score;
  }
  for (const float score : {-1e3f, -1e10f, -3e38f}) {
    float x[2] = {0.0f, score};
    table().softmax(x, 2);
    EXPECT_EQ(x[1], 0.0f) << score;
  }
}

TEST_P(EveryTable, SoftmaxAgreesWithDoublePrecision) {
  for (const int n : lengths()) {
    Values x(n, 12, 4.0f);
    const Values scores = x;
    double top = scores[0], sum = 0;
    for (int i = 0; i < n; ++i) top = std::max(top, static_cast<double>(scores[i]));
    for (int i = 0; i < n; ++i) sum += std::exp(scores[i] - top);
    table().softmax(x.get(), n);
    double total = 0;
    for (int i = 0; i < n; ++i) {
      const double expected = std::exp(scores[i] - top) / sum;
      // The shifted score rounds by one unit of itself; exponential, sum and quotient follow.
      const double allowed = (std::fabs(scores[i] - top) + n / 4 + 8 + 4 + 1) * kUnit * expected + kDenormal;
      EXPECT_NEAR(x[i], expected, allowed) << n << " " << i;
      total += x[i];
    }
    EXPECT_NEAR(total, 1.0, (n / 4 + 16) * kUnit);
  }
}

TEST_P(EveryTable, SoftmaxIsUnmovedByHugeEqualScores) {
  for (const float score : {3e38f, -3e38f, 0.0f}) {
    std::vector<float> x(33, score);
    table().softmax(x.data(), 33);
    for (const float p : x) EXPECT_FLOAT_EQ(p, 1.0f / 33.0f);
  }
}

TEST_P(EveryTable, ReadGivesTheExclusiveOrOfAllWordsAtAnyPlaceAndLength) {
  std::vector<std::byte> bytes(1500);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i * 31 + i);
  for (const size_t begin : {size_t{0}, size_t{3}}) {
    for (size_t n = 0; n + begin <= bytes.size(); n += n < 20 ? 1 : 61) {
      uint64_t expected = 0;
      for (size_t i = 0; i < n; ++i) expected ^= static_cast<uint64_t>(bytes[begin + i]) << 8 * (i % 8);
      ASSERT_EQ(table().read(bytes.data() + begin, n), expected) << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(VectorMath, EveryTable, testing::ValuesIn(tables_under_test()),
                         [](const auto& param) { return std::string(param.param->name); });

}  // namespace
}  // namespace carpool
