// Dense operations of every table and thread count against double precision, and bit for bit against one thread and
// one row.
#include <gtest/gtest.h>

#include "backend/cpu/test_data.h"
#include "base/error.h"

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
      ops_->matmul(x.matrix(), w.view, out.matrix());
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
  const auto one_thread = make_cpu_ops(1, GetParam().isa);
  for (const Format format : {Format::kF32, Format::kBF16}) {
    const Weight w(format, 517, 203, 6);
    Rows x(40, 203, 7), together(40, 517, 8), alone(40, 517, 9);
    ops_->matmul(x.matrix(), w.view, together.matrix());
    for (int t = 0; t < 40; ++t) {
      one_thread->matmul(x.slice(t, 1), w.view, alone.slice(t, 1));
      ASSERT_TRUE(same_bits(together.row(t), alone.row(t), 517)) << t;
    }
    for (const int count : {2, 3, 5, 8, 23}) {
      Rows part(count, 517, 10);
      ops_->matmul(x.slice(11, count), w.view, part.matrix());
      for (int t = 0; t < count; ++t) ASSERT_TRUE(same_bits(part.row(t), alone.row(11 + t), 517)) << count;
    }
  }
}

TEST_P(DenseOps, MatmulOfNoRowsIsNothing) {
  const Weight w(Format::kF32, 4, 3, 1);
  std::vector<float> out(4, 7.0f);
  ops_->matmul({nullptr, 0, 3, 3}, w.view, {out.data(), 0, 4, 4});
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
  ops_->router_logits(x.matrix(), gate.view, logits);
  ops_->matmul(x.matrix(), gate.view, expected.matrix());
  EXPECT_TRUE(same_bits(logits.data(), expected.data.data(), 9 * 24));
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
