// The contract of every matrix product: each table of this machine times each format, against double precision, and
// bit for bit against itself under every way of cutting the work.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels/kernels.h"

namespace carpool {
namespace {

constexpr double kUnit = 0x1p-24;        // half an ulp of float32 at 1
constexpr float kUntouched = -12345.0f;  // in outputs that a call must leave alone
constexpr int kColumns[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 257, 1000};

// Weights of any format at any byte offset, the same values as float32, and activations with a stride of their own.
struct Problem {
  Problem(Format format, int max_rows, int weight_rows, int columns, size_t offset, uint32_t seed)
      : rows(max_rows), n(weight_rows), k(columns), stride(columns + 3) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    x.resize(static_cast<size_t>(rows) * static_cast<size_t>(stride) + 1);
    for (float& value : x) value = normal(random);
    std::vector<float> values(static_cast<size_t>(n) * static_cast<size_t>(k));
    for (float& value : values) value = normal(random);
    set_weights(format, values, offset);
  }

  void set_weights(Format format, const std::vector<float>& values, size_t offset) {
    const size_t element = static_cast<size_t>(info(format).block_bytes);
    // Ends with the last weight: a read past the end is seen by AddressSanitizer.
    bytes.resize(offset + values.size() * element);
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t half = float_to_bf16(values[i]);
      std::memcpy(bytes.data() + offset + i * element,
                  format == Format::kF32 ? static_cast<const void*>(&values[i]) : &half, element);
    }
    view = {format, bytes.data() + offset, n, k};
    decoded.resize(values.size());
    for (int r = 0; r < n; ++r) decode_row(view, r, decoded.data() + static_cast<size_t>(r) * static_cast<size_t>(k));
  }

  const float* row(int m) const { return x.data() + 1 + static_cast<size_t>(m) * static_cast<size_t>(stride); }

  // Columns [begin, end) of the first `count` rows starting at row `first`; everything else kUntouched.
  std::vector<float> multiply(const Kernels& table, int first, int count, int begin, int end) const {
    std::vector<float> y(static_cast<size_t>(rows) * static_cast<size_t>(n), kUntouched);
    std::vector<const float*> in;
    std::vector<float*> out;
    for (int m = first; m < first + count; ++m) {
      in.push_back(row(m));
      out.push_back(y.data() + static_cast<size_t>(m) * static_cast<size_t>(n));
    }
    table.matmul[static_cast<size_t>(view.format)](in.data(), count, view, begin, end, out.data());
    return y;
  }

  int rows, n, k, stride;
  std::vector<float> x, decoded;
  std::vector<unsigned char> bytes;
  WeightView view;
};

// A sum in at least four interleaved chains: at most k/4 + 1 additions and one product per term on the longest path,
// and a tree of at most 5 levels over the chains. Each rounds by one unit relative, or by the smallest denormal.
double tolerance(int k, double absolute_sum) {
  return (k / 4 + 8) * kUnit * 1.01 * absolute_sum + k * static_cast<double>(std::numeric_limits<float>::denorm_min());
}

void expect_near_oracle(const Problem& p, const std::vector<float>& y, int first, int count, const char* name) {
  for (int m = first; m < first + count; ++m) {
    for (int n = 0; n < p.n; ++n) {
      double sum = 0, absolute = 0;
      for (int k = 0; k < p.k; ++k) {
        const double term = static_cast<double>(p.row(m)[k]) * p.decoded[static_cast<size_t>(n * p.k + k)];
        sum += term;
        absolute += std::fabs(term);
      }
      ASSERT_NEAR(y[static_cast<size_t>(m * p.n + n)], sum, tolerance(p.k, absolute))
          << name << " m=" << m << " n=" << n << " k=" << p.k;
    }
  }
}

class EveryTableAndFormat : public testing::TestWithParam<std::tuple<const Kernels*, Format>> {
 protected:
  const Kernels& table() const { return *std::get<0>(GetParam()); }
  Format format() const { return std::get<1>(GetParam()); }
};

TEST_P(EveryTableAndFormat, ProductsAgreeWithDoublePrecision) {
  for (const int k : kColumns) {
    for (const size_t offset : {size_t{0}, size_t{1}, size_t{2}}) {
      const Problem p(format(), 5, 19, k, offset, static_cast<uint32_t>(k));
      expect_near_oracle(p, p.multiply(table(), 0, 5, 0, 19), 0, 5, table().name);
    }
  }
}

TEST_P(EveryTableAndFormat, ARowHasTheSameBitsInEveryBatchAndEveryRange) {
  constexpr int kRows = 17, kN = 37;
  constexpr std::pair<int, int> kRanges[] = {{0, kN}, {0, 8}, {8, 16}, {3, 11}, {5, 30}, {29, kN}, {36, kN}, {4, 4}};
  for (const int k : {1, 7, 16, 33, 64, 257}) {
    const Problem p(format(), kRows, kN, k, 0, 7);
    std::vector<float> alone(static_cast<size_t>(kRows * kN));
    for (int m = 0; m < kRows; ++m) {
      for (int n = 0; n < kN; ++n) {
        const auto i = static_cast<size_t>(m * kN + n);
        alone[i] = p.multiply(table(), m, 1, n, n + 1)[i];
      }
    }
    for (int count = 1; count <= kRows; ++count) {
      const int first = (kRows - count) / 2;
      for (const auto& [begin, end] : kRanges) {
        const std::vector<float> y = p.multiply(table(), first, count, begin, end);
        for (int m = 0; m < kRows; ++m) {
          for (int n = 0; n < kN; ++n) {
            const bool asked = m >= first && m < first + count && n >= begin && n < end;
            const auto i = static_cast<size_t>(m * kN + n);
            const float expected = asked ? alone[i] : kUntouched;
            ASSERT_EQ(std::memcmp(&y[i], &expected, sizeof(float)), 0)
                << table().name << " k=" << k << " rows=" << count << " [" << begin << "," << end << ") m=" << m
                << " n=" << n << ": " << y[i] << " against " << expected;
          }
        }
      }
    }
  }
}

TEST_P(EveryTableAndFormat, ManyRowsAgreeWithOneRow) {
  const Problem p(format(), 100, 16, 48, 0, 3);
  const std::vector<float> together = p.multiply(table(), 0, 100, 0, 16);
  for (int m = 0; m < 100; ++m) {
    const std::vector<float> one = p.multiply(table(), m, 1, 0, 16);
    ASSERT_EQ(std::memcmp(&one[static_cast<size_t>(m * 16)], &together[static_cast<size_t>(m * 16)], 16 * 4), 0) << m;
  }
}

TEST_P(EveryTableAndFormat, ZerosHugeAndDenormalValuesAreCarriedThrough) {
  constexpr int kK = 67;
  Problem p(format(), 3, 9, kK, 0, 11);
  for (const auto& [weight, activation] :
       {std::pair(0.0f, 1.0f), std::pair(1e30f, 1e6f), std::pair(0x1p-130f, 0x1p+100f), std::pair(0x1p-133f, 1.0f),
        std::pair(-1e20f, 1e16f), std::pair(0x1p-120f, 0x1p-20f)}) {
    std::vector<float> values(static_cast<size_t>(9 * kK));
    for (size_t i = 0; i < values.size(); ++i) values[i] = weight * static_cast<float>(1 + i % 3);
    p.set_weights(format(), values, 0);
    for (size_t i = 0; i < p.x.size(); ++i) p.x[i] = activation * (i % 2 == 0 ? 1.0f : 0.5f);
    const std::vector<float> y = p.multiply(table(), 0, 3, 0, 9);
    expect_near_oracle(p, y, 0, 3, table().name);
    EXPECT_TRUE(std::isfinite(y[0]));
    EXPECT_EQ(y[0] == 0.0f, weight == 0.0f) << weight << " times " << activation << " must not be flushed";
  }
}

std::vector<Format> all_formats() {
  std::vector<Format> formats;
  for (int i = 0; i < kFormatCount; ++i) formats.push_back(static_cast<Format>(i));
  return formats;
}

INSTANTIATE_TEST_SUITE_P(MatMul, EveryTableAndFormat,
                         testing::Combine(testing::ValuesIn(available_kernels()), testing::ValuesIn(all_formats())),
                         [](const auto& param) {
                           return std::string(std::get<0>(param.param)->name) + "_" +
                                  std::string(carpool::info(std::get<1>(param.param)).name);
                         });

}  // namespace
}  // namespace carpool
