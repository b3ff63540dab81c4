// The contract of every product with panels: each table of this machine times each format, bit for bit against the
// scalar table, which kernels.h's order of sums makes possible; the scalar table against double precision with derived
// bounds; and every way of cutting the work against itself.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels/kernels.h"
#include "kernels/tables_under_test.h"

namespace carpool {
namespace {

constexpr double kUnit = 0x1p-24;        // half an ulp of float32 at 1
constexpr float kUntouched = -12345.0f;  // in outputs that a call must leave alone

const Kernels& scalar() { return *available_kernels().front(); }

// Random weights of any format as panels that end with their allocation, and random activations in both forms.
struct Problem {
  Problem(Format format, int weight_rows, int64_t columns, int activation_rows, uint32_t seed, bool alternate = false)
      : rows(activation_rows), layout(columns) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    view = {format, nullptr, weight_rows, columns, {alternate ? 0.75f : 1.0f, alternate ? -3.0f : 1.0f}};
    std::vector<float> values(static_cast<size_t>(columns));
    const size_t row_bytes = WeightView{format, nullptr, 1, columns}.row_bytes();
    std::vector<std::byte> stored(row_bytes * static_cast<size_t>(weight_rows));
    for (int r = 0; r < weight_rows; ++r) {
      for (float& v : values) v = normal(random);
      encode_row(format, values.data(), columns, stored.data() + static_cast<size_t>(r) * row_bytes);
    }
    bytes.resize(view.bytes());
    const WeightView source{format, stored.data(), weight_rows, columns};
    for (int64_t p = 0; p < view.panels(); ++p) {
      code(format).pack_panel(source, p, bytes.data() + static_cast<size_t>(p) * view.panel_bytes());
    }
    view.data = bytes.data();
    for (int m = 0; m < rows; ++m) {
      x.emplace_back(static_cast<size_t>(columns));
      // Magnitudes that differ from block to block, as those of hidden states do.
      for (size_t k = 0; k < x.back().size(); ++k)
        x.back()[k] = normal(random) * std::exp2(static_cast<float>(k / 128 % 7) - 3);
      quantized.emplace_back(layout.bytes / 8 + 8);
      scalar().quantize(x.back().data(), columns, 0, (columns + kActivationBlock - 1) / kActivationBlock, codes(m));
    }
  }

  // Quantised rows start on a cache line, as QuantizedRow promises to kernels.
  std::byte* codes(int m) {
    auto address = reinterpret_cast<uintptr_t>(quantized[static_cast<size_t>(m)].data());
    return reinterpret_cast<std::byte*>((address + 63) / 64 * 64);
  }

  // Outputs [first, first + count) rows, panels [begin, end); a row has room for `end - begin` whole panels and one
  // more.
  std::vector<float> multiply(const Kernels& table, bool int8, int first, int count, int64_t begin, int64_t end) {
    const auto stride = static_cast<size_t>(kPanelRows * (end - begin + 1));
    std::vector<float> y(stride * static_cast<size_t>(count), kUntouched);
    std::vector<const void*> in;
    std::vector<float*> out;
    for (int i = 0; i < count; ++i) {
      const auto m = static_cast<size_t>(first + i);
      in.push_back(int8 ? static_cast<const void*>(codes(first + i)) : x[m].data());
      out.push_back(y.data() + stride * static_cast<size_t>(i));
    }
    const auto f = static_cast<size_t>(view.format);
    (int8 ? table.product_int8 : table.product_float)[f]({in.data(), count, &view, begin, end, out.data(), nullptr});
    return y;
  }

  int rows;
  QuantizedRow layout;
  PanelView view;
  std::vector<std::byte> bytes;
  std::vector<std::vector<float>> x;
  std::vector<std::vector<double>> quantized;  // doubles, for their alignment
};

// Columns that every block of the format allows, with ragged ends of activation blocks and, for formats without blocks,
// of panel blocks.
std::vector<int64_t> columns_of(Format format) {
  const int64_t block = std::max(info(format).block_elements, format == Format::kNVFP4 ? 64 : 1);
  if (block == 1) return {1, 2, 3, 4, 5, 31, 64, 127, 128, 130, 257};
  if (block == 256) return {256, 512, 768};
  return {block, 2 * block, 4 * block, 5 * block, 12 * block};
}

std::vector<Format> formats() {
  std::vector<Format> all;
  for (int f = 0; f < kFormatCount; ++f) all.push_back(static_cast<Format>(f));
  return all;
}

class Panels : public testing::TestWithParam<Format> {
 protected:
  bool has_int8() const { return scalar().product_int8[static_cast<size_t>(GetParam())] != nullptr; }
};

TEST_P(Panels, EveryTableGivesTheBitsOfTheScalarOne) {
  for (const Kernels* table : tables_under_test()) {
    uint32_t seed = 1;
    for (const int64_t columns : columns_of(GetParam())) {
      for (const int weight_rows : {1, 15, 16, 40}) {
        Problem p(GetParam(), weight_rows, columns, 9, seed++, weight_rows == 40);
        for (const bool int8 : {false, true}) {
          const auto f = static_cast<size_t>(GetParam());
          ASSERT_EQ(table->product_int8[f] != nullptr, has_int8()) << table->name;
          if (int8 && !has_int8()) continue;
          const auto want = p.multiply(scalar(), int8, 0, p.rows, 0, p.view.panels());
          const auto got = p.multiply(*table, int8, 0, p.rows, 0, p.view.panels());
          ASSERT_EQ(0, std::memcmp(want.data(), got.data(), want.size() * sizeof(float)))
              << table->name << (int8 ? " int8 " : " float ") << columns << " columns, " << weight_rows << " rows";
        }
      }
    }
  }
}

// All codes and scales there are, also those that no encoder of ours writes: NaN, infinity, subnormal and negative
// scales. A NaN is one whatever its other bits. MXFP4 scales are without their ends: 2^-127 may be taken for zero.
TEST_P(Panels, EveryTableReadsAnyBytesAsTheScalarOneDoes) {
  std::mt19937 random(17);
  for (const int64_t columns : columns_of(GetParam())) {
    Problem p(GetParam(), 40, columns, 4, 19, true);
    for (size_t i = 0; i < p.bytes.size(); ++i) {
      p.bytes[i] = static_cast<std::byte>(random());
      if (GetParam() == Format::kMXFP4 && i % 272 >= 256) p.bytes[i] = static_cast<std::byte>(1 + random() % 255);
    }
    for (const Kernels* table : tables_under_test()) {
      for (const bool int8 : {false, true}) {
        if (int8 && !has_int8()) continue;
        const auto want = p.multiply(scalar(), int8, 0, p.rows, 0, p.view.panels());
        const auto got = p.multiply(*table, int8, 0, p.rows, 0, p.view.panels());
        for (size_t i = 0; i < want.size(); ++i) {
          if (std::isnan(want[i]) && std::isnan(got[i])) continue;
          ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
              << table->name << (int8 ? " int8 " : " float ") << columns << " columns: " << got[i] << ", not "
              << want[i];
        }
      }
    }
  }
}

TEST_P(Panels, ARowHasTheSameBitsInEveryBatchAndEveryCut) {
  for (const Kernels* table : tables_under_test()) {
    Problem p(GetParam(), 70, columns_of(GetParam()).back(), 21, 5);
    for (const bool int8 : {false, true}) {
      if (int8 && !has_int8()) continue;
      const auto all = p.multiply(*table, int8, 0, p.rows, 0, p.view.panels());
      const auto stride = static_cast<size_t>(kPanelRows * (p.view.panels() + 1));
      for (int count = 1; count <= p.rows; ++count) {
        for (int first = 0; first + count <= p.rows; first += 4) {
          for (int64_t begin = 0; begin < p.view.panels(); begin += 2) {
            const auto part = p.multiply(*table, int8, first, count, begin, begin + 1);
            const auto outputs = static_cast<size_t>(std::min<int64_t>(kPanelRows, p.view.rows - kPanelRows * begin));
            for (int i = 0; i < count; ++i) {
              const float* want =
                  &all[stride * static_cast<size_t>(first + i) + static_cast<size_t>(kPanelRows * begin)];
              const float* got = &part[2 * kPanelRows * static_cast<size_t>(i)];
              ASSERT_EQ(0, std::memcmp(want, got, outputs * sizeof(float))) << table->name << " row " << first + i;
              ASSERT_EQ(got[outputs], kUntouched) << "wrote past the last output";
            }
          }
        }
      }
    }
  }
}

// Float rows: a chain adds at most k/4 + 1 products, each fused, then two more levels and the panel's scale.
TEST_P(Panels, FloatProductsAreWithinTheirRoundingOfTheExactSum) {
  for (const int64_t columns : columns_of(GetParam())) {
    Problem p(GetParam(), 40, columns, 3, 11, true);
    std::vector<float> w(static_cast<size_t>(columns));
    const auto y = p.multiply(scalar(), false, 0, p.rows, 0, p.view.panels());
    for (int r = 0; r < p.view.rows; ++r) {
      unpack_row(p.view, r, w.data());
      for (int m = 0; m < p.rows; ++m) {
        double sum = 0, absolute = 0;
        for (size_t k = 0; k < w.size(); ++k) {
          const double term = static_cast<double>(p.x[static_cast<size_t>(m)][k]) * w[k];
          sum += term;
          absolute += std::fabs(term);
        }
        // Two units more: w was rounded with and without the view's scale.
        const double bound = (static_cast<double>(columns) / 4 + 8) * kUnit * 1.01 * absolute;
        ASSERT_NEAR(y[static_cast<size_t>(m * kPanelRows * (p.view.panels() + 1) + r)], sum, bound) << columns;
      }
    }
  }
}

// Quantised rows: the codes' own values, scale * code, multiplied exactly, then rounding of the sums per 128 columns.
TEST_P(Panels, Int8ProductsAreWithinTheirRoundingOfTheQuantizedRows) {
  if (!has_int8()) GTEST_SKIP() << "the format has no integer codes";
  for (const int64_t columns : columns_of(GetParam())) {
    Problem p(GetParam(), 40, columns, 3, 13, true);
    std::vector<float> w(static_cast<size_t>(columns));
    const auto y = p.multiply(scalar(), true, 0, p.rows, 0, p.view.panels());
    for (int r = 0; r < p.view.rows; ++r) {
      unpack_row(p.view, r, w.data());
      for (int m = 0; m < p.rows; ++m) {
        const auto* codes = reinterpret_cast<const int8_t*>(p.codes(m));
        const auto* scales = reinterpret_cast<const float*>(p.codes(m) + p.layout.scales);
        double sum = 0, absolute = 0, quantization = 0, exact = 0;
        for (size_t k = 0; k < w.size(); ++k) {
          const double scale = scales[k / kActivationBlock];
          sum += scale * codes[k] * w[k];
          // A minimum and a scaled code may cancel: Q4_K's parts are at most 16 times the value's block maximum.
          absolute += std::fabs(scale * codes[k]) * (std::fabs(w[k]) + 8);
          exact += static_cast<double>(p.x[static_cast<size_t>(m)][k]) * w[k];
          quantization += 0.5001 * scale * std::fabs(w[k]);
        }
        const double got = y[static_cast<size_t>(m * kPanelRows * (p.view.panels() + 1) + r)];
        const double rounding = (static_cast<double>(columns) / 16 + 8) * kUnit * absolute;
        ASSERT_NEAR(got, sum, rounding) << columns;
        ASSERT_NEAR(got, exact, rounding + quantization) << "half a code per column at most";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Panels, testing::ValuesIn(formats()),
                         [](const auto& param) { return std::string(carpool::info(param.param).name); });

std::vector<std::byte> quantize(const Kernels& table, const std::vector<float>& x) {
  const auto k = static_cast<int64_t>(x.size());
  std::vector<std::byte> out(QuantizedRow(k).bytes, std::byte{0x55});
  table.quantize(x.data(), k, 0, (k + kActivationBlock - 1) / kActivationBlock, out.data());
  return out;
}

TEST(Quantize, EveryTableGivesTheBytesOfTheScalarOne) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const int k : {1, 15, 16, 64, 127, 128, 129, 192, 300, 768}) {
    std::vector<float> x(static_cast<size_t>(k));
    for (float& v : x) v = normal(random) * std::exp2(static_cast<float>(random() % 40) - 20);
    for (int i = 0; i < k; i += 9) x[static_cast<size_t>(i)] = static_cast<float>(i % 5);  // ties to even happen
    const auto want = quantize(scalar(), x);
    for (const Kernels* table : tables_under_test()) EXPECT_EQ(quantize(*table, x), want) << table->name << " " << k;
  }
}

TEST(Quantize, CodesAreTheNearestOnesAndSumsAreTheirs) {
  std::vector<float> x(300);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i)) * (i < 128 ? 1.0f : 100.0f);
  const auto row = quantize(scalar(), x);
  const QuantizedRow layout(300);
  const auto* codes = reinterpret_cast<const int8_t*>(row.data());
  std::vector<float> scales(3);
  std::memcpy(scales.data(), row.data() + layout.scales, 12);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_LE(std::fabs(x[i] - scales[i / 128] * codes[i]), 0.5001f * scales[i / 128]) << i;
  }
  for (size_t i = x.size(); i < 384; ++i) EXPECT_EQ(codes[i], 0);
  for (int part = 0; part < 24; ++part) {
    int sum = 0, stored = 0;
    for (int i = 0; i < 16; ++i) sum += codes[16 * part + i];
    std::memcpy(&stored, row.data() + layout.sums16 + static_cast<size_t>(part) * 4, 4);
    EXPECT_EQ(stored, sum);
    if (part % 2) {
      for (int i = 0; i < 16; ++i) sum += codes[16 * (part - 1) + i];
      std::memcpy(&stored, row.data() + layout.sums32 + static_cast<size_t>(part / 2) * 4, 4);
      EXPECT_EQ(stored, sum);
    }
  }
}

TEST(Quantize, ABlockThatIsNotFiniteSaysSoAndOthersStay) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> x(256, 1.0f);
    x[200] = bad;
    for (const Kernels* table : tables_under_test()) {
      const auto row = quantize(*table, x);
      float scales[2];
      std::memcpy(scales, row.data() + QuantizedRow(256).scales, 8);
      EXPECT_EQ(scales[0], 1.0f / 127.0f) << table->name;
      EXPECT_TRUE(std::isnan(scales[1])) << table->name;
      // Codes of zero, so that the sums of codes stay in their range whatever the row held.
      std::vector<float> all(256, bad);
      const auto zeros = quantize(*table, all);
      for (size_t i = 0; i < QuantizedRow(256).scales; ++i)
        ASSERT_EQ(zeros[i], std::byte{0}) << table->name << " " << i;
    }
  }
}

TEST(Quantize, ZerosAndValuesNextToNothingAreZeroCodes) {
  for (const float tiny : {0.0f, 1e-38f, 1e-42f}) {
    for (const Kernels* table : tables_under_test()) {
      const auto row = quantize(*table, std::vector<float>(128, tiny));
      const QuantizedRow layout(128);
      for (size_t i = 0; i < layout.scales + 4; ++i) EXPECT_EQ(row[i], std::byte{0}) << table->name << " " << i;
    }
  }
}

}  // namespace
}  // namespace carpool
