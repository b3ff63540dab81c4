// Dense operations of every table and thread count against double precision, and bit for bit against one thread and
// one row.
#include <gtest/gtest.h>

#include "backend/cpu/test_data.h"
#include "base/error.h"
#include "tensor/activations.h"

namespace carpool::test {
namespace {

class DenseOps : public testing::TestWithParam<Backend> {
 protected:
  DenseOps() : ops_(make_cpu_ops(GetParam().threads, GetParam().isa)) {}
  std::unique_ptr<Ops> ops_;
};

TEST_P(DenseOps, ItSaysWhatItRunsOn) {
  EXPECT_EQ(ops_->isa(), GetParam().isa);
  EXPECT_EQ(ops_->threads(), GetParam().threads);
}

TEST_P(DenseOps, EmbedCopiesTheTokensRowAndZeroesPadding) {
  for (const Format format : {Format::kF32, Format::kBF16}) {
    const Weight table(format, 11, 37, 1);
    Rows out(4, 37, 2, 5);
    const std::vector<int> tokens = {10, -1, 0, 10};
    ops_->embed(table.view, tokens, out.matrix());
    for (int t = 0; t < 4; ++t) {
      for (int c = 0; c < 37; ++c) {
        const int token = tokens[static_cast<size_t>(t)];
        EXPECT_EQ(out.at(t, c), token < 0 ? 0.0f : table.at(token, c));
      }
    }
  }
}

TEST_P(DenseOps, MatmulAgreesWithDoublePrecision) {
  for (const Format format : {Format::kF32, Format::kBF16}) {
    for (const auto& [rows, n, k] : {std::tuple(1, 1, 1), std::tuple(3, 50, 129), std::tuple(17, 333, 96),
                                     std::tuple(1, 700, 300), std::tuple(65, 40, 64)}) {
      Rows x(rows, k, 3, 2), out(rows, n, 4, 1);
      const Weight w(format, n, k, 5);
      multiply(*ops_, x.matrix(), w, out.matrix());
      for (int t = 0; t < rows; ++t) {
        for (int i = 0; i < n; ++i) {
          double sum = 0, absolute = 0;
          for (int j = 0; j < k; ++j) {
            const double term = static_cast<double>(x.at(t, j)) * w.at(i, j);
            sum += term;
            absolute += std::fabs(term);
          }
          ASSERT_NEAR(out.at(t, i), sum, sum_bound(k, absolute)) << rows << "x" << n << "x" << k;
        }
      }
    }
  }
}

TEST_P(DenseOps, ARowOfAMatmulHasTheSameBitsAloneAndOnOneThread) {
  for (const Format format : all_formats()) {
    const int k = fitting_columns(format, 203, 192, 512);
    const Weight w(format, 517, k, 6);
    for (const Activations activations : {Activations::kInt8, Activations::kFloat}) {
      const auto ops = make_cpu_ops(GetParam().threads, GetParam().isa, activations);
      const auto one_thread = make_cpu_ops(1, GetParam().isa, activations);
      Rows x(40, k, 7), together(40, 517, 8), alone(40, 517, 9);
      multiply(*ops, x.matrix(), w, together.matrix());
      for (int t = 0; t < 40; ++t) {
        multiply(*one_thread, x.slice(t, 1), w, alone.slice(t, 1));
        ASSERT_TRUE(same_bits(together.row(t), alone.row(t), 517)) << info(format).name << " row " << t;
      }
      for (const int count : {2, 3, 5, 8, 23}) {
        Rows part(count, 517, 10);
        multiply(*ops, x.slice(11, count), w, part.matrix());
        for (int t = 0; t < count; ++t) {
          ASSERT_TRUE(same_bits(part.row(t), alone.row(11 + t), 517)) << info(format).name << " of " << count;
        }
      }
    }
  }
}

TEST_P(DenseOps, SeveralProductsInOnePassGiveTheBitsOfEachAlone) {
  const Weight a(Format::kQ4_0, 90, 128, 31), b(Format::kF32, 17, 128, 32), d(Format::kNVFP4, 200, 128, 34);
  for (const int rows : {1, 5, 40}) {
    Rows x(rows, 128, 35, 3), out_a(rows, 90, 36), out_b(rows, 17, 37), out_d(rows, 200, 38), alone(rows, 200, 39);
    const Product products[] = {{&a.panels, out_a.matrix()}, {&b.panels, out_b.matrix()}, {&d.panels, out_d.matrix()}};
    ops_->matmul(x.matrix(), products);
    for (const auto& [w, out] : {std::pair(&a, &out_a), std::pair(&b, &out_b), std::pair(&d, &out_d)}) {
      alone = Rows(rows, static_cast<int>(w->view.rows), 40);
      multiply(*ops_, x.matrix(), *w, alone.matrix());
      for (int t = 0; t < rows; ++t) ASSERT_TRUE(same_bits(alone.row(t), out->row(t), w->view.rows)) << rows;
    }
  }
}

// A block of 128 values is off by at most half a code each, and a code is 1/127 of the largest.
TEST_P(DenseOps, QuantizedActivationsCostAtMostHalfACodePerColumnAndFloatOnesCostNothing) {
  const auto exact = make_cpu_ops(GetParam().threads, GetParam().isa, Activations::kFloat);
  for (const Format format :
       {Format::kQ8_0, Format::kQ4_0, Format::kNVFP4, Format::kMXFP4, Format::kQ4_K, Format::kQ6_K}) {
    const Weight w(format, 50, 512, 41);
    Rows x(3, 512, 42), codes(3, 50, 43), floats(3, 50, 44);
    multiply(*ops_, x.matrix(), w, codes.matrix());
    multiply(*exact, x.matrix(), w, floats.matrix());
    bool differ = false;
    for (int t = 0; t < 3; ++t) {
      for (int n = 0; n < 50; ++n) {
        double sum = 0, absolute = 0, cost = 0;
        for (int block = 0; block < 512; block += kActivationBlock) {
          double largest = 0, weights = 0;
          for (int k = block; k < block + kActivationBlock; ++k) {
            largest = std::max<double>(largest, std::fabs(x.at(t, k)));
            weights += std::fabs(w.at(n, k));
            sum += static_cast<double>(x.at(t, k)) * w.at(n, k);
            absolute += std::fabs(static_cast<double>(x.at(t, k)) * w.at(n, k));
          }
          cost += weights * largest / 127 / 2;
        }
        ASSERT_NEAR(floats.at(t, n), sum, sum_bound(512, absolute)) << info(format).name;
        // Q4_K takes a minimum away whose rounding is relative to parts larger than the value.
        ASSERT_NEAR(codes.at(t, n), sum, 1.0001 * cost + 16 * sum_bound(512, absolute)) << info(format).name;
        differ = differ || codes.at(t, n) != floats.at(t, n);
      }
    }
    EXPECT_TRUE(differ) << info(format).name << ": the choice of activations changes nothing";
  }
}

TEST_P(DenseOps, MatmulOfNoRowsIsNothing) {
  const Weight w(Format::kF32, 4, 3, 1);
  std::vector<float> out(4, 7.0f);
  multiply(*ops_, {nullptr, 0, 3, 3}, w, {out.data(), 0, 4, 4});
  EXPECT_EQ(out, std::vector<float>(4, 7.0f));
}

TEST_P(DenseOps, RmsNormAgreesWithDoublePrecisionAndRowsAreIndependent) {
  for (const auto& [rows, d] : {std::pair(1, 5), std::pair(30, 601)}) {
    Rows x(rows, d, 11, 3), out(rows, d, 12), alone(1, d, 13);
    const std::vector<float> weight = random_values(static_cast<size_t>(d), 14);
    ops_->rms_norm(x.matrix(), weight, 1e-5f, out.matrix());
    for (int t = 0; t < rows; ++t) {
      double squares = 0;
      for (int c = 0; c < d; ++c) squares += static_cast<double>(x.at(t, c)) * x.at(t, c);
      for (int c = 0; c < d; ++c) {
        const double expected =
            x.at(t, c) / std::sqrt(squares / d + static_cast<double>(1e-5f)) * weight[static_cast<size_t>(c)];
        EXPECT_NEAR(out.at(t, c), expected, (d / 8 + 12) * kUnit * std::fabs(expected));
      }
      ops_->rms_norm(x.slice(t, 1), weight, 1e-5f, alone.matrix());
      EXPECT_TRUE(same_bits(alone.row(0), out.row(t), d)) << t;
    }
    ops_->rms_norm(x.matrix(), weight, 1e-5f, x.matrix());
    for (int t = 0; t < rows; ++t) EXPECT_TRUE(same_bits(x.row(t), out.row(t), d)) << "in place";
  }
}

// Mean and variance are sums in double, so what counts is the difference from the mean, the product and the sum.
TEST_P(DenseOps, LayerNormAgreesWithDoublePrecisionAndRowsAreIndependent) {
  for (const auto& [rows, d] : {std::pair(1, 1), std::pair(3, 5), std::pair(30, 601)}) {
    Rows x(rows, d, 11, 3), out(rows, d, 12), alone(1, d, 13);
    for (float& value : x.data) value += 3.0f;  // a mean that is not near zero
    const std::vector<float> weight = random_values(static_cast<size_t>(d), 14),
                             bias = random_values(static_cast<size_t>(d), 15);
    ops_->layer_norm(x.matrix(), weight, bias, 1e-3f, out.matrix());
    for (int t = 0; t < rows; ++t) {
      double mean = 0, squares = 0;
      for (int c = 0; c < d; ++c) mean += x.at(t, c) / static_cast<double>(d);
      for (int c = 0; c < d; ++c) squares += (x.at(t, c) - mean) * (x.at(t, c) - mean);
      for (int c = 0; c < d; ++c) {
        const auto i = static_cast<size_t>(c);
        const double scaled = (x.at(t, c) - mean) / std::sqrt(squares / d + static_cast<double>(1e-3f)) * weight[i];
        EXPECT_NEAR(out.at(t, c), scaled + bias[i], 4 * kUnit * (std::fabs(scaled) + std::fabs(bias[i])));
      }
      ops_->layer_norm(x.slice(t, 1), weight, bias, 1e-3f, alone.matrix());
      EXPECT_TRUE(same_bits(alone.row(0), out.row(t), d)) << t;
    }
    ops_->layer_norm(x.matrix(), weight, bias, 1e-3f, x.matrix());
    for (int t = 0; t < rows; ++t) EXPECT_TRUE(same_bits(x.row(t), out.row(t), d)) << "in place";
  }
}

TEST_P(DenseOps, MatmulHeadsMultipliesEachHeadWithItsOwnRows) {
  for (const Format format : all_formats()) {
    const int k = fitting_columns(format, 45, 64, 256);
    for (const auto& [rows, heads, r] :
         {std::tuple(1, 1, 16), std::tuple(3, 2, 320), std::tuple(9, 5, 32), std::tuple(20, 16, 16)}) {
      // Heads stand apart in x, and each reads past the part that only it is there for.
      const int x_step = k + 3, out_step = r + 2;
      const Weight w(format, heads * r, k, 5);
      Rows x(rows, heads * x_step, 3, 2), out(rows, heads * out_step, 4, 1), alone(1, heads * out_step, 6);
      const Rows before = out;
      ops_->matmul_heads(x.matrix(), x_step, w.panels, heads, out.matrix(), out_step);
      for (int t = 0; t < rows; ++t) {
        for (int h = 0; h < heads; ++h) {
          for (int i = 0; i < r; ++i) {
            double sum = 0, absolute = 0;
            for (int c = 0; c < k; ++c) {
              const double term = static_cast<double>(x.at(t, h * x_step + c)) * w.at(h * r + i, c);
              sum += term;
              absolute += std::fabs(term);
            }
            ASSERT_NEAR(out.at(t, h * out_step + i), sum, sum_bound(k, absolute)) << info(format).name << " " << h;
          }
          for (int i = r; i < out_step; ++i) {
            ASSERT_EQ(out.at(t, h * out_step + i), before.at(t, h * out_step + i)) << "between heads";
          }
        }
        alone = Rows(1, heads * out_step, 4);
        ops_->matmul_heads(x.slice(t, 1), x_step, w.panels, heads, alone.matrix(), out_step);
        for (int h = 0; h < heads; ++h) {
          ASSERT_TRUE(same_bits(alone.row(0) + h * out_step, out.row(t) + h * out_step, r)) << info(format).name;
        }
      }
    }
  }
}

TEST_P(DenseOps, AddBiasIsExactlyTheFloatSumAndNoneIsNothing) {
  Rows x(40, 515, 15, 1);
  const Rows before = x;
  const std::vector<float> bias = random_values(515, 16);
  ops_->add_bias(x.matrix(), {});
  EXPECT_EQ(x.data, before.data);
  ops_->add_bias(x.matrix(), bias);
  for (int t = 0; t < 40; ++t) {
    for (int c = 0; c < 515; ++c) ASSERT_EQ(x.at(t, c), before.at(t, c) + bias[static_cast<size_t>(c)]);
  }
}

TEST_P(DenseOps, AddIsExactlyTheFloatSum) {
  Rows x(40, 515, 15, 1), out(40, 515, 16, 2);
  const Rows before = out;
  ops_->add(x.matrix(), out.matrix());
  for (int t = 0; t < 40; ++t) {
    for (int c = 0; c < 515; ++c) ASSERT_EQ(out.at(t, c), before.at(t, c) + x.at(t, c));
    for (int c = 515; c < 517 && t + 1 < 40; ++c) ASSERT_EQ(out.at(t, c), before.at(t, c)) << "between rows";
  }
}

TEST_P(DenseOps, RouterLogitsAreTheMatmulWithTheGate) {
  const Weight gate(Format::kF32, 24, 130, 17);
  Rows x(9, 130, 18), expected(9, 24, 19);
  std::vector<float> logits(9 * 24);
  ops_->router_logits(x.matrix(), gate.panels, logits);
  multiply(*ops_, x.matrix(), gate, expected.matrix());
  EXPECT_TRUE(same_bits(logits.data(), expected.data.data(), 9 * 24));
}

// Known problem T2: router logits in bfloat16, or of rounded activations, choose other experts. The bound is a
// thousandth of what rounding a logit to bfloat16 does, and one large element of the input would leave int8 no codes
// for the rest.
TEST_P(DenseOps, T2RouterLogitsAreFloat32WhateverActivationsAre) {
  constexpr int kExperts = 20, kWide = 128;
  Weight gate(Format::kF32, kExperts, kWide, 51);
  Rows x(2, kWide, 52);
  x.data[3] = 60;
  for (const Activations activations : {Activations::kInt8, Activations::kFloat}) {
    const auto ops = make_cpu_ops(GetParam().threads, GetParam().isa, activations);
    std::vector<float> logits(2 * kExperts);
    ops->router_logits(x.matrix(), gate.panels, logits);
    for (int t = 0; t < 2; ++t) {
      for (int e = 0; e < kExperts; ++e) {
        double sum = 0, absolute = 0;
        for (int c = 0; c < kWide; ++c) {
          const double term = static_cast<double>(x.at(t, c)) * gate.at(e, c);
          sum += term;
          absolute += std::fabs(term);
        }
        ASSERT_NEAR(logits[static_cast<size_t>(t * kExperts + e)], sum, sum_bound(kWide, absolute));
      }
    }
  }
}

TEST_P(DenseOps, ReadSecondsTakesSomeTimeForAnySize) {
  std::vector<std::byte> bytes((size_t{5} << 20) + 13, std::byte{1});
  EXPECT_GT(ops_->read_seconds(bytes), 0.0);
  EXPECT_GT(ops_->read_seconds(std::span(bytes).subspan(3, 61)), 0.0);
  EXPECT_GE(ops_->read_seconds({}), 0.0);
}

INSTANTIATE_TEST_SUITE_P(CpuOps, DenseOps, testing::ValuesIn(all_backends()),
                         [](const auto& param) { return backend_name(param.param); });

TEST(MakeCpuOps, ZeroThreadsAndUnknownTablesAreRefused) {
  EXPECT_THROW(make_cpu_ops(0, "auto"), Error);
  EXPECT_THROW(make_cpu_ops(1, "mmx"), Error);
  EXPECT_EQ(make_cpu_ops(1, "auto")->isa(), cpu_isa_names().back());
}

}  // namespace
}  // namespace carpool::test
