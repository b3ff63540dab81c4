// The attention entries of every table: rotation and spans against double precision, how queries may be cut without
// moving a bit, what memory they leave alone, and that vector tables agree with each other. Whole attention, with its
// tolerances per element format, is tested in backend/cpu/attention_test.cc.
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels/kernels.h"
#include "kernels/tables_under_test.h"

namespace carpool {
namespace {

constexpr double kUnit = 0x1p-24;
constexpr KvFormat kFormats[] = {KvFormat::kF32, KvFormat::kBF16, KvFormat::kQ8};
constexpr float kGuard = -12345.0f;

std::vector<float> values(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

// `n` floats at a multiple of 64 bytes, all kGuard, with 16 more behind them.
struct Aligned {
  explicit Aligned(size_t n) : size(n), memory(n + 48, kGuard) {}
  float* get() { return memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) / 4; }
  bool untouched_behind() {
    for (size_t i = 0; i < 16; ++i) {
      if (get()[size + i] != kGuard) return false;
    }
    return true;
  }
  size_t size;
  std::vector<float> memory;
};

// A sequence of positions in blocks that lie in descending order, one kv head of two, and queries at its end.
struct Context {
  Context(KvFormat format, int head_dim_in, int length_in, int rows_in, int heads_in)
      : block(format, head_dim_in),
        head_dim(head_dim_in),
        length(length_in),
        rows(rows_in),
        heads(heads_in),
        q(values(static_cast<size_t>(rows * heads * head_dim + rows), 7)),
        memory(static_cast<size_t>((length + 15) / 16) * 2 * block.bytes + 64, std::byte{0xff}) {
    const int count = (length + 15) / 16;
    for (int i = 0; i < count; ++i) blocks.push_back(count - 1 - i);
    const auto n = static_cast<size_t>(head_dim);
    for (int p = 0; p < length; ++p) {
      const std::vector<float> key = values(n, static_cast<uint32_t>(1000 + p)),
                               value = values(n, static_cast<uint32_t>(p));
      std::byte* at = base() + static_cast<size_t>(blocks[static_cast<size_t>(p / 16)]) * 2 * block.bytes;
      block.store(at, p % 16, key.data(), value.data());
      keys.emplace_back(n);
      rows_of_values.emplace_back(n);
      block.load(at, p % 16, keys.back().data(), rows_of_values.back().data());
    }
  }
  std::byte* base() { return memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64); }
  // Rows [row, row + n_rows) and heads [head, head + n_heads) of the queries; one float lies between two rows.
  AttentionTile tile(int row, int n_rows, int head, int n_heads) {
    AttentionTile t;
    t.q_stride = heads * head_dim + 1;
    t.q = q.data() + row * t.q_stride + head * head_dim;
    t.rows = n_rows;
    t.heads = n_heads;
    t.first = length - rows + row;
    t.head_dim = head_dim;
    t.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    t.format = block.format;
    t.blocks = blocks.data();
    t.base = base();
    t.block_stride = 2 * block.bytes;
    t.value_offset = block.value_offset;
    return t;
  }
  // Attention of those queries, [n_rows][n_heads][head_dim].
  std::vector<float> attend(const AttentionKernels& k, int row, int n_rows, int head, int n_heads) {
    AttentionTile t = tile(row, n_rows, head, n_heads);
    const int queries = n_rows * n_heads;
    const size_t record = attention_record(head_dim);
    Aligned scratch(attention_scratch(queries, head_dim)), total(record * static_cast<size_t>(queries)),
        later(total.size);
    t.scratch = scratch.get();
    std::vector<float> out(static_cast<size_t>(queries * head_dim));
    k.span(t, 0, total.get());
    for (int s = 1; s * kAttentionSpan < t.first + n_rows; ++s) {
      k.span(t, s, later.get());
      for (int i = 0; i < queries; ++i) {
        const size_t at = static_cast<size_t>(i) * record;
        if (t.first + i / n_heads >= s * kAttentionSpan) k.merge(total.get() + at, later.get() + at, head_dim);
      }
    }
    for (int i = 0; i < queries; ++i) {
      k.finish(total.get() + static_cast<size_t>(i) * record, out.data() + static_cast<size_t>(i * head_dim), head_dim);
    }
    EXPECT_TRUE(scratch.untouched_behind() && total.untouched_behind() && later.untouched_behind());
    return out;
  }

  KvBlock block;
  int head_dim, length, rows, heads;
  std::vector<float> q;
  std::vector<std::byte> memory;
  std::vector<int> blocks;
  std::vector<std::vector<float>> keys, rows_of_values;  // as stored
};

class EveryAttention : public testing::TestWithParam<const Kernels*> {
 protected:
  const AttentionKernels& kernels() const { return GetParam()->attention; }
};

TEST_P(EveryAttention, RotatesPairsHalfAHeadApartAndNothingElse) {
  for (int half = 0; half <= 70; ++half) {
    const auto n = static_cast<size_t>(half);
    const std::vector<float> cos = values(n, 1), sin = values(n, 2), before = values(2 * n + 3, 3);
    std::vector<float> head = before;
    kernels().rotate(head.data(), cos.data(), sin.data(), half);
    for (size_t i = 0; i < n; ++i) {
      const double a = before[i], b = before[i + n], c = cos[i], s = sin[i];
      EXPECT_NEAR(head[i], a * c - b * s, 2 * kUnit * (std::fabs(a * c) + std::fabs(b * s)));
      EXPECT_NEAR(head[i + n], b * c + a * s, 2 * kUnit * (std::fabs(b * c) + std::fabs(a * s)));
    }
    for (size_t i = 2 * n; i < head.size(); ++i) EXPECT_EQ(head[i], before[i]);
  }
}

// The bound follows the order of sums: a score is head_dim + 2 roundings; weights are relative to each other, their
// exponents round by the range of scores and they are rescaled per tile and span; sums run over 16 chains and over all.
TEST_P(EveryAttention, ASpanOrTwoAgreeWithDoublePrecision) {
  for (const KvFormat format : kFormats) {
    for (const auto& [head_dim, length, heads] : {std::tuple(1, 3, 1), std::tuple(33, 67, 2), std::tuple(64, 512, 8),
                                                  std::tuple(16, 513, 3), std::tuple(48, 640, 5)}) {
      const int rows = 3;
      Context c(format, head_dim, length, rows, heads);
      const std::vector<float> out = c.attend(kernels(), 0, rows, 0, heads);
      for (int i = 0; i < rows * heads; ++i) {
        const float* q = c.tile(i / heads, 1, i % heads, 1).q;
        const int seen = length - rows + i / heads + 1;
        std::vector<double> p;
        double top = -1e300, low = 1e300, worst = 0, sum = 0;
        for (int j = 0; j < seen; ++j) {
          double dot = 0, absolute = 0;
          for (size_t d = 0; d < static_cast<size_t>(head_dim); ++d) {
            dot += static_cast<double>(q[d]) * c.keys[static_cast<size_t>(j)][d];
            absolute += std::fabs(static_cast<double>(q[d]) * c.keys[static_cast<size_t>(j)][d]);
          }
          const double scale = c.tile(0, 1, 0, 1).scale;
          p.push_back(dot * scale);
          worst = std::max(worst, (head_dim + 2) * kUnit * absolute * scale);
          top = std::max(top, p.back());
          low = std::min(low, p.back());
        }
        for (double& x : p) sum += x = std::exp(x - top);
        const double steps = seen / 64 + seen / 512 + 2;
        const double relative = 1.05 * (2 * worst + kUnit * (2 * (top - low + 6 * steps) + seen / 16 + 8 + seen + 2));
        for (size_t d = 0; d < static_cast<size_t>(head_dim); ++d) {
          double expected = 0, absolute = 0;
          for (size_t j = 0; j < p.size(); ++j) {
            expected += p[j] / sum * c.rows_of_values[j][d];
            absolute += p[j] / sum * std::fabs(c.rows_of_values[j][d]);
          }
          ASSERT_NEAR(out[static_cast<size_t>(i * head_dim) + d], expected, relative * absolute)
              << name(format) << " " << head_dim << " " << i;
        }
      }
    }
  }
}

TEST_P(EveryAttention, AQueryHasTheSameBitsHoweverRowsAndHeadsAreCut) {
  for (const KvFormat format : kFormats) {
    for (const int length : {9, 70, 520}) {  // rows that all, some or none stand in the first block, tile and span
      const int head_dim = 24, rows = 9, heads = 7;
      Context c(format, head_dim, length, rows, heads);
      const std::vector<float> whole = c.attend(kernels(), 0, rows, 0, heads);
      for (int n_rows = 1; n_rows <= rows; n_rows += 2) {
        for (int n_heads = 1; n_heads <= heads; ++n_heads) {
          for (int row = 0; row + n_rows <= rows; row += n_rows) {
            const int head = heads - n_heads;
            const std::vector<float> part = c.attend(kernels(), row, n_rows, head, n_heads);
            for (int r = 0; r < n_rows; ++r) {
              ASSERT_EQ(std::memcmp(part.data() + r * n_heads * head_dim,
                                    whole.data() + ((row + r) * heads + head) * head_dim,
                                    sizeof(float) * static_cast<size_t>(n_heads * head_dim)),
                        0)
                  << name(format) << " " << length << ": " << n_rows << " rows from " << row << ", " << n_heads
                  << " heads";
            }
          }
        }
      }
    }
  }
}

TEST_P(EveryAttention, RecordsOfRowsBeforeASpanAreLeftAlone) {
  const int head_dim = 16, heads = 2, rows = 4;
  Context c(KvFormat::kF32, head_dim, kAttentionSpan + 2, rows, heads);  // two rows end before the second span
  AttentionTile t = c.tile(0, rows, 0, heads);
  Aligned scratch(attention_scratch(rows * heads, head_dim)), records(attention_record(head_dim) * rows * heads);
  t.scratch = scratch.get();
  kernels().span(t, 1, records.get());
  for (size_t i = 0; i < attention_record(head_dim) * 2 * heads; ++i) ASSERT_EQ(records.get()[i], kGuard) << i;
  EXPECT_NE(records.get()[attention_record(head_dim) * 2 * heads], kGuard);
}

TEST_P(EveryAttention, NaNInAKeyOrAValueReachesTheRowsThatSeeItAndNoOther) {
  for (const bool in_key : {true, false}) {
    Context c(KvFormat::kF32, 16, 40, 20, 1);
    std::vector<float> bad(16, std::numeric_limits<float>::quiet_NaN()), good(16, 1.0f);
    std::byte* at = c.base() + static_cast<size_t>(c.blocks[30 / 16]) * 2 * c.block.bytes;
    c.block.store(at, 30 % 16, (in_key ? bad : good).data(), (in_key ? good : bad).data());
    const std::vector<float> out = c.attend(kernels(), 0, 20, 0, 1);  // positions 20 to 39
    for (int row = 0; row < 20; ++row) {
      for (int d = 0; d < 16; ++d) ASSERT_EQ(std::isnan(out[static_cast<size_t>(row * 16 + d)]), 20 + row >= 30) << row;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Attention, EveryAttention, testing::ValuesIn(tables_under_test()),
                         [](const auto& param) { return std::string(param.param->name); });

// With one vector table there is nothing to compare; an emulated one is compared with that one.
TEST(AttentionTables, VectorTablesGiveTheSameBits) {
  if (available_kernels().size() < 2) GTEST_SKIP() << "no vector table here";
  const Kernels& reference = *available_kernels()[1];
  for (const KvFormat format : kFormats) {
    for (const auto& [head_dim, length] : {std::pair(20, 50), std::pair(128, 200), std::pair(64, 1100)}) {
      Context c(format, head_dim, length, 9, 5);
      const std::vector<float> want = c.attend(reference.attention, 0, 9, 0, 5);
      for (const Kernels* table : tables_under_test()) {
        if (table == &reference || table == available_kernels().front()) continue;  // itself; another exponential
        EXPECT_EQ(c.attend(table->attention, 0, 9, 0, 5), want) << table->name << " " << name(format) << " " << length;
      }
    }
  }
}

}  // namespace
}  // namespace carpool
